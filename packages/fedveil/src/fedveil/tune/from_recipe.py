"""Planning questions out of a recipe: its population, model and budget, and a proxy's constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.core.units import Arithmetic, Trust, Unit
from fedveil.data.federation import Federation
from fedveil.methods.parts.from_recipe import clip_norm
from fedveil.methods.parts.noise_placement import Noise
from fedveil.methods.registry import METHODS
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.tune.bounds import ChengScore, FuBound, HuScore, Score
from fedveil.tune.constants import LossConstants, estimate
from fedveil.tune.iterations import Advice, advise, best_rounds_within, every_divisor
from fedveil.tune.proxy import proxy_of
from fedveil.tune.spending import remaining
from fedveil.tune.trials import clips_gradients

_SLACK = 1.25  # times the best score that a cheaper choice may have


@dataclass(frozen=True)
class Situation:
    """What a recipe fixes before the numbers of steps and rounds are chosen."""

    recipe: Recipe
    plan: Plan
    local_steps: int
    epsilon: float
    delta: float

    @property
    def clients(self) -> int:
        """As declared, or counted where nothing was declared."""
        return self.plan.sampling.clients or self.plan.federation.clients

    @property
    def cohort(self) -> int:
        return max(1, round(self.plan.sampling.expected_cohort))

    @property
    def dimension(self) -> int:
        return self.plan.layout.size

    @property
    def rounds(self) -> int:
        return self.plan.method.rounds

    @property
    def total_steps(self) -> int:
        return self.local_steps * self.rounds


def refuse_without_noise(recipe: Recipe) -> None:
    """Refuse recipes whose method adds no noise: there is no budget to spend.

    Raises:
        ConfigError: The method is not private.
    """
    if not METHODS[recipe.training.method].private:
        raise ConfigError(
            f"training.method: {recipe.training.method!r} adds no noise, so there is nothing to "
            "plan"
        )


def situation_of(
    recipe: Recipe,
    spent_epsilon: float = 0.0,
    spent_delta: float = 0.0,
    records: int | None = None,
    *,
    whole_clients: bool = True,
) -> Situation:
    """The recipe as it would run. Of its data only the number of clients and the shape of inputs
    are used; how many `records` a client has is private where clients are protected.

    whole_clients: refuse recipes that protect single records, which most scores are not about."""
    refuse_without_noise(recipe)
    if recipe.privacy.epsilon is None:
        raise ConfigError("privacy.epsilon: set the budget to plan for")
    plan = plan_of(recipe, federation_of(recipe.data))
    if plan.privacy_model is None or plan.guarantee is None:
        raise ConfigError(
            f"training.method: {plan.method.name!r} adds no noise, so there is nothing to plan"
        )
    if whole_clients:
        check_whole_clients(plan)
    delta, spent = plan.guarantee.delta, (spent_epsilon, spent_delta)
    left = remaining(recipe.privacy.epsilon, delta, *spent)
    return Situation(recipe, plan, local_steps_of(recipe, plan, records), *left)


def check_whole_clients(plan: Plan) -> None:
    if plan.privacy_model is not None and plan.privacy_model.unit is not Unit.CLIENT:
        raise ConfigError(
            f"training.method: {plan.method.name!r} protects records, and this bound is about "
            "methods that protect whole clients; --score hu is about records, and --pilot "
            "searches any method"
        )


def public_constants(
    recipe: Recipe, proxy: str | None, federation: Federation, records: int | None = None
) -> tuple[LossConstants, tuple[str, ...]]:
    """Constants from the named proxy, and what was looked at; by default the recipe's own source.

    A recipe that trains on a file is taken to be private: a proxy must be named.
    """
    if proxy is None and recipe.data.file is not None:
        raise ConfigError(
            f"--proxy: {recipe.data.file} is private, so no constants may be measured on it; "
            "name a public source (fedveil data list), or give --strong-convexity, --smoothness, "
            "--gradient-bound, --heterogeneity and --initial-distance"
        )
    if recipe.data.file is None and proxy in (None, recipe.data.source):
        return estimate(federation), (recipe.data.source,)
    named = proxy_of(recipe, proxy, federation, records)
    return estimate(named.federation), named.looked_at


def score_of_recipe(
    situation: Situation, loss: LossConstants, *, budget_factor: float = 1.0
) -> FuBound:
    """Fu's bound for the recipe's own trust and sampling, its noise read from the accountant.

    Updates are taken to be clipped where `local_steps` gradients of the bounded norm can reach (or
    of the clip itself, where gradients are clipped), so a round's averaged noise has variance
    (eta*E)^2 times `4 * d * G^2 * z(rounds)^2 / cohort^2`, twice that for Laplace noise, and over
    `cohort` alone where every client adds the noise by itself.
    """
    most = max(2, situation.total_steps)
    anchors = np.unique(np.geomspace(1, most, 5).round().astype(int))
    curve = tuple((float(t), _variance(situation, loss, int(t), budget_factor)) for t in anchors)
    logs = np.log(np.array(curve))
    growth, constant = np.polyfit(logs[:, 0], logs[:, 1], 1)
    run = situation.clients, situation.cohort
    noise = math.exp(constant), float(np.clip(growth, 0, 2))
    return FuBound(*loss.for_fu, *run, *noise, noise_curve=curve)


def named_score(
    name: str,
    situation: Situation,
    loss: LossConstants,
    *,
    budget_factor: float = 1.0,
    records: int | None = None,
) -> Score:
    """The score `name` (fu, hu or cheng) for a recipe with this part of its budget.

    records: of a client, if publicly known; of a public source the average is.
    """
    if name == "fu":
        return score_of_recipe(situation, loss, budget_factor=budget_factor)
    if situation.delta == 0:
        raise ConfigError(f"--score {name}: needs Gaussian noise; set privacy.delta above 0")
    training, server = situation.recipe.training, situation.recipe.server
    budget = budget_factor * situation.epsilon, situation.delta
    run = situation.dimension, situation.clients, situation.cohort
    if name == "cheng":
        return ChengScore(training.learning_rate, server.learning_rate, *run, *budget)
    held = records_of(situation.recipe, situation.plan, records)
    measured = loss.smoothness, loss.gradient_variance, loss.gradient_bound
    batch = min(held, training.batch_size or held)
    return HuScore(loss.initial_gap, training.learning_rate, *measured, batch, held, *run, *budget)


@dataclass(frozen=True)
class Proposal:
    """A choice worth making, and why."""

    name: str
    local_steps: int
    rounds: int
    epsilon: float
    bound: float
    reason: str


def proposals(
    situation: Situation,
    score: Callable[[float], Score],
    *,
    total_steps: int | None = None,
    local_steps: int | None = None,
    max_steps: int | None = None,
) -> tuple[Advice, tuple[Proposal, ...]]:
    """One recommendation and two alternatives; `score` takes the part of the budget to spend.

    For the recipe's own total steps, unless a total, the local steps, or a largest total is given.
    """
    if total_steps is None and local_steps is None and max_steps is None:
        total_steps = situation.total_steps
    whole = score(1.0)
    limits = {"total_steps": total_steps, "local_steps": local_steps, "max_steps": max_steps}
    advice, half = advise(whole, **limits), advise(score(0.5), **limits)
    total = advice.chosen.total_steps
    if local_steps is not None and total_steps is None:
        best, private = advice.chosen, half.chosen
        why = f"the lowest score of all runs of {local_steps} local steps"
        cheap = best_rounds_within(whole, best, _SLACK)
    else:
        best, private = advice.best, half.best
        why = f"the lowest score of all ways to split {total} steps into rounds"
        fine = [c for c in every_divisor(whole, total) if c.bound <= _SLACK * best.bound]
        cheap = min(fine, key=lambda choice: choice.rounds)
    halved = f"half of the budget; the score is {private.bound / best.bound:.3g} times as large"
    fewer = "the fewest rounds of all choices whose score is at most a quarter larger"
    if cheap == best:
        fewer = "no choice has fewer rounds at a score at most a quarter larger"
    offered = (
        ("recommended", best, situation.epsilon, why),
        ("more private", private, situation.epsilon / 2, halved),
        ("cheaper", cheap, situation.epsilon, fewer),
    )
    return advice, tuple(
        Proposal(name, choice.local_steps, choice.rounds, epsilon, choice.bound, reason)
        for name, choice, epsilon, reason in offered
    )


def recipe_with(situation: Situation, proposal: Proposal) -> Recipe:
    """The recipe with the proposal's local steps, rounds and budget.

    A clip of whole updates goes along with the number of local steps, as the bound takes it to do.
    """
    recipe, steps, rounds = situation.recipe, proposal.local_steps, proposal.rounds
    training = replace(recipe.training, local_steps=steps, local_epochs=None, rounds=rounds)
    clip = clip_norm(recipe)
    if not clips_gradients(situation.plan.method):
        clip *= steps / situation.local_steps
    privacy = replace(recipe.privacy, epsilon=proposal.epsilon, clip_norm=clip)
    return replace(recipe, training=training, privacy=privacy)


def _variance(
    situation: Situation, loss: LossConstants, rounds: int, budget_factor: float
) -> float:
    recipe, plan = situation.recipe, situation.plan
    epsilon, ideal = budget_factor * situation.epsilon, str(Arithmetic.IDEALISED)
    budget = replace(recipe.privacy, epsilon=epsilon, delta=situation.delta, arithmetic=ideal)
    changed = replace(recipe, training=replace(recipe.training, rounds=rounds), privacy=budget)
    noise = plan_of(changed, plan.federation).noise_multiplier or 0.0
    reach = clip_norm(recipe) if clips_gradients(plan.method) else loss.gradient_bound
    law = 2 if recipe.privacy.noise == Noise.LAPLACE else 1  # variance over the squared scale
    alone = plan.privacy_model is not None and plan.privacy_model.trust is Trust.LOCAL
    averaging = situation.cohort if alone else situation.cohort**2
    return 4 * law * situation.dimension * (reach * noise) ** 2 / averaging


def local_steps_of(recipe: Recipe, plan: Plan, records: int | None = None) -> int:
    """Steps of a round; for epochs over batches, those of a client with this many records.

    Of a public source the average is known; of a file it is private and must be given.
    """
    local = plan.method.local
    if local.steps is not None:
        return local.steps
    epochs = local.epochs or 1
    if local.batch_size is None:
        return epochs
    return epochs * max(1, math.ceil(records_of(recipe, plan, records) / local.batch_size))


def sizes_looked_at(recipe: Recipe, plan: Plan, records: int | None = None) -> tuple[str, ...]:
    """The recipe's own source, if `local_steps_of` takes the sizes of its clients from it."""
    local = plan.method.local
    sized = local.steps is None and local.batch_size is not None and records is None
    return (recipe.data.source,) if sized and recipe.data.file is None else ()


def records_of(recipe: Recipe, plan: Plan, records: int | None = None) -> int:
    """Records of a client: as given, or the average of a public source; a file's are private."""
    if records is not None:
        return records
    if recipe.data.file is not None:
        raise ConfigError(
            "--records: how many records a client has is private, and the number of steps of an "
            "epoch depends on it; give a number known from elsewhere, or set training.local_steps"
        )
    return round(len(plan.federation.train) / plan.federation.clients)
