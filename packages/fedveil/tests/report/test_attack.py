"""Bounds on attacks, against attacks whose success is known exactly."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from scipy.optimize import brentq

import fedveil as fv
from fedveil.privacy.distinguishing import RATES, AttackBound, attack_on
from fedveil.privacy.mechanisms import NoisySelection

NORMAL = NormalDist()
MODEL = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.ZERO_OUT, fv.Trust.CENTRAL)


def guarantee(release: fv.Release, delta: float = 1e-5) -> fv.Guarantee:
    return fv.account([release], privacy_model=MODEL, delta=delta)


def test_unsampled_gaussians_have_the_curve_of_one_gaussian() -> None:
    """Four rounds with noise 2 are one with noise 1: N(0, 1) against N(1, 1)."""
    found = attack_on(guarantee(fv.Release(fv.Gaussian(2.0), fv.Everyone(), rounds=4)))
    assert found.mu == pytest.approx(1.0, rel=1e-12)
    for rate in RATES[1:-1]:
        best = 1 - NORMAL.cdf(NORMAL.inv_cdf(1 - rate) - 1.0)  # the likelihood ratio test
        assert found.true_positives(rate) == pytest.approx(best, abs=1e-9)
    assert found.right_guesses == pytest.approx(NORMAL.cdf(0.5), abs=1e-9)


def test_the_best_attacks_on_a_sampled_gaussian_stay_below_and_come_close() -> None:
    """To threshold the output is the best test of (1 - q) N(0) + q N(1) against N(0), either way
    round (Neyman, Pearson). Bounds hold for both ways, and lines between few deltas cost a bit."""
    q, noise = 0.5, 1.0
    found = attack_on(guarantee(fv.Release(fv.Gaussian(noise), fv.Poisson(q), rounds=1)))
    assert found.mu is None
    assert len(found.pairs) > 5

    def drawn(cut: float) -> float:
        """How often the mixture is below `cut`."""
        return (1 - q) * NORMAL.cdf(cut) + q * NORMAL.cdf(cut - 1 / noise)

    for rate in RATES[1:-1]:
        there = 1 - drawn(NORMAL.inv_cdf(1 - rate))
        absent = NORMAL.cdf(brentq(lambda cut, rate=rate: drawn(cut) - rate, -20, 20))
        best = max(there, absent)
        assert best <= found.true_positives(rate) <= best + 0.02
    apart = q * (2 * NORMAL.cdf(0.5 / noise) - 1)
    assert 0.5 + apart / 2 <= found.right_guesses <= 0.5 + apart / 2 + 0.02


def test_a_value_that_one_unit_alone_has_gives_it_away_as_often_as_is_stated() -> None:
    """Names that are selected by noisy votes show it with a probability of their own, beside which
    all else may be hidden in noise."""
    missed, rate = 5e-3, 1e-3
    votes = fv.Release(NoisySelection(100.0, missed), fv.Everyone(), rounds=1)
    found = attack_on(guarantee(votes, delta=9e-3))
    assert found.true_positives(rate) >= missed + (1 - missed) * rate
    assert found.right_guesses >= 0.5 + missed / 2


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (1.0, 1e-5), (4.0, 0.0), (800.0, 0.0)])
def test_one_pair_is_met_by_the_mechanism_that_leaks_as_much_as_it_may(
    epsilon: float, delta: float
) -> None:
    """It tells the truth outright with probability delta, else by randomised response; whoever
    answers "there" after the truth or an answer "there" is right this often."""
    found, lie = AttackBound(((epsilon, delta),)), 1 / (1 + math.exp(min(epsilon, 700.0)))
    false, true = (1 - delta) * lie, delta + (1 - delta) * (1 - lie)
    assert found.true_positives(false) == pytest.approx(true, abs=1e-12)
    assert found.right_guesses == pytest.approx((true + 1 - false) / 2, abs=1e-12)
