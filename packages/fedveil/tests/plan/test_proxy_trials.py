"""Trials: the real run's noise, whatever their size; the real run itself, where they are alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from tests.plan.searches import small_recipe, trials_of

from fedveil.core.randomness import Randomness
from fedveil.planning.assemble import federation_of, method_of, plan_of
from fedveil.planning.plan import Budget, quick_noise
from fedveil.run.run import Run
from fedveil.run.sums import update_sum
from fedveil.tune import trials as proxy_trials
from fedveil.tune.proxy import Proxy
from fedveil.tune.space import space_of
from fedveil.tune.trials import (
    Candidate,
    OutOfTime,
    ProxyTrials,
    Trial,
    recipe_with_settings,
    trial_plan,
)

SOME = {"training__rate": 0.5}
LOCAL = {"training__method": "client-noise", "training__sampling": "balanced", **SOME}


def on_the_real_data(recipe: Any) -> ProxyTrials:
    federation = federation_of(recipe.data)
    return ProxyTrials(recipe, plan_of(recipe, federation), Proxy(federation, "itself"))


@pytest.mark.parametrize(
    "changes", [{}, {"training__sampling": "poisson", **SOME}], ids=["everyone", "poisson"]
)
def test_a_trial_with_all_clients_is_the_run(changes: dict[str, Any]) -> None:
    recipe = small_recipe(**changes)
    trial = Trial(Candidate(2, 8, 1.0, 1.0), 8.0, 1.0, seed=3)
    outcome = on_the_real_data(recipe)(trial)
    run = Run(plan_of(replace(recipe, seed=3), federation_of(recipe.data)))
    metrics = run.finish()
    assert (outcome.loss, outcome.accuracy) == (metrics.loss, metrics.accuracy)
    assert outcome.error == 1 - metrics.accuracy


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({}, False),
        ({"training__sampling": "fixed", **SOME}, False),
        ({"training__sampling": "balanced", "privacy__trust": "distributed", **SOME}, False),
        (LOCAL, True),
        ({**LOCAL, "privacy__noise": "laplace"}, True),
    ],
    ids=["central", "fixed", "shares", "local", "laplace"],
)
def test_noise_on_the_average_does_not_depend_on_the_trials_size(
    changes: dict[str, Any], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_trials, "_ROUND", 0.0)  # as if clients of this size cost something
    recipe = small_recipe(**changes, training__rounds=16)
    trials = trials_of(recipe)
    real = trials.real
    cohort = round(real.sampling.expected_cohort)
    candidate = Candidate(2, 16, 1.0, 1.0, None if cohort == 60 else cohort)

    def noise(plan: Any) -> float:
        cohort = plan.sampling.expected_cohort
        return plan.noise_multiplier / (math.sqrt(cohort) if alone else cohort)

    for share in (1.0, 1 / 3):
        smaller = trials.plan(Trial(candidate, 8.0, share, seed=0))
        assert noise(smaller) == pytest.approx(noise(real), rel=1e-6)
    assert smaller.sampling.expected_cohort == round(cohort / 3)
    half = trials.plan(Trial(candidate, 8.0, 1.0, seed=0, noise=0.5))
    assert noise(half) == pytest.approx(noise(real) / 2, rel=1e-6)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_one_draw_has_the_law_of_all_clients_draws(noise: str) -> None:
    """Kolmogorov-Smirnov on 1e5 coordinates; chance of a false alarm 1e-4 (seeds fixed)."""
    recipe = small_recipe(**LOCAL, privacy__noise=noise)
    federation = federation_of(recipe.data)
    plain, quick = plan_of(recipe, federation), trial_plan(recipe, federation, 1.0, seed=1)
    nothing, cohort = torch.zeros(100_000), np.arange(3)
    usual = replace(quick, method=replace(quick.method, placement=plain.method.placement))
    slow, fast = (
        update_sum(one, 0, cohort, Randomness(1), {}).protect(nothing, cohort)
        for one in (usual, quick)
    )
    assert quick.method.placement.one_draw
    assert ks_2samp(slow.numpy(), fast.numpy()).pvalue > 1e-4
    narrow = fast / 1.05  # the test would notice 5 % less noise
    assert ks_2samp(slow.numpy(), narrow.numpy()).pvalue < 1e-4


@pytest.mark.parametrize(
    "changes",
    [{}, {"training__sampling": "poisson", **SOME}, LOCAL, {**LOCAL, "privacy__noise": "laplace"}],
    ids=["everyone", "poisson", "local", "laplace"],
)
def test_quick_noise_is_the_plans(changes: dict[str, Any]) -> None:
    trials = trials_of(small_recipe(**changes))
    other = small_recipe(**changes, training__rounds=23, privacy__clip_norm=3.0)
    exact = plan_of(other, trials.real.federation).noise_multiplier
    found = quick_noise(method_of(other), trials.real, Budget(other.privacy.epsilon))
    assert found == pytest.approx(exact, rel=1e-3)


def test_a_method_under_a_secure_sum_can_be_tried() -> None:
    """Hu's recipe on Adult in small: nobody's sum is hidden in a trial."""
    secure = {"aggregation__secure": "ideal", "model__input_norm": 3.0, "training__batch_size": 4}
    changes = {"training__method": "gradient-noise", "training__sampling": "balanced", **SOME}
    outcome = trials_of(small_recipe(**changes, **secure))(
        Trial(Candidate(2, 4, 0.3, 1.0, 30), 8.0, 1.0, 0)
    )
    assert math.isfinite(outcome.loss)


def test_a_deadline_ends_a_trial() -> None:
    trials = trials_of(small_recipe())
    with pytest.raises(OutOfTime):
        trials(Trial(Candidate(2, 8, 1.0, 1.0), 8.0, 1.0, 0), deadline=0.0)


SECRET = {
    "training__method": "dp-sgd",
    "training__local_steps": 1,
    "training__batch_size": 2,
    "privacy__epsilon": 2.0,
}


def test_trials_have_the_noise_of_secret_batches() -> None:
    """They were calibrated as if batches were shuffled, which takes several times the noise."""
    recipe = small_recipe(**SECRET)
    trials = trials_of(recipe)
    assert trials.real.method.local.batch_rate == pytest.approx(2 / 8)
    assert trials.noise(recipe) == pytest.approx(trials.real.noise_multiplier, rel=1e-3)
    space = space_of(trials, 1)
    trial = Trial(space.base, 2.0, 1.0, 0)
    assert trials.plan(trial).method.local.batch_rate == pytest.approx(2 / 8)
    whole = space.candidate({**space.start, "batch_size": 6.0})
    assert whole.batch_size == 8  # all records, and no more
    assert trials.noise(recipe_with_settings(recipe, whole)) > trials.noise(recipe)
    planned = plan_of(recipe_with_settings(recipe, whole), trials.real.federation)
    assert planned.method.local.batch_rate == 1.0
    assert planned.guarantee.adjacency is trials.real.guarantee.adjacency
