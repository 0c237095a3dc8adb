"""Accountants against what they were not made from: integrals, attacks, the library, each other."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

from fedveil.privacy.accountants.capped_poisson import (
    CappedPoissonGaussianStep,
    ZeroedCappedPoissonGaussianStep,
    capped,
)
from fedveil.privacy.accountants.exact import gaussian_epsilon
from fedveil.privacy.accountants.fixed_size import (
    FixedSizeGaussianStep,
    fixed_size_curve,
    symmetrised,
)
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.laplace import LaplaceStep
from fedveil.privacy.accountants.loss_grid import epsilon_at, self_composed
from fedveil.privacy.accountants.pld import interval, pld_epsilon
from fedveil.privacy.accountants.poisson_gaussian import PoissonGaussianStep, poisson
from fedveil.privacy.accountants.rdp import composed_curve, rdp_epsilon
from fedveil.privacy.accountants.steps import MIXED, WHOLE
from fedveil.privacy.accountants.zcdp import ZcdpStep, poisson_sampled_curve

Floats = npt.NDArray[np.float64]


def densities(noise: float, rate: float, points: int = 400_001) -> tuple[Floats, Floats, float]:
    """log (1-q)N(0) + qN(1) and log N(0) on a fine grid, and its spacing."""
    x = np.linspace(-14 * noise - 1, 14 * noise + 2, points)
    base = norm.logpdf(x, scale=noise)
    mixed = np.logaddexp(math.log1p(-rate) + base, math.log(rate) + norm.logpdf(x, 1, noise))
    return mixed, base, float(x[1] - x[0])


def integrated_epsilon(noise: float, rate: float, delta: float) -> float:
    """Epsilon of one Poisson step by brute-force integration of the hockey-stick divergence."""
    mixed, base, width = densities(noise, rate)

    def divergence(epsilon: float, p: Floats, q: Floats) -> float:
        return float(np.sum(np.maximum(np.exp(p) - np.exp(epsilon + q), 0)) * width)

    def solve(p: Floats, q: Floats) -> float:
        if divergence(0.0, p, q) <= delta:
            return 0.0
        return float(brentq(lambda e: divergence(e, p, q) - delta, 0, 200, xtol=1e-9))

    return max(solve(mixed, base), solve(base, mixed))


@pytest.mark.parametrize(
    ("noise", "rate", "delta"),
    [(1.0, 0.05, 1e-3), (0.5, 0.01, 1e-5), (2.0, 0.3, 1e-5), (0.8, 0.9, 1e-7), (5.0, 0.5, 1e-6)],
)
def test_one_poisson_step_is_what_integration_gives(noise, rate, delta):
    truth = integrated_epsilon(noise, rate, delta)
    found = pld_epsilon([PoissonGaussianStep(noise, rate, 1)], delta)
    assert truth <= found <= 1.002 * truth + 1e-9


def test_three_poisson_steps_are_what_convolution_of_losses_gives():
    """Losses of three steps added up on a fine grid, rounded *down*: a lower bound."""
    noise, rate, delta, width = 1.0, 0.1, 1e-4, 1e-3
    mixed, base, spacing = densities(noise, rate)
    cells = np.floor((mixed - base) / width).astype(int)
    lowest = int(cells.min())
    one = np.bincount(cells - lowest, np.exp(mixed) * spacing)
    three = np.convolve(np.convolve(one, one), one)
    losses = (np.arange(len(three)) + 3 * lowest) * width

    def divergence(epsilon):
        above = losses > epsilon
        return float(three[above] @ -np.expm1(epsilon - losses[above]))

    lower = brentq(lambda e: divergence(e) - delta, 0, 50)
    found = pld_epsilon([PoissonGaussianStep(noise, rate, 3)], delta)
    assert lower <= found <= lower + 3 * width + 0.002 * lower


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.4, 1.0, 3.0])
def test_renyi_curves_bound_the_integral(noise, rate):
    """At whole and fractional orders, for both directions; orders that diverge are infinite."""
    x = np.linspace(-60 * noise - 60 / noise - 20, 60 * noise + 400 + 60 / noise, 800_001)
    base = norm.logpdf(x, scale=noise)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
    width = math.log(x[1] - x[0])
    curve = composed_curve([PoissonGaussianStep(noise, rate, 1)], MIXED)
    for order in (1.5, 1.9, 2, 3, 4.2, 7.7, 10):
        forward = (logsumexp(base + order * ratio) + width) / (order - 1)
        backward = (logsumexp(base + (1 - order) * ratio) + width) / (order - 1)
        found = curve[int(np.argmin(np.abs(np.array(MIXED) - order)))]
        assert found >= max(forward, backward) * (1 - 1e-6) - 1e-9
        if order == int(order):
            assert found == pytest.approx(max(forward, backward), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("times", [1, 7, 90])
def test_discretised_gaussians_stay_just_above_the_exact_curve(noise, times):
    for delta in (1e-3, 1e-6, 1e-9):
        exact = gaussian_epsilon(noise / math.sqrt(times), delta)
        for step in (GaussianStep(noise, times), FixedSizeGaussianStep(noise, 1.0, times)):
            found = pld_epsilon([step], delta)
            assert exact <= found <= 1.003 * exact + 1e-9


@pytest.mark.parametrize(
    ("noise", "rate", "times", "width"),
    [(1.1, 0.01, 1000, 5e-4), (0.5, 0.05, 200, 1e-3), (2.0, 0.5, 30, 1e-3), (1.0, 1e-3, 500, 1e-4)],
)
def test_our_pairs_and_powers_are_those_of_the_library(noise, rate, times, width):
    library = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=width
    )
    ours = poisson(noise, rate, width)
    for delta in (1e-3, 1e-6):
        assert max(
            epsilon_at(pmf, delta) for pmf in (ours._pmf_remove, ours._pmf_add)
        ) == pytest.approx(library.get_epsilon_for_delta(delta), rel=1e-6, abs=1e-9)
    composed = library.self_compose(times)
    found = [self_composed(pmf, times, 1 << 24) for pmf in (ours._pmf_remove, ours._pmf_add)]
    for delta in (1e-3, 1e-5, 1e-7):
        assert max(epsilon_at(pmf, delta) for pmf in found) == pytest.approx(
            composed.get_epsilon_for_delta(delta), rel=1e-5
        )


@pytest.mark.parametrize(
    ("noise", "clients", "rate", "cap"),
    [(1.348, 3400, 0.04, 150), (0.6, 100, 0.1, 12), (3.0, 50, 0.5, 20), (0.2, 100, 0.1, 12)],
)
def test_our_capped_pairs_are_those_of_the_library(noise, clients, rate, cap):
    library = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        clients, rate, cap, noise, value_discretization_interval=5e-3
    )
    ours = capped(noise, clients, rate, cap, 5e-3)
    for delta in (1e-3, 1e-6, 1e-9):
        assert max(
            epsilon_at(pmf, delta) for pmf in (ours._pmf_remove, ours._pmf_add)
        ) == pytest.approx(library.get_epsilon_for_delta(delta), rel=1e-8)


@pytest.mark.parametrize(
    ("noise", "rate", "times"),
    [(1.0, 0.05, 200), (0.5, 0.05, 200), (2.0, 0.2, 100), (1, 1e-3, 500)],
)
def test_poisson_is_an_attained_lower_bound_of_fixed_size(noise, rate, times):
    """Everyone else at -C and the target at +C or -C makes fixed size a Poisson-like mixture."""
    width = interval(FixedSizeGaussianStep(noise, rate, times))
    lower = poisson(noise, rate, width)
    upper = self_composed(symmetrised(noise, rate, width)._pmf_remove, times, 1 << 24)
    for delta in (1e-3, 1e-5):
        attained = max(
            epsilon_at(self_composed(pmf, times, 1 << 24), delta)
            for pmf in (lower._pmf_remove, lower._pmf_add)
        )
        proved = epsilon_at(upper, delta)
        assert attained <= proved * (1 + 1e-6)
        assert attained <= (rdp_epsilon([FixedSizeGaussianStep(noise, rate, times)], delta) or 0)


def test_fixed_size_bound_holds_for_a_small_population_exactly():
    """Four clients, cohorts of two, one dimension: every data set of +-1, by integration."""
    clients, cohort, std, delta = 4, 2, 2.0, 1e-3
    x = np.linspace(-30, 30, 120_001)
    width = x[1] - x[0]

    def density(data):
        sums = [sum(data[i] for i in s) for s in combinations(range(clients), cohort)]
        return np.mean([norm.pdf(x, total, std) for total in sums], axis=0)

    found = pld_epsilon([FixedSizeGaussianStep(std / 2, cohort / clients, 1)], delta)
    assert found is not None
    worst = 0.0
    for others in product((-1, 1), repeat=clients - 1):
        p, q = density((*others, 1)), density((*others, -1))
        for one, two in ((p, q), (q, p)):
            worst = max(worst, float(np.sum(np.maximum(one - np.exp(found) * two, 0)) * width))
    assert worst <= delta * (1 + 1e-6)
    assert worst >= 0.5 * delta  # and it is not loose either


@pytest.mark.parametrize(("rate", "cap", "std"), [(0.6, 1, 1.0), (0.3, 2, 1.0)])
def test_capped_cohort_bounds_hold_for_a_small_population_exactly(rate, cap, std):
    """Four clients send +-1; one is not there, or sends nothing; every cohort, by enumeration."""
    delta, x = 1e-2, np.linspace(-20, 20, 8_001)

    def density(data):
        total = np.zeros_like(x)
        for size in range(len(data) + 1):
            for drawn in combinations(range(len(data)), size):
                weight = rate**size * (1 - rate) ** (len(data) - size)
                kept = [sum(data[i] for i in k) for k in combinations(drawn, min(cap, size))]
                total += weight * np.mean([norm.pdf(x, one, std) for one in kept], axis=0)
        return total

    for kind, away in ((CappedPoissonGaussianStep, ()), (ZeroedCappedPoissonGaussianStep, (0,))):
        found = pld_epsilon([kind(std, 4, rate, cap, 1)], delta)
        for others in product((-1, 1), repeat=3):
            for target in (-1, 1):
                p, q = density((*others, target)), density((*others, *away))
                for one, two in ((p, q), (q, p)):
                    apart = np.sum(np.maximum(one - np.exp(found) * two, 0)) * (x[1] - x[0])
                    assert apart <= delta
    # A cap that never acts costs a zeroed client nothing.
    plain = pld_epsilon([PoissonGaussianStep(std, rate, 1)], delta)
    assert pld_epsilon([ZeroedCappedPoissonGaussianStep(std, 4, rate, 4, 1)], delta) == (
        pytest.approx(plain, rel=1e-6)
    )


def test_a_vector_of_laplace_noise_is_no_worse_than_one_coordinate():
    """L1 sensitivity split over two coordinates is dominated by all of it in one."""
    laplace = privacy_loss_distribution.from_laplace_mechanism
    whole = laplace(1.0, value_discretization_interval=1e-4)
    for share in (0.5, 0.2, 0.05):
        one, two = (
            laplace(1 / part, value_discretization_interval=1e-4) for part in (share, 1 - share)
        )
        split = one.compose(two)
        for epsilon in (0.0, 0.1, 0.3, 0.6, 0.9):
            together = whole.get_delta_for_epsilon(epsilon)
            assert split.get_delta_for_epsilon(epsilon) <= together + 1e-6
            assert split.get_delta_for_epsilon(epsilon) > 0.2 * together


@pytest.mark.parametrize("noise", [1.0, 2.0, 4.0])
def test_a_binomial_attack_never_beats_the_gaussian_bound(noise):
    """Look at the sign of each of 50 releases: exact binomial, a lower bound on epsilon."""
    rounds, delta = 50, 1e-4
    hit = float(norm.cdf(1 / (2 * noise)))
    hits = np.arange(rounds + 1)
    p, q = binom.pmf(hits, rounds, hit), binom.pmf(hits, rounds, 1 - hit)
    bound = gaussian_epsilon(noise / math.sqrt(rounds), delta)
    assert float(np.sum(np.maximum(p - np.exp(bound) * q, 0))) <= delta
    assert float(np.sum(np.maximum(p - np.exp(0.5 * bound) * q, 0))) > delta


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.05), (0.5, 0.05), (1.3, 0.01), (3.0, 0.3)])
def test_fixed_size_renyi_curve_is_the_library_s(noise, rate):
    event = dp_event.SampledWithoutReplacementDpEvent(1.0, rate, dp_event.GaussianDpEvent(noise))
    accountant = RdpAccountant(range(2, 40), NeighboringRelation.REPLACE_ONE).compose(event)
    ours = fixed_size_curve(noise, rate, np.arange(2.0, 40.0))
    assert ours == pytest.approx(accountant.rdp, rel=1e-9)


def test_generic_poisson_bound_is_above_the_gaussian_s_own():
    """The bound for any mechanism, fed with a Gaussian's curve, must not be below the exact one."""
    grid = np.array(WHOLE, dtype=float)
    for noise, rate in ((1.0, 0.01), (2.0, 0.1), (0.7, 0.001)):
        generic = poisson_sampled_curve(grid / (2 * noise**2), grid, rate)
        exact = composed_curve([PoissonGaussianStep(noise, rate, 1)], WHOLE)
        assert np.all(generic >= exact - 2e-13)
        assert generic[0] == pytest.approx(exact[0], rel=1e-6)  # order two has no factor three
    sampled, plain = (rdp_epsilon([ZcdpStep(0.5, rate, 100)], 1e-5) for rate in (0.01, 1.0))
    assert sampled < plain / 10


def test_heterogeneous_rounds_compose_as_in_the_library():
    accountant = PLDAccountant(value_discretization_interval=3e-4)
    for noise, rate, rounds in ((1.0, 0.01, 300), (1.5, 0.03, 200), (0.9, 0.005, 100)):
        event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
        accountant.compose(event, rounds)
    accountant.compose(dp_event.GaussianDpEvent(20.0), 4)
    accountant.compose(dp_event.LaplaceDpEvent(40.0), 2)
    steps = [
        PoissonGaussianStep(1.0, 0.01, 300),
        PoissonGaussianStep(1.5, 0.03, 200),
        PoissonGaussianStep(0.9, 0.005, 100),
        GaussianStep(20.0, 4),
        LaplaceStep(40.0, 1.0, 2),
    ]
    for delta in (1e-4, 1e-6):
        truth = accountant.get_epsilon(delta)
        found = pld_epsilon(steps, delta)
        assert 0.999 * truth <= found <= 1.005 * truth


def test_splitting_rounds_into_blocks_changes_nothing():
    whole = pld_epsilon([PoissonGaussianStep(1.1, 0.01, 1000)], 1e-5)
    parts = [PoissonGaussianStep(1.1 + i * 1e-9, 0.01, 250) for i in range(4)]
    assert pld_epsilon(parts, 1e-5) == pytest.approx(whole, rel=2e-3)
