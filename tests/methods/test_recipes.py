"""Every shipped recipe plans, and trains to a sensible accuracy on the embedded digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveil.config import recipe as recipes
from fedveil.config.assemble import federation_of, plan_of
from fedveil.methods.registry import METHODS
from fedveil.run.run import Run

RECIPES = Path(__file__).parents[2] / "src" / "fedveil" / "recipes"

# Reached with margin by seeds 0..4; chance is 0.1. Local noise costs what it costs.
LEAST = dict.fromkeys(METHODS, 0.85) | {
    "client-noise": 0.55,
    "gradient-noise": 0.8,
    "ae-dpfl": 0.8,
    "mix": 0.85,
}


def test_there_is_a_recipe_for_every_method() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} >= set(METHODS)


@pytest.mark.parametrize("name", LEAST)
def test_recipes_reach_a_sensible_accuracy(name: str) -> None:
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table, (), {"seed": 0}))
    plan = plan_of(recipe, federation_of(recipe.data))
    metrics = Run(plan, every=plan.method.rounds).finish()
    assert metrics.accuracy is not None
    assert metrics.accuracy >= LEAST[name]
    if plan.guarantee is not None:
        assert recipe.privacy.epsilon is not None
        assert plan.guarantee.epsilon <= recipe.privacy.epsilon


PRIVATE = [name for name in LEAST if name == "mix" or METHODS[name].private]


@pytest.mark.parametrize("name", PRIVATE)
def test_without_a_seed_recipes_are_certified_or_say_why_not(name: str) -> None:
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table))
    plan = plan_of(recipe, federation_of(recipe.data))
    assert plan.protected
    assert plan.guarantee is not None
    if (
        name == "gradient-noise"
    ):  # its certificate is about real numbers, its steps are in floating point
        assert "floating point" in plan.guarantee.reason
    else:
        assert plan.guarantee.certified, plan.guarantee.reason


@pytest.mark.parametrize("name", PRIVATE)
def test_every_private_recipe_has_a_baseline_without_privacy(name: str) -> None:
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table, (), {"seed": 0}))
    plain = recipes.without_privacy(recipe)
    assert plan_of(plain, federation_of(plain.data)).guarantee is None


def test_laplace_noise_keeps_pure_privacy_and_learns() -> None:
    recipe = recipes.with_defaults(
        recipes.parse(recipes.read(RECIPES / "client-noise-laplace.toml"), (), {"seed": 0})
    )
    plan = plan_of(recipe, federation_of(recipe.data))
    assert plan.guarantee is not None
    assert (plan.guarantee.delta, plan.guarantee.accountant) == (0.0, "pure")
    run = Run(plan, every=2)
    before = run.evaluate().loss
    assert run.finish().loss < before / 3  # the best possible is about a sixteenth
