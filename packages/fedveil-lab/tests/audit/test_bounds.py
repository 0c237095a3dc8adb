"""Bounds beside closed forms, other libraries and exact enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from fedveil_lab.audit.bounds import (
    Rates,
    at_least,
    at_most,
    contradicted,
    gaussian_dp_epsilon,
    guessed_epsilon,
    guessed_separation,
    guessing_p_value,
    refuted_epsilon,
)


@pytest.mark.parametrize("hits", [0, 1, 7, 49, 50])
def test_intervals_are_those_of_scipy(hits: int) -> None:
    expected = binomtest(hits, 50).proportion_ci(0.95, method="exact")
    assert float(at_most(hits, 50, 0.025)) == pytest.approx(expected.high, abs=1e-12)
    assert float(at_least(hits, 50, 0.025)) == pytest.approx(expected.low, abs=1e-12)


def test_intervals_cover_as_often_as_they_say() -> None:
    tries, truth = 40, 0.3
    hits = np.arange(tries + 1)
    chances = binom.pmf(hits, tries, truth)
    assert chances[at_most(hits, tries, 0.05) < truth].sum() <= 0.05
    assert chances[at_least(hits, tries, 0.05) > truth].sum() <= 0.05


def test_a_perfect_attack_refutes_what_its_games_can_show() -> None:
    tpr, fpr = Rates(1000, 1000, 0, 1000).bounds(0.025)
    expected = math.log((0.025**0.001 - 1e-5) / (1 - 0.025**0.001))
    assert float(refuted_epsilon(tpr, fpr, 1e-5)) == pytest.approx(expected, rel=1e-9)
    assert float(refuted_epsilon(0.5, 0.5, 1e-5)) == 0.0


def test_gaussian_epsilon_solves_the_gaussian_curve() -> None:
    mu, delta = 1.3, 1e-5
    e = gaussian_dp_epsilon(mu, delta)
    curve = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
    assert curve == pytest.approx(delta, rel=1e-4)


def test_guesses_of_randomised_response_are_bounded_exactly() -> None:
    """Randomised response meets the pure bound: all outcomes of 10 coins, enumerated."""
    epsilon, coins = 1.0, 10
    q = 1 / (1 + math.exp(-epsilon))
    tail = sum(
        math.prod(q if right else 1 - q for right in outcome)
        for outcome in itertools.product((True, False), repeat=coins)
        if sum(outcome) >= 8
    )
    assert guessing_p_value(coins, 8, coins, epsilon, 0.0) == pytest.approx(tail, rel=1e-9)


def test_delta_costs_confidence_and_an_epsilon_is_a_root() -> None:
    pure, approximate = (guessing_p_value(100, 80, 200, 0.8, delta) for delta in (0.0, 1e-3))
    assert pure < approximate <= 1
    # By hand: the largest average of the binomial's mass just below the count.
    accuracy = 1 / (1 + math.exp(-0.8))
    masses = [
        sum(binom.pmf(80 - j, 100, accuracy) for j in range(1, i + 1)) / i for i in range(1, 81)
    ]
    assert approximate == pytest.approx(pure + 2 * 200 * 1e-3 * max(masses), rel=1e-9)
    found = guessed_epsilon(100, 80, 200, 1e-5, 0.05)
    assert guessing_p_value(100, 80, 200, found, 1e-5) == pytest.approx(0.05, rel=1e-6)
    assert guessed_epsilon(100, 52, 200, 1e-5, 0.05) == 0.0


def rejected_runs(mu: float, tested: float, runs: int, canaries: int, guesses: int) -> int:
    """Runs in which Gaussians `mu` apart contradict the curve of Gaussians `tested` apart."""
    chance, found = np.random.default_rng(5), 0
    for _ in range(runs):
        there = chance.random(canaries) < 0.5
        ranked = np.argsort(chance.standard_normal(canaries) + mu * there)
        half = guesses // 2
        right = int((~there[ranked[:half]]).sum() + there[ranked[-half:]].sum())
        found += guessed_separation(guesses, right, canaries, 0.05) > tested
    return found


def test_guesses_hold_against_a_whole_curve_and_come_closer_than_one_epsilon() -> None:
    """At most 5 % of honest runs are rejected: of 200, more than 22 with probability 1e-4."""
    assert rejected_runs(1.0, 1.0, 200, canaries=400, guesses=100) <= 22
    chance = np.random.default_rng(1)
    canaries, mu, delta = 4000, 1.0, 1e-5
    there = chance.random(canaries) < 0.5
    ranked = np.argsort(chance.standard_normal(canaries) + mu * there)
    shown = {}
    for guesses in (100, 400, 1000):
        half = guesses // 2
        right = int((~there[ranked[:half]]).sum() + there[ranked[-half:]].sum())
        whole = gaussian_dp_epsilon(guessed_separation(guesses, right, canaries, 0.05), delta)
        shown[guesses] = whole, guessed_epsilon(guesses, right, canaries, delta, 0.05)
    true = gaussian_dp_epsilon(mu, delta)
    whole, single = (max(column) for column in zip(*shown.values(), strict=True))
    assert single < whole < true
    assert whole > 0.6 * true


def test_a_curve_that_lets_everything_through_is_never_contradicted() -> None:
    assert not contradicted(lambda p: 0.0, 50, 50, 50, 0.05)
    assert contradicted(lambda p: p, 50, 50, 50, 0.05)  # both worlds alike, and all guesses right
