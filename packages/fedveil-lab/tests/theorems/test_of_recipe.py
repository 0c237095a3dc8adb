"""What a theorem says about a recipe: the accountant's noise, and each paper by its method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil_lab.theorems.constants import LossConstants
from fedveil_lab.theorems.of_recipe import score_of_recipe, theorem_of

near = pytest.approx
LOSS = LossConstants(1, 4, 1.5, 0.1, 1, 1, 1, "here")


def planned(*assignments: str) -> tuple[Recipe, Plan]:
    table = {"rounds": 12, "sampling": "everyone", "local_steps": 2, "learning_rate": 0.02}
    given = {"seed": 1, "training": table, "privacy": {"epsilon": 4.0, "clip_norm": 0.8}}
    recipe = recipes.with_defaults(recipes.parse(given, assignments))
    return recipe, plan_of(recipe, federation_of(recipe.data))


def test_noise_of_the_score_is_the_accountants() -> None:
    """Everybody every round, a trusted server: exact Gaussian, no sampling."""
    recipe, plan = planned()
    score = score_of_recipe("fu", recipe, plan, LOSS, 24, 8)
    sigma = gaussian_mechanism.get_sigma_gaussian(4, plan.guarantee.delta)
    unit = 4 * plan.layout.size * (1.5 * sigma / plan.federation.clients) ** 2
    for rounds, value in score.noise_curve:
        assert value == near(unit * rounds, rel=3e-3)
    assert score.growth == near(1.0, abs=0.01)

    few = tuple((at, 1e-9 * variance) for at, variance in score.noise_curve)
    quiet = replace(score, noise_curve=few)

    def noise_part(steps: float, rounds: float) -> float:
        at = np.array([steps]), np.array([rounds])
        return float((score(*at) - quiet(*at))[0])

    # A hundred times beyond the last pair of the curve.
    assert noise_part(1, 2400) == near(4 * 2400 * unit * 2400 / (2400 + 31) ** 2, rel=0.02)
    assert noise_part(4, 6) == near(noise_part(1, 24), rel=0.02)  # z = 1: the split is no matter


def test_cheng_is_asked_about_his_method() -> None:
    """Corollary 1: 1/(eta E T) + (eta E)^2 + eta/b + eta E T d ln(1/delta)/(N epsilon)^2."""
    recipe, plan = planned("training.method=bounded-sparse")
    found = theorem_of(recipe, plan, plan.federation, [(1, 24), (2, 12)], 8)
    rate, clients = 0.02, plan.federation.clients
    noise = plan.layout.size * np.log(1 / plan.guarantee.delta) / (clients * 4.0) ** 2
    expected = 1 / (rate * 24) + rate**2 + rate / clients + rate * 24 * noise
    assert found.choices[0].bound == near(expected, rel=1e-6)
    assert "heuristic" in found.heuristic
    assert min(found.times_worse) >= 1


def test_a_choice_is_compared_with_the_best_split_of_the_same_steps() -> None:
    laplace = ("training.method=client-noise", "training.sampling=round-robin", "training.rate=1.0")
    recipe, plan = planned(*laplace, "privacy.noise=laplace", "privacy.delta=0.0")
    splits = [(e, 24 // e) for e in (1, 2, 3, 4, 6, 8, 12, 24)]
    found = theorem_of(recipe, plan, plan.federation, splits, 8)
    assert found.theorem.startswith("Fu")
    assert not found.heuristic
    assert found.best == min(found.choices, key=lambda choice: choice.bound)
    assert (
        found.to_dict()["times_worse"][splits.index((found.best.local_steps, found.best.rounds))]
        == 1
    )


@pytest.mark.parametrize("method", ["dp-sgd", "fedavg"])
def test_no_theorem_is_about_other_recipes(method: str) -> None:
    change = [f"training.method={method}"]
    given = {
        "seed": 1,
        "training": {"rounds": 4},
        "privacy": {} if method == "fedavg" else {"epsilon": 4.0},
    }
    recipe = recipes.with_defaults(recipes.parse(given, change))
    plan = plan_of(recipe, federation_of(recipe.data))
    assert theorem_of(recipe, plan, plan.federation, [(1, 4)], 8) is None
