"""Scores of a recipe's local steps and rounds by name: Fu's bound, or one of two heuristics."""

from __future__ import annotations

from fedveil.errors import BadInput
from fedveil.planning.bounds import ChengScore, HuScore, Score
from fedveil.planning.constants import LossConstants
from fedveil.planning.from_recipe import Situation, records_of, score_of_recipe

SCORES = ("fu", "hu", "cheng")


def named_score(
    name: str,
    situation: Situation,
    loss: LossConstants,
    *,
    budget_factor: float = 1.0,
    records: int | None = None,
) -> Score:
    """The score `name` for a recipe with this part of its budget.

    records: of a client, if publicly known; of a public source the average is.
    """
    if name not in SCORES:
        raise BadInput(f"score: need one of {', '.join(SCORES)}, got {name!r}")
    if name == "fu":
        return score_of_recipe(situation, loss, budget_factor=budget_factor)
    if situation.delta == 0:
        raise BadInput(f"--score {name}: is about Gaussian noise, and the recipe's delta is 0")
    training, epsilon = situation.recipe.training, budget_factor * situation.epsilon
    if name == "cheng":
        return ChengScore(
            training.learning_rate,
            situation.recipe.server.learning_rate,
            situation.dimension,
            situation.clients,
            situation.cohort,
            epsilon,
            situation.delta,
        )
    held = records_of(situation.recipe, situation.plan, records)
    return HuScore(
        initial_gap=loss.initial_gap,
        learning_rate=training.learning_rate,
        smoothness=loss.smoothness,
        gradient_variance=loss.gradient_variance,
        gradient_bound=loss.gradient_bound,
        batch_size=min(held, training.batch_size or held),
        records=held,
        dimension=situation.dimension,
        clients=situation.clients,
        cohort=situation.cohort,
        epsilon=epsilon,
        delta=situation.delta,
    )
