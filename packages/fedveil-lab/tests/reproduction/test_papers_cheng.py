"""Cheng et al.: the unproved noise, and what BLUR does to an update."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event, gaussian_mechanism
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from fedveil_lab.reproduction.claims import cheng

near = pytest.approx
GAUSS = gaussian_mechanism.get_epsilon_gaussian
EMNIST = {"delta": 1 / 3400, "clients": 3400, "cohort": 136.0, "rounds": 1000}


def poisson_pld(noise_multiplier: float) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = dp_event.PoissonSampledDpEvent(0.04, dp_event.GaussianDpEvent(noise_multiplier))
    accountant.compose(event, 1000)
    return float(accountant.get_epsilon(1 / 3400))


@pytest.mark.parametrize(
    ("eps", "sigma", "c2", "true"),
    [
        (2, 2.178, 1.208, 2.59),
        (4, 1.348, 1.495, 8.43),
        (6, 1.068, 1.776, 23.2),
        (8, 0.924, 2.050, 54.2),
    ],
)
def test_theorem_1_needs_a_constant_above_one(
    eps: float, sigma: float, c2: float, true: float
) -> None:
    """Golden number 30's paper side, by the Poisson PLD at interval 1e-3."""
    assert poisson_pld(sigma) == near(eps, rel=5e-3)
    assert cheng.smallest_c2(noise_multiplier=sigma, epsilon=eps, **EMNIST) == near(c2, rel=5e-3)
    told = cheng.paper_cheng_noise_multiplier(epsilon=eps, c2=1.0, **EMNIST)
    assert poisson_pld(told.value) == near(true, rel=5e-3)
    back = cheng.paper_cheng_epsilon(noise_multiplier=told.value, c2=1.0, **EMNIST)
    assert back.value == near(eps)
    assert not told.certified


def test_classical_gaussian_breaks_where_the_theory_says() -> None:
    """Lemma 1, delta = 1e-5: valid up to epsilon about 8.5, and 20 is really 25.44."""
    for eps in (0.1, 1, 8):
        told = cheng.paper_cheng_gaussian_std(epsilon=eps, delta=1e-5, sensitivity=1)
        assert GAUSS(told.value, 1e-5) < eps
    told = cheng.paper_cheng_gaussian_std(epsilon=9, delta=1e-5, sensitivity=1)
    assert GAUSS(told.value, 1e-5) > 9
    told = cheng.paper_cheng_gaussian_std(epsilon=20, delta=1e-5, sensitivity=1)
    assert GAUSS(told.value, 1e-5) == near(25.44, rel=5e-3)
    assert "false" in told.verdict


@pytest.mark.parametrize(
    ("sigma", "one", "forty", "half"),
    [
        (2.178, 32, 13.5, 3.25),
        (1.348, 66, 26.4, 7.50),
        (1.068, 96, 37.1, 12.70),
        (0.924, 122, 46.1, 18.42),
    ],
)
def test_what_the_noise_is_worth_without_its_assumptions(
    sigma: float, one: float, forty: float, half: float
) -> None:
    """No amplification against the server; no secure sum; half of the shares gone."""
    share = sigma / math.sqrt(136)
    assert GAUSS(share, 1 / 3400) == near(one, rel=2e-2)
    assert GAUSS(sigma / math.sqrt(40), 1 / 3400) == near(forty, rel=5e-3)
    assert poisson_pld(sigma * math.sqrt(0.5)) == near(half, rel=5e-3)


@pytest.mark.parametrize(("ball", "true", "lemma"), [(1.0, 0.56, 0.908), (0.5, 0.3512, 0.9344)])
def test_blur_displacement(ball: float, true: float, lemma: float) -> None:
    """Golden number 38, exact."""
    gradients = [[g] for g in (-6.0, -6.0, 3.0, 3.0, -2.0)]
    setting = {"learning_rate": 0.1, "penalty": 2.0, "clip_norm": ball}
    assert cheng.blur_update(gradients, **setting)[0] == near(true, abs=1e-12)
    assert cheng.paper_cheng_blur_update(gradients, **setting).value == near(lemma, abs=1e-12)


@given(
    gradients=st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=9),
    learning_rate=st.floats(0.01, 0.5),
    penalty=st.just(0.0) | st.floats(1e-6, 3),
    ball=st.floats(0.1, 3),
)
def test_closed_form_discounts_rebuild_the_update(
    gradients: list[list[float]], learning_rate: float, penalty: float, ball: float
) -> None:
    rows = np.array(gradients)
    outside, moved = [], np.zeros(3)
    for row in rows:  # the plain recursion, in its own words
        outside.append(bool(np.sqrt((moved**2).sum()) > ball))
        moved = moved * (1 - learning_rate * penalty * outside[-1]) - learning_rate * row
    discounts = cheng.blur_discounts(outside, learning_rate, penalty)
    assert -learning_rate * np.array(discounts) @ rows == near(moved, abs=1e-9)
    update = cheng.blur_update(rows, learning_rate=learning_rate, penalty=penalty, clip_norm=ball)
    assert update == near(moved, abs=1e-9)


def test_lemma_2_discounts_are_not_the_true_ones() -> None:
    outside = [False, False, True, False, True]
    told = cheng.paper_cheng_blur_discounts(outside, 0.1, 2.0)
    assert told == near([1, 1, 0.64, 1, 0.8**4])
    assert cheng.blur_discounts(outside, 0.1, 2.0) == near([0.64, 0.64, 0.8, 0.8, 1.0])


def test_equation_2_is_the_mean_error_of_an_upload() -> None:
    """100,000 draws of 5 coordinates; the mean's standard error is below 0.3 %."""
    draw, update = np.random.default_rng(1), np.array([3.0, 0.0, 4.0, 0.0, 0.0])
    clipped = update * 2.0 / 5.0
    noise = draw.normal(scale=0.7 * 2.0 / 10**0.5, size=(100_000, 5))
    error = np.square(clipped + noise - update).mean()
    claim = cheng.paper_cheng_upload_error(
        update_norm=5.0, clip_norm=2.0, noise_multiplier=0.7, realised_cohort=10, dimension=5
    )
    assert claim.value == pytest.approx(error, rel=0.01)


def test_theorem_2_with_the_noise_of_theorem_1_is_corollary_1() -> None:
    """S = eta_l Q c: the last term is eta_g eta_l Q T d ln(1 / delta) / (N epsilon)^2, c = 1."""
    budget = {"epsilon": 2.0, "delta": 1e-4, "clients": 1000, "rounds": 50, "cohort": 20.0}
    sigma = cheng.paper_cheng_noise_multiplier(**budget, c2=1.0).value
    term = cheng.paper_cheng_gradient_norm(
        server_rate=1.5, learning_rate=0.1, local_steps=6, rounds=50, cohort=20.0,
        noise_multiplier=sigma, clip_norm=0.6, dimension=300, constants=(0.0, 0.0, 0.0, 1.0),
    )  # fmt: skip
    wanted = 1.5 * 0.1 * 6 * 50 * 300 * np.log(1e4) / (1000 * 2.0) ** 2
    assert term.value == pytest.approx(wanted, rel=1e-12)
