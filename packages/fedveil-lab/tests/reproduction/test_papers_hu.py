"""Hu et al.: the claimed epsilons, and the attack that is stronger than they allow."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims import hu

near = pytest.approx
GAUSS = gaussian_mechanism.get_epsilon_gaussian


def claimed(a: float, participations: int, cohort: int) -> float:
    """Theorem 1 with tau = 2 = m/gamma, gamma = 1000 and a = 2G/(gamma*sigma)."""
    return hu.paper_hu_epsilon(
        delta=1e-4,
        participations=participations,
        local_steps=2,
        gradient_bound=1.0,
        cohort=cohort,
        records=2000,
        batch_size=1000,
        noise_std=2 / (1000 * a),
    ).value


@pytest.mark.parametrize(("rho", "eps"), [(0.1, 2.2460), (0.5, 5.2985), (1, 7.7861), (2, 11.5971)])
def test_lemma_3_golden_and_its_inverse(rho: float, eps: float) -> None:
    """Golden number 4."""
    assert hu.zcdp_epsilon(rho, 1e-5) == near(eps, rel=1e-4)
    assert hu.zcdp_rho(hu.zcdp_epsilon(rho, 1e-5), 1e-5) == near(rho, rel=1e-12)


@pytest.mark.parametrize(
    ("a", "cohort", "rounds", "claim", "fixed", "shuffled"),
    [
        (4, 100, 1, 1.7968, 3.760, None),
        (10, 10**4, 1, 0.434, None, 1.098),
        (0.5, 10, 100, 8.0361, 21.3635, 8.6002),
        (0.5, 100, 100, 2.2710, 21.3635, 8.6002),
    ],
)
def test_counterexample_table(
    a: float, cohort: int, rounds: int, claim: float, fixed: float | None, shuffled: float | None
) -> None:
    """Golden numbers 22-24: the true epsilon is above the claim, whatever the cohort."""
    assert claimed(a, rounds, cohort) == near(claim, rel=2e-3)
    for value, mixed in ((fixed, False), (shuffled, True)):
        if value is not None:
            bound = hu.bit_attack_epsilon(hu.bit_probability(a, shuffled=mixed), rounds, 1e-4)
            assert bound == near(value, rel=5e-4)
            assert bound > claimed(a, rounds, cohort)


def test_one_round_divergence_is_above_the_claimed_rho() -> None:
    """The KL divergence of the bits that are revealed is at most rho, if rho is true."""
    rho = hu.paper_hu_rho(
        participations=1,
        local_steps=2,
        gradient_bound=1.0,
        cohort=10,
        records=2000,
        batch_size=1000,
        noise_std=2 / (1000 * 0.5),
    )
    assert rho.value == near(0.0125)
    for shuffled, golden in ((False, 0.0790), (True, 0.0196)):
        p = hu.bit_probability(0.5, shuffled=shuffled)
        divergence = (2 * p - 1) * math.log(p / (1 - p))
        assert divergence == near(golden, rel=3e-3)
        assert divergence > rho.value


def test_the_attack_itself_reads_the_bit_out_of_a_secure_sum() -> None:
    """Runs the device and the sum of 100 others. 20000 rounds: 5 sigma is 0.0155 (alarm 6e-7)."""
    rng = np.random.default_rng(4)
    batch, bound, eta, trials, others = 1000, 1.0, 0.1, 20_000, 100
    sigma = 2 * bound / (batch * 0.5)
    bits = rng.integers(0, 2, trials) * 2 - 1
    first = -eta * (-bits * bound / batch + sigma * rng.normal(size=trials))
    second = first - eta * (-bound * np.sign(first) + sigma * rng.normal(size=trials))
    noise = eta * sigma * math.sqrt(2 * (others - 1)) * rng.normal(size=trials)
    right = np.mean(np.sign(second + noise) == bits)
    assert right == near(hu.bit_probability(0.5, shuffled=False), abs=0.0155)


@given(p=st.floats(0.51, 0.95), rounds=st.integers(1, 12), delta=st.floats(1e-6, 0.2))
def test_bit_attack_is_the_neyman_pearson_bound(p: float, rounds: int, delta: float) -> None:
    """At the returned epsilon the best of all threshold tests just reaches delta."""
    eps = hu.bit_attack_epsilon(p, rounds, delta)
    counts = np.arange(rounds + 1)
    comb = np.array([math.comb(rounds, int(k)) for k in counts], dtype=float)
    ours = comb * p**counts * (1 - p) ** (rounds - counts)
    theirs = ours[::-1]
    best = max(ours[k:].sum() - math.exp(eps) * theirs[k:].sum() for k in counts)
    assert best <= delta + 1e-9
    if eps > 0:
        assert best == near(delta, abs=1e-9)


def test_noise_the_claim_asks_for() -> None:
    """Golden number 25, and what that noise gives without dividing by the cohort."""
    setting = {
        "participations": 12.5,
        "local_steps": 10,
        "gradient_bound": 1.0,
        "cohort": 10,
        "records": 2440,
        "batch_size": 244,
    }
    sigma = hu.paper_hu_noise_std(epsilon=10, delta=1e-4, **setting)
    assert sigma.value == near(0.0048068, rel=1e-4)
    back = hu.paper_hu_epsilon(delta=1e-4, noise_std=sigma.value, **setting)
    assert back.value == near(10)
    rho = hu.paper_hu_rho(noise_std=sigma.value, **setting).value
    assert GAUSS(1 / math.sqrt(2 * 10 * rho), 1e-4) == near(39.82, rel=5e-3)
    assert hu.zcdp_epsilon(10 * rho, 1e-4) == near(44.05, rel=5e-3)
    assert hu.zcdp_epsilon(2 * rho, 1e-4) == near(15.21, rel=5e-3)  # 5 of 10 collude
    exact = 10 * rho / (0.5 / gaussian_mechanism.get_sigma_gaussian(10, 1e-4) ** 2)
    assert math.sqrt(exact) == near(2.74, rel=5e-3)


def test_dp_sgd_baseline_divides_by_clients_who_add_no_noise() -> None:
    rho = hu.zcdp_rho(10, 1e-4)
    sigma = math.sqrt(2 * 12 / (16 * 64**2 * rho))
    told = hu.paper_hu_dp_sgd_epsilon(
        delta=1e-4, participations=12, gradient_bound=1, clients=16, batch_size=64, noise_std=sigma
    )
    assert told.value == near(10)
    true = 2 * 12 / 10 / (64 * sigma) ** 2  # ten honest shares
    assert hu.zcdp_epsilon(true, 1e-4) == near(13.26, rel=5e-3)


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_bad_numbers_are_refused_by_name(bad: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        hu.zcdp_epsilon(1.0, bad)
    with pytest.raises(ConfigError, match="probability"):
        hu.bit_attack_epsilon(bad, 1, 1e-4)
    with pytest.raises(ConfigError, match="shift"):
        hu.bit_probability(bad, shuffled=True)


def test_a_fair_coin_reveals_nothing() -> None:
    assert hu.bit_attack_epsilon(0.5, 100, 1e-4) == 0.0
    assert hu.bit_probability(1e-12, shuffled=False) == near(float(norm.cdf(0)))


QUIET = {"gradient_variance": 0.0, "batch_size": 1, "dimension": 1, "noise_std": 0.0}


def test_theorem_2_is_false_for_two_clients_that_differ() -> None:
    """Losses (x - 1)^2 / 2 and (x + 1)^2 / 2, one drawn each round: x stays a random walk."""
    rate = 0.1
    stationary = rate / (2 - rate)  # of x -> (1 - rate) x +- rate, exactly; the gradient is x
    assert stationary == pytest.approx(0.0526, abs=5e-5)
    bound = hu.paper_hu_gradient_norm(
        initial_gap=0.5, steps=10**6, learning_rate=rate, smoothness=1.0, cohort=1,
        local_steps=1, **QUIET,
    )  # fmt: skip
    assert bound.value < 1e-4 < stationary


def test_theorem_2_and_lemma_6_halve_what_their_proofs_leave_whole() -> None:
    """The noise of one gradient descent on x^2 L / 2 in d dimensions, in closed form."""
    rate, smoothness, std, dimension = 0.05, 1.0, 0.3, 4
    setting = {"learning_rate": rate, "smoothness": smoothness, "cohort": 1, "local_steps": 1}
    noise = {"gradient_variance": 0.0, "batch_size": 1, "dimension": dimension, "noise_std": std}
    whole, drift = hu.convergence_terms(**setting, **noise)
    printed = hu.paper_hu_gradient_norm(initial_gap=1.0, steps=10**12, **setting, **noise).value
    gap = hu.paper_hu_optimality_gap(
        initial_gap=1.0, steps=10**12, strong_convexity=1.0, **setting, **noise
    ).value
    assert drift == 0
    assert (printed, gap) == pytest.approx((whole / 2, whole / 4), rel=1e-6)
    # x -> (1 - rate) x - rate * noise has variance rate std^2 / (2 - rate) in each dimension.
    true = dimension * rate * std**2 / (2 - rate)
    assert printed < true < whole


def test_lemma_7_bounds_the_variance_over_all_cohorts() -> None:
    gradients = np.array([1.0, -2.0, 0.5, 3.0, 0.0])
    for cohort in range(1, 5):
        means = [np.mean(chosen) for chosen in combinations(gradients, cohort)]
        claim = hu.paper_hu_cohort_variance(
            gradient_norms=[abs(float(g)) for g in gradients], cohort=cohort, **QUIET
        )
        assert np.var(means) <= claim.value


def test_lemma_8_bounds_the_distance_that_noise_alone_makes() -> None:
    """r random walks of s steps: s eta^2 d sigma^2 (1 - 1 / r) from their mean, in closed form."""
    for step in (1, 4):
        claim = hu.paper_hu_network_error(
            step=step, learning_rate=0.1, clients=8, cohort=5, squared_gradients=0.0,
            gradient_variance=0.0, batch_size=1, dimension=3, noise_std=2.0,
        )  # fmt: skip
        assert step * 0.1**2 * 3 * 4.0 * (1 - 1 / 5) <= claim.value
