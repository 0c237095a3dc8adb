"""Calibration: the answer keeps to the budget, and a little less noise would not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedveil as fv
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.calibration import calibrate_mechanism
from fedveil.privacy.mechanisms import NoisyVotes
from fedveil.privacy.monotone_search import largest_at_most, least_at_most
from fedveil.privacy.refusals import AmplificationRefused, DeltaRefused
from fedveil.privacy.tuning import AllRuns, RandomRuns

ADDED = fv.PrivacyModel("client", "add-remove", "central")
REPLACED = fv.PrivacyModel("client", "replace", "central")
SHARED = fv.PrivacyModel("client", "zero-out", "distributed")
LOCAL = fv.PrivacyModel("client", "replace", "local")
SUM = fv.DiscreteGaussianSum(1.0, 1 / 1024, 1.0, 100, 4096)


def epsilon_of(mechanism, sampling, rounds, privacy_model, delta) -> float:
    release = fv.Release(mechanism, sampling, rounds)
    return fv.account([release], privacy_model=privacy_model, delta=delta).epsilon


def is_least(epsilon, **ask) -> bool:
    """Calibrate; whether the noise keeps to the budget, and a thousandth less would not."""
    found = fv.calibrate_noise(epsilon=epsilon, **ask).noise_multiplier
    used, beyond = (epsilon_of(fv.Gaussian(z), **ask) for z in (found, 0.999 * found))
    return used <= epsilon < beyond


CASES = [
    (4.0, 1e-5, fv.Poisson(0.01), 1000, ADDED),
    (0.5, 1e-6, fv.Poisson(0.05), 100, ADDED),
    (30.0, 1e-5, fv.Poisson(0.5), 200, ADDED),
    (1.0, 1e-5, fv.Poisson(1e-3), 50, ADDED),
    (2.0, 1e-4, fv.FixedSize(2000, 100), 100, REPLACED),
    (3.0, 1e-5, fv.CappedPoisson(3400, 0.04, 180), 100, ADDED),
    (8.0, 1e-5, fv.Everyone(), 10, SHARED),
    (8.0, 1e-5, fv.Everyone(), 10, LOCAL),
    (2.0, 1e-3, fv.RoundRobin(100, 7), 31, SHARED),
    (2.0, 1e-3, fv.Balanced(100, 7, 31), 31, SHARED),
    (5.0, 1e-5, fv.Everyone(50), 20, replace(SHARED, colluders=25)),
]


@pytest.mark.parametrize(("epsilon", "delta", "sampling", "rounds", "model"), CASES)
def test_noise_is_within_a_thousandth_of_the_least(epsilon, delta, sampling, rounds, model):
    assert is_least(epsilon, delta=delta, sampling=sampling, rounds=rounds, privacy_model=model)


@settings(deadline=None, derandomize=True, max_examples=4)
@given(
    st.floats(0.05, 40),
    st.sampled_from([1e-4, 1e-6, 1e-9]),
    st.floats(1e-3, 1),
    st.integers(1, 3000),
)
def test_any_poisson_budget_is_met_and_nearly_used(epsilon, delta, rate, rounds):
    sampling = fv.Poisson(rate)
    assert is_least(epsilon, delta=delta, sampling=sampling, rounds=rounds, privacy_model=ADDED)


@pytest.mark.parametrize("epsilon", [0.01, 1, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_unsampled_noise_is_the_closed_form(epsilon, delta):
    ask = {"sampling": fv.Everyone(), "rounds": 9, "privacy_model": LOCAL}
    found = fv.calibrate_noise(epsilon=epsilon, delta=delta, **ask).noise_multiplier
    truth = 2 * 3 * gaussian_noise(epsilon, delta)
    assert truth * (1 - 1e-9) <= found <= truth * 1.001


@pytest.mark.parametrize(
    ("make", "delta", "sampling", "model"),
    [
        (fv.Laplace, 0, fv.Everyone(100), LOCAL),
        (fv.DiscreteGaussian, 1e-5, fv.Everyone(100), LOCAL),
        (lambda std: replace(SUM, share_std=std), 1e-5, fv.Everyone(100), SHARED),
        (NoisyVotes, 1e-5, fv.Everyone(100), SHARED),
        (fv.DiscreteGaussian, 1e-5, fv.Poisson(0.01), ADDED),
    ],
)
def test_other_mechanisms(make, delta, sampling, model):
    ask = {"sampling": sampling, "rounds": 10, "privacy_model": model, "delta": delta}
    found = calibrate_mechanism(make, epsilon=2.0, **ask)
    assert 1.99 <= epsilon_of(found, **ask) <= 2.0
    if make is fv.Laplace:
        assert found.scale_multiplier == pytest.approx(10, rel=1e-3)


def test_other_releases_and_tuning_are_part_of_the_budget():
    metric = fv.Release(fv.Gaussian(20.0), fv.Everyone(), 50)
    ask = {"epsilon": 3.0, "sampling": fv.Poisson(0.02), "rounds": 50}
    how = {"privacy_model": ADDED, "delta": 1e-5}
    plain = fv.calibrate_noise(**ask, **how).noise_multiplier
    for also, tuning in (([metric], None), ([], AllRuns(5)), ([], RandomRuns(5))):
        found = fv.calibrate_noise(**ask, **how, also=also, tuning=tuning)
        releases = [fv.Release(found, fv.Poisson(0.02), 50), *also]
        assert 2.99 <= fv.account(releases, **how, tuning=tuning).epsilon <= 3.0
        assert found.noise_multiplier > plain


@pytest.mark.parametrize(
    ("epsilon", "mechanism", "sampling", "model"),
    [
        (4.0, fv.Gaussian(1.1), fv.Poisson(0.01), ADDED),
        (4.0, fv.Gaussian(2.2), fv.FixedSize(10_000, 100), REPLACED),
        (4.0, fv.Gaussian(4.0), fv.RoundRobin(100, 10), SHARED),
        (4.0, fv.Gaussian(4.0), fv.Balanced(100, 10, 1), SHARED),
        (4.0, fv.Laplace(7.0), fv.Everyone(), LOCAL),
        (1.0, fv.Gaussian(60.0), fv.Everyone(), LOCAL),
    ],
)
def test_rounds_are_the_most_that_fit(epsilon, mechanism, sampling, model):
    ask = {"sampling": sampling, "mechanism": mechanism, "privacy_model": model}
    rounds = fv.calibrate_rounds(epsilon=epsilon, delta=1e-5, **ask)

    def cost(n):
        cohorts = replace(sampling, rounds=n) if isinstance(sampling, fv.Balanced) else sampling
        return epsilon_of(mechanism, cohorts, n, model, 1e-5)

    assert cost(rounds) <= epsilon < cost(rounds + 1)


def test_rates_are_the_largest_that_fit():
    def found(sampling, model, noise=1.2, delta=1e-5, epsilon=2.0, rounds=200):
        ask = {"rounds": rounds, "mechanism": fv.Gaussian(noise), "privacy_model": model}
        return fv.calibrate_rate(sampling=sampling, epsilon=epsilon, delta=delta, **ask)

    rate = found(fv.Poisson(0.5), ADDED).rate
    for one, fits in ((fv.Poisson(rate), True), (fv.Poisson(rate * 1.001), False)):
        assert (epsilon_of(fv.Gaussian(1.2), one, 200, ADDED, 1e-5) <= 2.0) is fits
    cohort = found(fv.FixedSize(10_000, 1), REPLACED).cohort
    for size, fits in ((cohort, True), (cohort + 1, False)):
        drawn = fv.FixedSize(10_000, size)
        assert (epsilon_of(fv.Gaussian(1.2), drawn, 200, REPLACED, 1e-5) <= 2.0) is fits
    robin = found(fv.RoundRobin(100, 1), SHARED, noise=5.0, delta=1e-3)
    assert isinstance(robin, fv.RoundRobin)
    assert epsilon_of(fv.Gaussian(5.0), robin, 200, SHARED, 1e-3) <= 2.0
    assert found(fv.Poisson(0.1), ADDED, noise=5, epsilon=50, rounds=2) == fv.Poisson(1.0)


NOISE, ROUNDS, RATE = fv.calibrate_noise, fv.calibrate_rounds, fv.calibrate_rate
FAINT = {"mechanism": fv.Gaussian(0.3)}
OFTEN = {"sampling": fv.Poisson(0.9), "privacy_model": ADDED}


@pytest.mark.parametrize(
    ("find", "ask", "kind", "key"),
    [
        (ROUNDS, {**OFTEN, **FAINT, "epsilon": 0.1}, fv.ConfigError, "epsilon"),
        (NOISE, {**OFTEN, "rounds": 3, "delta": 0}, fv.ConfigError, "epsilon"),
        (
            RATE,
            {**FAINT, "sampling": fv.FixedSize(20, 1), "privacy_model": REPLACED, "rounds": 900},
            *(fv.ConfigError, "epsilon"),
        ),
        (
            RATE,
            {**FAINT, "sampling": fv.Everyone(), "privacy_model": LOCAL, "rounds": 9},
            *(fv.ConfigError, "sampling"),
        ),
        *(
            (NOISE, {**OFTEN, "rounds": 3, "epsilon": bad}, fv.ConfigError, "epsilon")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        (NOISE, {**OFTEN, "rounds": 3, "privacy_model": "all"}, fv.ConfigError, "privacy_model"),
        (NOISE, {**OFTEN, "rounds": 3, "delta": -0.1}, fv.ConfigError, "delta"),
        (NOISE, {**OFTEN, "rounds": 3, "privacy_model": SHARED}, AmplificationRefused, "trust"),
        (
            NOISE,
            {**OFTEN, "rounds": 3, "sampling": fv.Poisson(0.1, 50), "delta": 0.1},
            *(DeltaRefused, "delta"),
        ),
    ],
)
def test_budgets_that_buy_nothing_are_refused(find, ask, kind, key):
    with pytest.raises(kind, match=key):
        find(**{"epsilon": 0.1, "delta": 1e-5} | ask)


def test_root_is_approached_from_the_safe_side():
    for power in (0.3, 1.0, 4.0):
        for target in (1e-6, 1.0, 1e6):
            asked = []

            def cost(x, power=power, asked=asked):
                asked.append(x)
                return float(x**-power)

            found, truth = least_at_most(cost, target, 1.0), target ** (-1 / power)
            if 1e-9 <= truth <= 1e15:
                assert truth * (1 - 1e-12) <= found <= truth * 1.0003
                assert len(asked) < 40
    assert least_at_most(lambda x: 5.0, 1.0, 3.0) is None
    assert least_at_most(lambda x: 0.5, 1.0, 3.0) == pytest.approx(1e-9)
    steep = least_at_most(lambda x: math.inf if x < 7 else 0.0, 1.0, 1.0)
    assert steep == pytest.approx(7, rel=1e-3)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("target", [1.0, 7.3, 1000.0])
def test_largest_whole_number_is_exact_and_found_in_few_steps(power, target):
    asked = []

    def cost(n):
        asked.append(n)
        return float(n**power)

    found = largest_at_most(cost, target, 10**9)
    assert found**power <= target < (found + 1) ** power
    assert len(asked) < 40
    assert largest_at_most(cost, target, 1) == 1
    assert largest_at_most(lambda n: 0.0, target, 12345) == 12345
    assert largest_at_most(lambda n: math.inf, target, 10) is None


def test_short_numbers_of_other_libraries_cost_no_digits():
    ask = {"sampling": fv.Everyone(), "rounds": 9, "privacy_model": LOCAL}
    short, plain = (
        fv.calibrate_noise(epsilon=one(2.5), delta=one(2.0**-20), **ask)
        for one in (np.float32, float)
    )
    assert short == plain
    assert type(short.noise_multiplier) is float
