"""Calibration: the answer keeps to the budget, and a little less noise would not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import account
from fedveil.privacy.calibration import (
    calibrate_mechanism,
    calibrate_noise,
    calibrate_rate,
    calibrate_rounds,
)
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Mechanism,
    NoisyVotes,
)
from fedveil.privacy.monotone_search import largest_at_most, least_at_most
from fedveil.privacy.refusals import AmplificationRefused, DeltaRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
)
from fedveil.privacy.tuning import AllRuns, RandomRuns

ADDED = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
SHARED = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED)
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
SUM = DiscreteGaussianSum(1.0, 1 / 1024, 1.0, 100, 4096)


def epsilon_of(
    mechanism: Mechanism, sampling: Sampling, rounds: int, privacy_model: PrivacyModel, delta: float
) -> float:
    return account(
        [Release(mechanism, sampling, rounds)], privacy_model=privacy_model, delta=delta
    ).epsilon


CASES: list[tuple[float, float, Sampling, int, PrivacyModel]] = [
    (4.0, 1e-5, Poisson(0.01), 1000, ADDED),
    (0.5, 1e-6, Poisson(0.05), 100, ADDED),
    (30.0, 1e-5, Poisson(0.5), 200, ADDED),
    (1.0, 1e-5, Poisson(1e-3), 50, ADDED),
    (2.0, 1e-4, FixedSize(2000, 100), 100, REPLACED),
    (3.0, 1e-5, CappedPoisson(3400, 0.04, 180), 100, ADDED),
    (8.0, 1e-5, Everyone(), 10, SHARED),
    (8.0, 1e-5, Everyone(), 10, LOCAL),
    (2.0, 1e-3, RoundRobin(100, 7), 31, SHARED),
    (2.0, 1e-3, Balanced(100, 7, 31), 31, SHARED),
    (5.0, 1e-5, Everyone(50), 20, replace(SHARED, colluders=25)),
]


@pytest.mark.parametrize(("epsilon", "delta", "sampling", "rounds", "privacy_model"), CASES)
def test_noise_is_within_a_thousandth_of_the_least(
    epsilon: float, delta: float, sampling: Sampling, rounds: int, privacy_model: PrivacyModel
) -> None:
    found = calibrate_noise(
        epsilon=epsilon, delta=delta, sampling=sampling, rounds=rounds, privacy_model=privacy_model
    )
    assert epsilon_of(found, sampling, rounds, privacy_model, delta) <= epsilon
    less = Gaussian(found.noise_multiplier * 0.999)
    assert epsilon_of(less, sampling, rounds, privacy_model, delta) > epsilon


@settings(deadline=None, derandomize=True, max_examples=8)
@given(
    st.floats(0.05, 40),
    st.sampled_from([1e-4, 1e-6, 1e-9]),
    st.floats(1e-3, 1),
    st.integers(1, 3000),
)
def test_any_poisson_budget_is_met_and_nearly_used(
    epsilon: float, delta: float, rate: float, rounds: int
) -> None:
    question = {"sampling": Poisson(rate), "rounds": rounds, "privacy_model": ADDED, "delta": delta}
    found = calibrate_noise(epsilon=epsilon, **question)  # type: ignore[arg-type]
    assert epsilon_of(found, **question) <= epsilon  # type: ignore[arg-type]
    less = Gaussian(found.noise_multiplier * 0.999)
    assert epsilon_of(less, **question) > epsilon  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0.01, 1, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_unsampled_noise_is_the_closed_form(epsilon: float, delta: float) -> None:
    found = calibrate_noise(
        epsilon=epsilon, delta=delta, sampling=Everyone(), rounds=9, privacy_model=LOCAL
    )
    truth = 2 * 3 * gaussian_noise(epsilon, delta)
    assert truth <= found.noise_multiplier * (1 + 1e-9)
    assert found.noise_multiplier <= truth * 1.001


def test_other_mechanisms() -> None:
    question = {"epsilon": 2.0, "sampling": Everyone(100), "rounds": 10}
    pure = calibrate_mechanism(Laplace, delta=0, privacy_model=LOCAL, **question)  # type: ignore[arg-type]
    assert pure.scale_multiplier == pytest.approx(10, rel=1e-3)
    assert epsilon_of(pure, Everyone(100), 10, LOCAL, 0) <= 2.0
    single = calibrate_mechanism(
        DiscreteGaussian, delta=1e-5, privacy_model=LOCAL, **question  # type: ignore[arg-type]
    )  # fmt: skip
    assert 1.999 <= epsilon_of(single, Everyone(100), 10, LOCAL, 1e-5) <= 2.0
    shares = calibrate_mechanism(
        lambda std: replace(SUM, share_std=std),
        delta=1e-5,
        privacy_model=SHARED,
        **question,  # type: ignore[arg-type]
    )
    assert 1.999 <= epsilon_of(shares, Everyone(100), 10, SHARED, 1e-5) <= 2.0
    votes = calibrate_mechanism(NoisyVotes, delta=1e-5, privacy_model=SHARED, **question)  # type: ignore[arg-type]
    assert 1.999 <= epsilon_of(votes, Everyone(100), 10, SHARED, 1e-5) <= 2.0
    amplified = calibrate_mechanism(
        DiscreteGaussian,
        epsilon=2.0,
        delta=1e-5,
        sampling=Poisson(0.01),
        rounds=100,
        privacy_model=ADDED,
    )
    assert 1.99 <= epsilon_of(amplified, Poisson(0.01), 100, ADDED, 1e-5) <= 2.0


def test_other_releases_and_tuning_are_part_of_the_budget() -> None:
    metric = Release(Gaussian(20.0), Everyone(), 50)
    question = {"epsilon": 3.0, "delta": 1e-5, "sampling": Poisson(0.02), "rounds": 50}
    plain = calibrate_noise(privacy_model=ADDED, **question)  # type: ignore[arg-type]
    beside = calibrate_noise(privacy_model=ADDED, also=[metric], **question)  # type: ignore[arg-type]
    model = Release(beside, Poisson(0.02), 50)
    both = account([model, metric], privacy_model=ADDED, delta=1e-5).epsilon
    assert 2.99 <= both <= 3.0
    assert beside.noise_multiplier > plain.noise_multiplier
    tuned = calibrate_noise(privacy_model=ADDED, tuning=AllRuns(5), **question)  # type: ignore[arg-type]
    lucky = calibrate_noise(privacy_model=ADDED, tuning=RandomRuns(5), **question)  # type: ignore[arg-type]
    for found, tuning in ((tuned, AllRuns(5)), (lucky, RandomRuns(5))):
        release = [Release(found, Poisson(0.02), 50)]
        cost = account(release, privacy_model=ADDED, delta=1e-5, tuning=tuning).epsilon
        assert 2.99 <= cost <= 3.0
        assert found.noise_multiplier > plain.noise_multiplier


@pytest.mark.parametrize(
    ("epsilon", "mechanism", "sampling", "privacy_model"),
    [
        (4.0, Gaussian(1.1), Poisson(0.01), ADDED),
        (4.0, Gaussian(2.2), FixedSize(10_000, 100), REPLACED),
        (4.0, Gaussian(4.0), RoundRobin(100, 10), SHARED),
        (4.0, Gaussian(4.0), Balanced(100, 10, 1), SHARED),
        (4.0, Laplace(7.0), Everyone(), LOCAL),
        (1.0, Gaussian(60.0), Everyone(), LOCAL),
    ],
)
def test_rounds_are_the_most_that_fit(
    epsilon: float, mechanism: Mechanism, sampling: Sampling, privacy_model: PrivacyModel
) -> None:
    rounds = calibrate_rounds(
        epsilon=epsilon,
        delta=1e-5,
        sampling=sampling,
        mechanism=mechanism,
        privacy_model=privacy_model,
    )

    def cost(n: int) -> float:
        cohorts = replace(sampling, rounds=n) if isinstance(sampling, Balanced) else sampling
        return epsilon_of(mechanism, cohorts, n, privacy_model, 1e-5)

    assert cost(rounds) <= epsilon < cost(rounds + 1)


def test_rates_are_the_largest_that_fit() -> None:
    question = {"epsilon": 2.0, "delta": 1e-5, "rounds": 200, "mechanism": Gaussian(1.2)}
    poisson = calibrate_rate(sampling=Poisson(0.5), privacy_model=ADDED, **question)  # type: ignore[arg-type]
    assert isinstance(poisson, Poisson)
    assert epsilon_of(Gaussian(1.2), poisson, 200, ADDED, 1e-5) <= 2.0
    more = Poisson(poisson.rate * 1.001)
    assert epsilon_of(Gaussian(1.2), more, 200, ADDED, 1e-5) > 2.0
    fixed = calibrate_rate(
        sampling=FixedSize(10_000, 1), privacy_model=REPLACED, **question  # type: ignore[arg-type]
    )  # fmt: skip
    assert isinstance(fixed, FixedSize)
    assert epsilon_of(Gaussian(1.2), fixed, 200, REPLACED, 1e-5) <= 2.0
    larger = FixedSize(10_000, fixed.cohort + 1)
    assert epsilon_of(Gaussian(1.2), larger, 200, REPLACED, 1e-5) > 2.0
    robin = calibrate_rate(
        epsilon=2.0,
        delta=1e-3,
        rounds=200,
        sampling=RoundRobin(100, 1),
        mechanism=Gaussian(5.0),
        privacy_model=SHARED,
    )
    assert isinstance(robin, RoundRobin)
    assert epsilon_of(Gaussian(5.0), robin, 200, SHARED, 1e-3) <= 2.0
    plenty = calibrate_rate(
        epsilon=50,
        delta=1e-5,
        rounds=2,
        sampling=Poisson(0.1),
        mechanism=Gaussian(5),
        privacy_model=ADDED,
    )
    assert plenty == Poisson(1.0)


def test_budgets_that_buy_nothing_are_refused() -> None:
    question = {"delta": 1e-5, "sampling": Poisson(0.9), "privacy_model": ADDED}
    with pytest.raises(ConfigError, match="single round"):
        calibrate_rounds(epsilon=0.1, mechanism=Gaussian(0.5), **question)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no amount of noise"):
        calibrate_noise(epsilon=1, delta=0, sampling=Everyone(), rounds=3, privacy_model=LOCAL)
    with pytest.raises(ConfigError, match="cohort of one"):
        calibrate_rate(
            epsilon=0.01,
            delta=1e-5,
            sampling=FixedSize(20, 1),
            rounds=900,
            mechanism=Gaussian(0.3),
            privacy_model=REPLACED,
        )
    with pytest.raises(ConfigError, match="everyone"):
        calibrate_rate(
            epsilon=1,
            delta=1e-5,
            sampling=Everyone(),
            rounds=9,
            mechanism=Gaussian(0.3),
            privacy_model=LOCAL,
        )
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="epsilon"):
            calibrate_noise(epsilon=bad, rounds=3, **question)  # type: ignore[arg-type]
    with pytest.raises(AmplificationRefused):
        calibrate_noise(
            epsilon=1, delta=1e-5, sampling=Poisson(0.1), rounds=3, privacy_model=SHARED
        )
    with pytest.raises(DeltaRefused):
        calibrate_noise(
            epsilon=1, delta=0.1, sampling=Poisson(0.1, 50), rounds=3, privacy_model=ADDED
        )


def test_root_is_approached_from_the_safe_side() -> None:
    for power in (0.3, 1.0, 4.0):
        for target in (1e-6, 1.0, 1e6):
            asked: list[float] = []

            def cost(x: float, power: float = power, asked: list[float] = asked) -> float:
                asked.append(x)
                return float(x**-power)

            found = least_at_most(cost, target, 1.0)
            truth = target ** (-1 / power)
            if truth < 1e-9 or truth > 1e15:
                continue
            assert found is not None
            assert truth <= found * (1 + 1e-12)
            assert found <= truth * 1.0003
            assert len(asked) < 40
    assert least_at_most(lambda x: 5.0, 1.0, 3.0) is None
    assert least_at_most(lambda x: 0.5, 1.0, 3.0) == pytest.approx(1e-9)
    assert least_at_most(lambda x: math.inf if x < 7 else 0.0, 1.0, 1.0) == pytest.approx(
        7, rel=1e-3
    )


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("target", [1.0, 7.3, 1000.0])
def test_largest_whole_number_is_exact_and_found_in_few_steps(power: float, target: float) -> None:
    asked: list[int] = []

    def cost(n: int) -> float:
        asked.append(n)
        return float(n**power)

    found = largest_at_most(cost, target, 10**9)
    assert found is not None
    assert found**power <= target < (found + 1) ** power
    assert len(asked) < 40
    assert largest_at_most(cost, target, 1) == 1
    assert largest_at_most(lambda n: 0.0, target, 12345) == 12345
    assert largest_at_most(lambda n: math.inf, target, 10) is None
