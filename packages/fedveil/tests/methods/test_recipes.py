"""Every shipped recipe plans, and trains to a sensible accuracy on the embedded digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.paths import SOURCES

import fedveil as fv
from fedveil.methods.recipes.sections import DataSection
from fedveil.methods.registry import METHODS, method_of
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, is_protected, plan_of

RECIPES = SOURCES[0] / "fedveil" / "methods" / "recipes"

# Reached with margin by seeds 0..4; chance is 0.1. Local noise costs what it costs.
LEAST = dict.fromkeys(METHODS, 0.85) | {
    "client-noise": 0.55,
    "gradient-noise": 0.8,
    "ae-dpfl": 0.8,
    "mix": 0.85,
}


def test_there_is_a_recipe_for_every_method():
    assert {path.stem for path in RECIPES.glob("*.toml")} >= set(METHODS)


SLOW = ("gradient-noise", "ddgauss", "mix", "ae-dpfl")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in LEAST]
)
def test_recipes_reach_a_sensible_accuracy(name):
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table, (), {"seed": 0}))
    plan = plan_of(recipe, federation_of(recipe.data))
    metrics = fv.Run(plan, every=plan.method.rounds).finish()
    assert metrics.accuracy >= LEAST[name]
    if plan.guarantee is not None:
        assert plan.guarantee.epsilon <= recipe.privacy.epsilon


PRIVATE = [name for name in LEAST if name == "mix" or METHODS[name].private]


@pytest.mark.parametrize("name", PRIVATE)
def test_without_a_seed_recipes_are_certified_or_say_why_not(name):
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table))
    plan = plan_of(recipe, federation_of(recipe.data))
    assert plan.protected
    if (
        name == "gradient-noise"
    ):  # its certificate is about real numbers, its steps are in floating point
        assert "floating point" in plan.guarantee.reason
    else:
        assert plan.guarantee.certified, plan.guarantee.reason


@pytest.mark.parametrize("name", PRIVATE)
def test_every_private_recipe_has_a_baseline_without_privacy(name):
    table = recipes.read(RECIPES / f"{name}.toml")
    recipe = recipes.with_defaults(recipes.parse(table, (), {"seed": 0}))
    plain = recipes.without_privacy(recipe)
    assert plan_of(plain, federation_of(plain.data)).guarantee is None


def test_laplace_noise_keeps_pure_privacy_and_learns():
    recipe = recipes.with_defaults(
        recipes.parse(recipes.read(RECIPES / "client-noise-laplace.toml"), (), {"seed": 0})
    )
    plan = plan_of(recipe, federation_of(recipe.data))
    assert (plan.guarantee.delta, plan.guarantee.accountant) == (0.0, "pure")
    run = fv.Run(plan, every=2)
    before = run.evaluate().loss
    assert run.finish().loss < before / 3  # the best possible is about a sixteenth


BEST = [name for name in recipes.shipped() if name.startswith("best/")]


@pytest.mark.parametrize("name", BEST)
def test_best_recipes_are_found_by_name_and_say_what_they_were_tuned_on(name):
    table = recipes.read(Path(name))
    assert table == recipes.read(Path(f"recipes/{name}.toml"))
    recipe = recipes.with_defaults(recipes.parse(table))
    assert recipe.seed is None
    assert recipe.privacy.tuned_on
    assert f"-epsilon-{recipe.privacy.epsilon:g}" in name


def test_a_best_recipe_is_certified_on_its_own_data():
    """Its settings come from elsewhere; with settings from the digits nothing is certified."""
    recipe = recipes.with_defaults(recipes.parse(recipes.read(Path("best/digits-epsilon-1"))))
    federation = federation_of(recipe.data)
    guarantee = plan_of(recipe, federation).guarantee
    assert not any("Settings" in sentence for sentence in guarantee.not_covered)
    assert any("by looking at mnist" in sentence for sentence in guarantee.rests_on)
    tried = replace(recipe, privacy=replace(recipe.privacy, tuned_on=("digits",)))
    guarantee = plan_of(tried, federation).guarantee
    assert any("the protected data" in sentence for sentence in guarantee.not_covered)


@pytest.mark.parametrize("name", ["mnist", "mnist-writers"])
def test_settings_from_the_same_images_under_another_name_are_from_the_protected_data(name):
    """MNIST dealt by writers is MNIST: what was tried out on the one was tried out on the other."""
    for source in ("mnist", "mnist-writers"):
        assert is_protected(DataSection(source=source), name)
    assert not is_protected(DataSection(source="femnist"), name)
    assert not is_protected(DataSection(source="digits"), "half of CIFAR-10's test images")


PAPERS = [name for name in recipes.shipped() if name.startswith("papers/")]


def test_every_method_of_a_paper_has_its_setting_as_a_recipe():
    methods = {recipes.read(recipes.shipped()[name])["training"]["method"] for name in PAPERS}
    assert methods == {"client-noise", "gradient-noise", "laplacian-smoothing", "bounded-sparse"}
    for name in PAPERS:
        method_of(recipes.with_defaults(recipes.parse(recipes.read(recipes.shipped()[name]))))


def test_a_papers_delta_is_for_simulations_and_warned_of():
    values = {"data.clients": 12, "privacy.delta": 5e-3, "privacy.noise_multiplier": 1.0}
    values |= {"training.rounds": 2}
    recipe = recipes.parse({}, (), {**values, "training.method": "dp-sgd", "seed": 1})
    federation = federation_of(recipe.data)
    assert len(federation.train) > 1 / 5e-3
    plan = plan_of(recipes.with_defaults(recipe), federation)
    assert not plan.guarantee.certified
    assert any("privacy.delta" in warning for warning in plan.warnings)
    with pytest.raises(fv.ConfigError, match=r"privacy\.delta"):
        plan_of(recipes.with_defaults(replace(recipe, seed=None)), federation)


def test_a_number_can_be_unset_and_another_trust_needs_no_second_key():
    table = recipes.read(recipes.shipped()["papers/hu-adult"])
    recipe = recipes.parse(table, ["model.input_norm=none", "privacy.trust=local"])
    assert (recipe.model.input_norm, recipe.aggregation.secure) == (None, None)
    assert recipes.parse(table).aggregation.secure == "ideal"
