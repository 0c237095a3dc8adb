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

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Randomness
from fedveil.planning.assemble import federation_of, method_of, plan_of
from fedveil.planning.plan import Budget, quick_noise
from fedveil.run.run import Run
from fedveil.run.sums import update_sum
from fedveil.tune import trials as proxy_trials
from fedveil.tune.proxy import Proxy
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
    assert type(quick.method.placement) is not type(plain.method.placement)
    assert ks_2samp(slow.numpy(), fast.numpy()).pvalue > 1e-4
    narrow = fast / 1.05  # the test would notice 5 % less noise
    assert ks_2samp(slow.numpy(), narrow.numpy()).pvalue < 1e-4


def test_one_draw_of_shares_has_the_sums_deviation() -> None:
    """Std of 1e5 normal coordinates within 1.5 %, six standard errors."""
    changes = {"training__sampling": "balanced", "privacy__trust": "distributed", **SOME}
    recipe = small_recipe(**changes)
    quick = trial_plan(recipe, federation_of(recipe.data), 2.0, seed=1)
    cohort = np.arange(30)
    updates = update_sum(quick, 0, cohort, Randomness(1), {})
    drawn = updates.protect(torch.zeros(100_000), cohort)
    assert float(drawn.std()) == pytest.approx(2.0, rel=0.015)


def test_noise_between_calibrated_rounds_is_close() -> None:
    recipe = small_recipe(training__sampling="poisson", training__rate=0.2)
    trials = trials_of(recipe)
    odd = recipe_with_settings(recipe, Candidate(2, 23, 1.0, 1.0, 12))
    exact = plan_of(odd, trials.real.federation).noise_multiplier
    assert trials.noise(odd) == pytest.approx(exact, rel=0.01)
    assert trials.noise(odd, step=4) == pytest.approx(exact, rel=0.03)
    other = recipe_with_settings(recipe, Candidate(5, 23, 0.1, 3.0, 12))
    before = trials.calibrations
    assert trials.noise(other) == trials.noise(odd)  # neither steps, rate nor clip matter
    assert trials.calibrations == before


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


def test_clients_that_cost_nothing_all_take_part() -> None:
    """42 weights, 8 records: a round of 30 such clients is over before it has begun."""
    small = trials_of(small_recipe(training__sampling="poisson", **SOME))
    candidate = Candidate(2, 8, 1.0, 1.0, 30)
    assert small.share(candidate, 1 / 9) == 1.0
    large = trials_of(small_recipe(model__name="mlp", model__hidden=[2000], **SOME))
    assert large.share(candidate, 1 / 3) == 1 / 3


def test_a_method_under_a_secure_sum_can_be_tried() -> None:
    """Hu's recipe on Adult in small: nobody's sum is hidden in a trial."""
    secure = {"aggregation__secure": "ideal", "model__input_norm": 3.0, "training__batch_size": 4}
    changes = {"training__method": "gradient-noise", "training__sampling": "balanced", **SOME}
    outcome = trials_of(small_recipe(**changes, **secure))(
        Trial(Candidate(2, 4, 0.3, 1.0, 30), 8.0, 1.0, 0)
    )
    assert math.isfinite(outcome.loss)


def test_a_large_loss_is_a_result() -> None:
    """Under much noise all settings end far above the start, and must still be ranked."""
    recipe = small_recipe(**LOCAL, data__source="synthetic-linear", privacy__noise="laplace")
    few, many = (
        trials_of(recipe)(Trial(Candidate(1, rounds, 0.5, 50.0, 30), 0.5, 1.0, 0)).loss
        for rounds in (2, 8)
    )
    assert 1e3 < few < many < math.inf


def test_what_diverges_is_the_worst_of_all() -> None:
    recipe = small_recipe(data__source="synthetic-linear")
    outcome = trials_of(recipe)(Trial(Candidate(20, 8, 50.0, 1e6), 8.0, 1.0, 0))
    assert math.isinf(outcome.loss)
    assert math.isinf(outcome.error)


def test_settings_without_a_proof_are_no_candidates() -> None:
    """Fu's bound on an update does not hold with momentum."""
    recipe = small_recipe(**LOCAL)
    trials = trials_of(recipe)
    trials.recipe = replace(recipe, training=replace(recipe.training, momentum=0.9))
    assert math.isinf(trials(Trial(Candidate(2, 4, 1.0, 1.0, 30), 8.0, 1.0, 0)).loss)


def test_a_deadline_ends_a_trial() -> None:
    trials = trials_of(small_recipe())
    with pytest.raises(OutOfTime):
        trials(Trial(Candidate(2, 8, 1.0, 1.0), 8.0, 1.0, 0), deadline=0.0)


def test_the_trivial_answer_looks_at_no_input() -> None:
    trials = trials_of(small_recipe())
    targets = trials.proxy.federation.test.targets
    assert trials.trivial() == 1 - max(np.mean(targets == 0), np.mean(targets == 1))
    numbers = trials_of(small_recipe(data__source="synthetic-linear"))
    values = numbers.proxy.federation.test.targets.astype(float)
    assert numbers.trivial() == pytest.approx(np.mean((values - values.mean()) ** 2) / 2)


def test_reach_is_the_norm_of_a_first_gradient() -> None:
    """At the zero model: mean over a client's records of (1/2 - y) (x, 1), for each class."""
    for changes, order in ((LOCAL, 2), ({**LOCAL, "privacy__noise": "laplace"}, 1)):
        trials = trials_of(small_recipe(**changes))
        public = trials.proxy.federation
        norms = []
        for begin, end in zip(public.offsets[:-1], public.offsets[1:], strict=True):
            inputs = np.column_stack([public.train.inputs[begin:end], np.ones(end - begin)])
            errors = 0.5 - np.eye(2)[public.train.targets[begin:end]]
            norms.append(np.linalg.norm((inputs.T @ errors / len(inputs)).ravel(), order))
        assert trials.reach() == pytest.approx(float(np.median(norms)), rel=0.02)


def test_a_proxy_for_another_task_is_refused() -> None:
    recipe = small_recipe()
    federation = federation_of(recipe.data)
    numbers = federation_of(small_recipe(data__source="synthetic-linear").data)
    with pytest.raises(ConfigError, match="regression"):
        ProxyTrials(recipe, plan_of(recipe, federation), Proxy(numbers, "numbers"))
