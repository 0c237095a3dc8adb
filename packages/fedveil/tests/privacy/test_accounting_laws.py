"""Laws of epsilon: it never falls when less is hidden or more is shown."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.fixed_size import FixedSizeGaussianStep
from fedveil.privacy.accountants.laplace import LaplaceStep
from fedveil.privacy.accountants.pld import interval, pld_epsilon
from fedveil.privacy.accountants.poisson_gaussian import PoissonGaussianStep
from fedveil.privacy.accounting import account, fast_epsilon
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Mechanism,
    Zcdp,
    joint_noise_multiplier,
    quantile_noise_multiplier,
)
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

# Rounding of a Fourier transform may move epsilon by less than this.
SLACK = 1 + 1e-6
LAWS = settings(deadline=None, derandomize=True, max_examples=10)

noises = st.floats(0.3, 8.0)
rates = st.floats(1e-3, 0.6)
rounds_ = st.integers(1, 400)
deltas = st.sampled_from([1e-3, 1e-5, 1e-7])

ADDED = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
SHARED = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED)


def cost(
    noise: float, sampling: Sampling, rounds: int, privacy_model: PrivacyModel, delta: float
) -> float:
    return fast_epsilon(
        [Release(Gaussian(noise), sampling, rounds)], privacy_model=privacy_model, delta=delta
    )


def fixed(rate: float) -> FixedSize:
    return FixedSize(10_000, max(1, round(10_000 * rate)))


@LAWS
@given(noises, rates, rounds_, st.floats(1.0001, 1.6), st.integers(1, 300), deltas)
def test_epsilon_never_falls_when_more_is_shown(noise, rate, rounds, factor, more, delta):
    """More rounds, less noise, a larger rate, a smaller delta."""
    delta = min(delta, 9e-5)
    for sampling, larger, model in (
        (Poisson(rate), Poisson(rate * factor), ADDED),
        (fixed(rate), fixed(min(1.0, rate * factor)), REPLACED),
        (Everyone(), Everyone(), LOCAL),
    ):
        least = cost(noise, sampling, rounds, model, delta)
        assert cost(noise, sampling, rounds + more, model, delta) * SLACK >= least
        assert cost(noise / factor, sampling, rounds, model, delta) * SLACK >= least
        assert cost(noise, larger, rounds, model, delta) * SLACK >= least
        assert cost(noise, sampling, rounds, model, delta / 100) * SLACK >= least


@LAWS
@given(noises, rounds_, st.integers(0, 40), st.integers(1, 50))
def test_more_colluders_never_cost_less(noise, rounds, colluders, more):
    for sampling, model in ((Everyone(100), SHARED), (FixedSize(2000, 50), REPLACED)):
        few, many = (
            cost(noise, sampling, rounds, replace(model, colluders=one), 4e-4)
            for one in (colluders, colluders + more)
        )
        assert many * SLACK >= few


@LAWS
@given(noises, rates, rounds_, noises, rates, st.integers(1, 60))
def test_one_release_more_never_costs_less(noise, rate, rounds, other, other_rate, more):
    """Heterogeneous rounds: also when the new release has a much finer or coarser grid."""
    first = Release(Gaussian(noise), Poisson(rate), rounds)
    second = Release(Gaussian(other), Poisson(other_rate), more)
    third = Release(Laplace(10 * other), Everyone(), more)
    alone = fast_epsilon([first], privacy_model=ADDED, delta=1e-5)
    two = fast_epsilon([first, second], privacy_model=ADDED, delta=1e-5)
    three = fast_epsilon([first, second, third], privacy_model=ADDED, delta=1e-5)
    assert alone <= two * SLACK
    assert two <= three * SLACK
    longer = replace(second, rounds=more + 17)
    assert two <= fast_epsilon([first, longer], privacy_model=ADDED, delta=1e-5) * SLACK


@pytest.mark.parametrize("noise", [0.6, 1.0, 3.0])
def test_along_a_fine_path_epsilon_never_turns_back(noise):
    """Across every change of the grid: 40 rates and noises in small steps."""
    rates = np.geomspace(5e-3, 0.9, 40)
    by_rate = [pld_epsilon([PoissonGaussianStep(noise, q, 50)], 1e-5) or 0 for q in rates]
    assert all(a <= b * SLACK for a, b in pairwise(by_rate))
    noises = np.geomspace(noise, 20 * noise, 40)
    by_noise = [pld_epsilon([FixedSizeGaussianStep(z, 0.02, 50)], 1e-5) or 0 for z in noises]
    assert all(a * SLACK >= b for a, b in pairwise(by_noise))


@pytest.mark.parametrize(
    ("step", "delta"),
    [
        (PoissonGaussianStep(z, q, n), d)
        for z, q, n, d in [
            (1.0, 1e-4, 1000, 1e-5),
            (0.5, 1e-3, 1000, 1e-8),
            (2.0, 0.01, 100, 1e-6),
            (1.0, 0.1, 3000, 1e-5),
            (8.0, 0.5, 2000, 1e-5),
            (0.4, 0.02, 10, 1e-5),
            (5.0, 1e-3, 100_000, 1e-6),
        ]
    ]
    + [(FixedSizeGaussianStep(1.0, 0.05, 200), 1e-4), (LaplaceStep(25.0, 1.0, 300), 1e-5)],
    ids=repr,
)
def test_halving_the_grid_moves_epsilon_by_less_than_a_percent(step, delta):
    from fedveil.privacy.accountants.loss_grid import epsilon_at, self_composed

    finer, times = step.losses(interval(step) / 2), step.composed
    pmfs = [finer._pmf_remove] if finer._symmetric else [finer._pmf_remove, finer._pmf_add]
    better = max(epsilon_at(self_composed(pmf, times, 1 << 26), 0.999 * delta) for pmf in pmfs)
    found = pld_epsilon([step], delta)
    assert better <= found * SLACK
    assert found <= 1.003 * better
    assert interval(step) >= 1e-5


def test_releases_from_the_same_cohort_are_composed_inside_the_sample():
    """Three uses of one cohort cost more than three independent cohorts, and equal joint noise."""
    sampling, noise = Poisson(0.01), 2.0
    same = account(
        [Release(Gaussian(noise), sampling, 100, uses=3)], privacy_model=ADDED, delta=1e-5
    )
    apart = account([Release(Gaussian(noise), sampling, 300)], privacy_model=ADDED, delta=1e-5)
    joint = Gaussian(joint_noise_multiplier(noise, noise, noise))
    merged_ = account([Release(joint, sampling, 100)], privacy_model=ADDED, delta=1e-5)
    assert same.epsilon > apart.epsilon
    assert same.epsilon == pytest.approx(merged_.epsilon, rel=1e-9)


def test_a_clip_quantile_adds_half_over_its_noise_to_mu_squared():
    z, bit_std = 1.5, 4.0
    joint = joint_noise_multiplier(z, quantile_noise_multiplier(bit_std))
    assert joint**-2 == pytest.approx(z**-2 + (0.5 / bit_std) ** 2)
    release = Release(Gaussian(joint), Everyone(), 9)
    for adjacency, factor in ((Adjacency.ZERO_OUT, 1), (Adjacency.REPLACE, 2)):
        privacy_model = PrivacyModel(Unit.CLIENT, adjacency, Trust.LOCAL)
        mu = factor * math.sqrt(9 * (z**-2 + (0.5 / bit_std) ** 2))
        from fedveil.privacy.accountants.exact import gaussian_epsilon

        found = account([release], privacy_model=privacy_model, delta=1e-5)
        assert found.epsilon == pytest.approx(gaussian_epsilon(1 / mu, 1e-5), rel=1e-9)


MECHANISMS: list[Mechanism] = [
    Gaussian(2.0),
    Laplace(5.0),
    DiscreteGaussian(2.0),
    Zcdp(0.1),
    DiscreteGaussianSum(1.0, 1 / 256, 0.3, 40, 1024),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
def test_replace_is_never_cheaper_than_zero_out(mechanism):
    trust = Trust.CENTRAL if isinstance(mechanism, DiscreteGaussianSum) else Trust.LOCAL
    release = Release(mechanism, RoundRobin(50, 5), 40)
    zero, replaced = (
        account(
            [release], privacy_model=PrivacyModel(Unit.CLIENT, adjacency, trust), delta=1e-5
        ).epsilon
        for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE)
    )
    assert zero <= replaced
    if not isinstance(mechanism, Zcdp):  # rho is stated for the adjacency in use
        assert zero < replaced


def test_schedules_charge_the_unluckiest_client():
    """7 rounds of 3 out of 10: somebody takes part three times, not 2.1."""
    for sampling in (RoundRobin(10, 3), Balanced(10, 3, 7)):
        scheduled = account(
            [Release(Gaussian(2.0), sampling, 7)], privacy_model=replace(SHARED), delta=1e-3
        )
        three = account([Release(Gaussian(2.0), Everyone(3), 3)], privacy_model=SHARED, delta=1e-3)
        assert scheduled.epsilon == three.epsilon
        assert scheduled.participations == 3


def test_a_cap_never_helps_the_client_and_hardly_hurts_far_above_the_mean():
    plain = fast_epsilon(
        [Release(Gaussian(1.348), Poisson(0.04), 100)], privacy_model=ADDED, delta=1e-5
    )
    costs = [
        fast_epsilon(
            [Release(Gaussian(1.348), CappedPoisson(3400, 0.04, cap), 100)],
            privacy_model=ADDED,
            delta=1e-5,
        )
        for cap in (140, 160, 180, 220)
    ]
    assert all(a >= b * (1 - 1e-6) for a, b in pairwise(costs))
    assert plain * (1 - 1e-6) <= costs[-1] <= plain * 1.001


def test_tuning_is_never_free():
    release = [Release(Gaussian(1.5), Poisson(0.02), 50)]
    once = account(release, privacy_model=ADDED, delta=1e-5)
    assert (
        account(release, privacy_model=ADDED, delta=1e-5, tuning=AllRuns(1)).epsilon == once.epsilon
    )
    few = account(release, privacy_model=ADDED, delta=1e-5, tuning=AllRuns(3)).epsilon
    many = account(release, privacy_model=ADDED, delta=1e-5, tuning=AllRuns(10)).epsilon
    assert once.epsilon < few < many
    random_few = account(release, privacy_model=ADDED, delta=1e-5, tuning=RandomRuns(3)).epsilon
    random_many = account(release, privacy_model=ADDED, delta=1e-5, tuning=RandomRuns(30)).epsilon
    assert once.epsilon < random_few < random_many
    thirty = account(release, privacy_model=ADDED, delta=1e-5, tuning=AllRuns(30)).epsilon
    assert random_many < thirty


@pytest.mark.parametrize("cohort", [1.05, 1.5, 1.9, 10.9])
def test_honest_shares_are_a_part_of_the_cohort_that_is_expected(cohort):
    """Each brings 1 / sqrt(cohort) of the noise, whether or not the cohort is a whole number."""
    sampling = Poisson(cohort / 100, 100)
    privacy_model = PrivacyModel(
        Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED, honest_shares=1
    )
    found = account(
        [Release(Gaussian(4.0), sampling, 3, participations=3)],
        privacy_model=privacy_model,
        delta=1e-5,
    )
    alone = [Release(Gaussian(4.0 / math.sqrt(cohort)), Everyone(), 3)]
    local = replace(privacy_model, trust=Trust.LOCAL, honest_shares=None)
    assert found.epsilon == pytest.approx(account(alone, privacy_model=local, delta=1e-5).epsilon)
