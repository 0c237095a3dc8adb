"""From a recipe to a pilot search: its data, its proxy, and the settings that its method has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedveil import recipe as recipes
from fedveil.assemble import federation_of, plan_of
from fedveil.errors import BadInput
from fedveil.planning.from_recipe import local_steps_of, sizes_looked_at
from fedveil.planning.pilot import Progress, Search
from fedveil.planning.plan import Plan
from fedveil.planning.proxy import proxy_of
from fedveil.planning.recommend import check_hope
from fedveil.planning.rehearsal import Rehearsals, clips_gradients
from fedveil.planning.space import Candidate, Space
from fedveil.planning.spending import remaining
from fedveil.planning.trials import Trials
from fedveil.privacy.sampling import Balanced, Everyone, RoundRobin
from fedveil.recipe import Recipe

_CHENG_PENALTY, _CHENG_SPARSITY, _LIANG_SMOOTHING = 0.4, 0.7, 1.0  # the methods' own defaults


def prepare(
    recipe: Recipe,
    *,
    proxy: str | None = None,
    records: int | None = None,
    max_steps: int | None = None,
    spent_epsilon: float = 0.0,
    spent_delta: float = 0.0,
    seconds: float = 60.0,
    journal: Path | None = None,
    show: Callable[[Progress], None] = lambda progress: None,
) -> Search:
    """A pilot search for a recipe, ready for `findings`. Refuses a budget that cannot work.

    proxy: public source, public file or `synthetic`; None is the recipe's own source, if public.
    records: of a client, if publicly known. max_steps: largest total of local steps.
    spent_epsilon, spent_delta: used up on the same clients before. journal: keeps the trials.
    """
    if recipe.privacy.epsilon is None:
        raise BadInput("privacy.epsilon: a plan needs a budget")
    federation = federation_of(recipe.data)
    real = plan_of(recipe, federation)
    if spent_epsilon or spent_delta:
        recipe = _with_what_is_left(recipe, real, spent_epsilon, spent_delta)
        real = plan_of(recipe, federation)
    public = proxy_of(recipe, proxy, federation, records)
    sizes = sizes_looked_at(recipe, real, records)
    public = replace(public, looked_at=(*public.looked_at, *sizes))
    rehearsals = Rehearsals(recipe, real, public)
    space = space_of(rehearsals, local_steps_of(recipe, real, records), max_steps)
    check_hope(rehearsals, space.base, space.most_steps)
    about = {
        "recipe": recipes.to_table(recipe),
        "proxy": rehearsals.proxy.source,
        "most_steps": space.most_steps,
    }
    epsilon = recipe.privacy.epsilon or 0.0
    trials = Trials(journal, about)
    return Search(rehearsals, space, epsilon, seconds, trials=trials, show=show)


def _with_what_is_left(recipe: Recipe, plan: Plan, spent: float, spent_delta: float) -> Recipe:
    """The recipe with the budget that earlier releases have left over."""
    if plan.guarantee is None or recipe.privacy.epsilon is None:
        raise BadInput(f"training.method: {plan.method.name!r} adds no noise, so nothing to plan")
    epsilon, delta = remaining(recipe.privacy.epsilon, plan.guarantee.delta, spent, spent_delta)
    return replace(recipe, privacy=replace(recipe.privacy, epsilon=epsilon, delta=delta))


def space_of(rehearsals: Rehearsals, local_steps: int, most_steps: int | None = None) -> Space:
    """The settings around a recipe's own; `most_steps` bounds their total (its own by default).

    Smoothing is searched where the method smooths; BLUR's penalty and LUS's sparsity where it has
    them; the server's learning rate where its optimiser is adaptive, for else the clients' does
    the same.
    """
    recipe, real = rehearsals.recipe, rehearsals.real
    training, server, method = recipe.training, recipe.server, recipe.training.method
    everyone = isinstance(real.sampling, Everyone)
    base = Candidate(
        local_steps,
        real.method.rounds,
        training.learning_rate,
        recipe.privacy.clip_norm,
        None if everyone else max(1, round(real.sampling.expected_cohort)),
        server.learning_rate if server.optimizer != "sgd" else None,
        (server.smoothing or _LIANG_SMOOTHING)
        if server.smoothing or method == "dp-fed-ls"
        else None,
        _own(training.penalty, _CHENG_PENALTY if method == "cheng" else None),
        _own(training.sparsity, _CHENG_SPARSITY if method == "cheng" else None),
    )
    fixed = set()
    if method == "dp-sgd":
        fixed.add("local_steps")
    if real.method.voting is not None:
        fixed |= {"total", "clip_norm"}
    if recipe.privacy.clip_quantile is not None:
        fixed.add("clip_norm")  # it finds its own
    return Space(
        base,
        base.total_steps if most_steps is None else most_steps,
        rehearsals.everyone,
        rehearsals.reach(),
        clips_gradients(real.method),
        frozenset(fixed),
        isinstance(real.sampling, RoundRobin | Balanced),
    )


def _own(value: float | None, usual: float | None) -> float | None:
    return usual if value is None else value
