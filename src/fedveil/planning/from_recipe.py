"""Planning questions out of a recipe: its population, model and budget, and a proxy's constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.assemble import federation_of, plan_of
from fedveil.data.federation import Federation
from fedveil.errors import BadInput
from fedveil.methods.protection import Noise
from fedveil.planning.advice import Advice, advise
from fedveil.planning.bounds import FuBound, Score
from fedveil.planning.constants import LossConstants, estimate
from fedveil.planning.iterations import Iterations, best_rounds_within, every_divisor
from fedveil.planning.plan import Plan
from fedveil.planning.proxy import proxy_of
from fedveil.planning.rehearsal import clips_gradients
from fedveil.planning.spending import remaining
from fedveil.privacy.accounting import Setting
from fedveil.privacy.units import Arithmetic, Trust, Unit
from fedveil.recipe import Recipe

_SLACK = 1.25  # times the best score that a cheaper choice may have


@dataclass(frozen=True)
class Situation:
    """What a recipe fixes before the numbers of steps and rounds are chosen."""

    recipe: Recipe
    plan: Plan
    setting: Setting
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
    if recipe.privacy.epsilon is None:
        raise BadInput("privacy.epsilon: a plan needs a budget")
    plan = plan_of(recipe, federation_of(recipe.data))
    if plan.setting is None or plan.guarantee is None:
        raise BadInput(f"training.method: {plan.method.name!r} adds no noise, so nothing to plan")
    if whole_clients and plan.setting.unit is not Unit.CLIENT:
        raise BadInput(
            f"training.method: {plan.method.name!r} protects records, and this bound is about "
            "methods that protect whole clients; --score hu is about records, and --pilot "
            "searches any method"
        )
    epsilon, delta = remaining(
        recipe.privacy.epsilon, plan.guarantee.delta, spent_epsilon, spent_delta
    )
    setting = replace(plan.setting, arithmetic=Arithmetic.IDEALISED)
    return Situation(recipe, plan, setting, local_steps_of(recipe, plan, records), epsilon, delta)


def public_constants(
    recipe: Recipe, proxy: str | None, federation: Federation, records: int | None = None
) -> tuple[LossConstants, tuple[str, ...]]:
    """Constants from the named proxy, and what was looked at; by default the recipe's own source.

    A recipe that trains on a file is taken to be private: a proxy must be named.
    """
    if proxy is None and recipe.data.file is not None:
        raise BadInput(
            f"--proxy: {recipe.data.file} is private, so no constants may be measured on it; "
            "name a public source (fedveil data list), or give --mu, --lambda, "
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
    return FuBound(
        loss.strong_convexity,
        loss.smoothness,
        loss.gradient_bound,
        loss.heterogeneity,
        loss.initial_distance,
        situation.clients,
        situation.cohort,
        noise_constant=math.exp(constant),
        growth=float(np.clip(growth, 0, 2)),
        noise_curve=curve,
    )


@dataclass(frozen=True)
class Proposal:
    """A choice worth making, and why."""

    name: str
    local_steps: int
    rounds: int
    epsilon: float
    bound: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__dataclass_fields__}


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
    advice = advise(whole, **limits)
    total = advice.chosen.total_steps
    if local_steps is not None and total_steps is None:
        best, why = advice.chosen, f"the lowest score of all runs of {local_steps} local steps"
        cheap = best_rounds_within(whole, best, _SLACK)
    else:
        best, why = advice.best, f"the lowest score of all ways to split {total} steps into rounds"
        cheap = _cheaper(whole, best, total)
    half = advise(score(0.5), **limits)
    private = half.chosen if local_steps is not None and total_steps is None else half.best
    fewer = "the fewest rounds of all choices whose score is at most a quarter larger"
    none = "no choice has fewer rounds at a score at most a quarter larger"
    return advice, (
        _proposal("recommended", best, situation.epsilon, why),
        _proposal(
            "more private",
            private,
            situation.epsilon / 2,
            f"half of the budget; the score is {private.bound / best.bound:.3g} times as large",
        ),
        _proposal("cheaper", cheap, situation.epsilon, fewer if cheap != best else none),
    )


def _proposal(name: str, choice: Iterations, epsilon: float, reason: str) -> Proposal:
    return Proposal(name, choice.local_steps, choice.rounds, epsilon, choice.bound, reason)


def recipe_with(situation: Situation, proposal: Proposal) -> Recipe:
    """The recipe with the proposal's local steps, rounds and budget.

    A clip of whole updates goes along with the number of local steps, as the bound takes it to do.
    """
    recipe = situation.recipe
    training = replace(
        recipe.training,
        local_steps=proposal.local_steps,
        local_epochs=None,
        rounds=proposal.rounds,
    )
    clip = recipe.privacy.clip_norm
    if not clips_gradients(situation.plan.method):
        clip *= proposal.local_steps / situation.local_steps
    privacy = replace(
        recipe.privacy, epsilon=proposal.epsilon, noise_multiplier=None, clip_norm=clip
    )
    return replace(recipe, training=training, privacy=privacy)


def _cheaper(score: Score, best: Iterations, total_steps: int) -> Iterations:
    fine = [c for c in every_divisor(score, total_steps) if c.bound <= _SLACK * best.bound]
    return min(fine, key=lambda choice: choice.rounds)


def _variance(
    situation: Situation, loss: LossConstants, rounds: int, budget_factor: float
) -> float:
    recipe, plan = situation.recipe, situation.plan
    budget = replace(
        recipe.privacy,
        epsilon=budget_factor * situation.epsilon,
        delta=situation.delta,
        arithmetic=str(Arithmetic.IDEALISED),
    )
    changed = replace(recipe, training=replace(recipe.training, rounds=rounds), privacy=budget)
    noise = plan_of(changed, plan.federation).noise_multiplier or 0.0
    reach = recipe.privacy.clip_norm if clips_gradients(plan.method) else loss.gradient_bound
    law = 2 if recipe.privacy.noise == Noise.LAPLACE else 1  # variance over the squared scale
    alone = situation.setting.trust is Trust.LOCAL
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
        raise BadInput(
            "--records: how many records a client has is private, and the number of steps of an "
            "epoch depends on it; give a number known from elsewhere, or set training.local_steps"
        )
    return round(len(plan.federation.train) / plan.federation.clients)
