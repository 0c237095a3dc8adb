"""What a paper's theorem says about a recipe and about settings for it.

It stands beside the advice of `fedveil plan`, which is found by simulation, and never decides: a
bound for the worst case with measured constants may prefer what trains badly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.core.units import Arithmetic, Trust, Unit
from fedveil.data.federation import Federation
from fedveil.methods.parts.from_recipe import clip_norm
from fedveil.methods.parts.noise_placement import Noise
from fedveil.planning.assemble import plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.tune.trials import clips_gradients
from fedveil_lab.theorems.bounds import ChengScore, FuBound, HuScore, Score
from fedveil_lab.theorems.constants import LossConstants, estimate
from fedveil_lab.theorems.iterations import Iterations, best, score_of

PAPERS = {
    "fu": "Fu et al., Theorem 3",
    "hu": "Hu et al., Theorem 2",
    "cheng": "Cheng et al., Corollary 1",
}


@dataclass(frozen=True)
class TheoremSays:
    """A theorem's scores of some choices of local steps and rounds.

    Attributes:
        theorem: The paper and the statement.
        heuristic: Why it is only a heuristic; empty for a bound.
        best: The choice that it likes best, at the total steps of the first choice.
        choices: The choices that were asked about, with their scores.
    """

    theorem: str
    heuristic: str
    best: Iterations
    choices: tuple[Iterations, ...]

    @property
    def times_worse(self) -> list[float]:
        """Return the score of every choice over the best one's."""
        return [choice.bound / self.best.bound for choice in self.choices]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "theorem": self.theorem,
            "heuristic": self.heuristic or None,
            "best": vars(self.best),
            "choices": [vars(choice) for choice in self.choices],
            "times_worse": self.times_worse,
        }


def theorem_of(
    recipe: Recipe,
    plan: Plan,
    public: Federation,
    choices: Sequence[tuple[int, int]],
    records: int,
) -> TheoremSays | None:
    """Ask the theorem of the paper whose method a recipe uses, or Fu's, about some choices.

    Args:
        recipe: The recipe.
        plan: Its plan, with a guarantee.
        public: Public data, on which the loss's constants are measured.
        choices: Pairs of local steps and rounds.
        records: Records of a client.

    Returns:
        What it says, or None if no theorem is about such a recipe.

    Raises:
        ConfigError: The constants cannot be measured, or the theorem's conditions do not hold.
    """
    if plan.privacy_model is None or plan.guarantee is None or plan.method.voting:
        return None
    paper = {"gradient-noise": "hu", "bounded-sparse": "cheng"}.get(recipe.training.method, "fu")
    if paper != "hu" and plan.privacy_model.unit is not Unit.CLIENT:
        return None
    if paper != "fu" and plan.guarantee.delta == 0:
        return None
    loss, total = estimate(public), max(steps * rounds for steps, rounds in choices)
    score = score_of_recipe(paper, recipe, plan, loss, total, records)
    steps, rounds = choices[0]
    return TheoremSays(
        PAPERS[paper],
        score.heuristic,
        best(score, total_steps=steps * rounds),
        tuple(score_of(score, *choice) for choice in choices),
    )


def score_of_recipe(
    paper: str, recipe: Recipe, plan: Plan, loss: LossConstants, total_steps: int, records: int
) -> Score:
    """Return a paper's score for the recipe's budget, population and model.

    Args:
        paper: `fu`, `hu` or `cheng`.
        recipe: The recipe.
        plan: Its plan, with a guarantee.
        loss: Constants of the loss.
        total_steps: Largest total of local steps that will be asked about.
        records: Records of a client, for Hu.
    """
    if paper == "fu":
        return _fu(recipe, plan, loss, total_steps)
    training = recipe.training
    delta = plan.guarantee.delta if plan.guarantee is not None else 0.0
    size, clients = plan.layout.size, plan.sampling.clients or plan.federation.clients
    cohort, epsilon = _cohort(plan), recipe.privacy.epsilon or 0.0
    if paper == "cheng":
        rates = training.learning_rate, recipe.server.learning_rate
        return ChengScore(*rates, size, clients, cohort, epsilon, delta)
    batch = min(records, training.batch_size or records)
    return HuScore(
        loss.initial_gap,
        training.learning_rate,
        loss.smoothness,
        loss.gradient_variance,
        loss.gradient_bound,
        batch,
        records,
        size,
        clients,
        cohort,
        epsilon,
        delta,
    )


def _fu(recipe: Recipe, plan: Plan, loss: LossConstants, total_steps: int) -> FuBound:
    """Return Fu's bound for the recipe's own trust and sampling, noise read from the accountant.

    Updates are taken to be clipped where `local_steps` gradients of the bounded norm can reach (or
    of the clip itself, where gradients are clipped), so a round's averaged noise has variance
    (eta*E)^2 times `4 * d * G^2 * z(rounds)^2 / cohort^2`, twice that for Laplace noise, and over
    `cohort` alone where every client adds the noise by itself.
    """
    anchors = np.unique(np.geomspace(1, max(2, total_steps), 5).round().astype(int))
    curve = tuple((float(rounds), _variance(recipe, plan, loss, int(rounds))) for rounds in anchors)
    logs = np.log(np.array(curve))
    growth, constant = np.polyfit(logs[:, 0], logs[:, 1], 1)
    run = plan.sampling.clients or plan.federation.clients, _cohort(plan)
    noise = math.exp(constant), float(np.clip(growth, 0, 2))
    return FuBound(*loss.for_fu, *run, *noise, noise_curve=curve)


def _variance(recipe: Recipe, plan: Plan, loss: LossConstants, rounds: int) -> float:
    ideal = replace(recipe.privacy, arithmetic=str(Arithmetic.IDEALISED))
    changed = replace(recipe, training=replace(recipe.training, rounds=rounds), privacy=ideal)
    noise = plan_of(changed, plan.federation).noise_multiplier or 0.0
    reach = clip_norm(recipe) if clips_gradients(plan.method) else loss.gradient_bound
    law = 2 if recipe.privacy.noise == Noise.LAPLACE else 1  # variance over the squared scale
    alone = plan.privacy_model is not None and plan.privacy_model.trust is Trust.LOCAL
    averaging = _cohort(plan) if alone else _cohort(plan) ** 2
    return float(4 * law * plan.layout.size * (reach * noise) ** 2 / averaging)


def _cohort(plan: Plan) -> int:
    return max(1, round(plan.sampling.expected_cohort))
