"""Attacks on low-order bits: they break noise in floating point and learn nothing on the grid.

The secret is whether a sum is 0 or 1. Noise of spread 50 should all but hide that (epsilon below
0.1), and mathematically it does; what is added in floating point says it anyway.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import optimize, stats

from fedveil.core.randomness import Stream
from fedveil.privacy.noise.grid import protect_sum, protect_sum_laplace, unsnap
from fedveil.privacy.noise.simulated import gaussian, laplace

Values = npt.NDArray[np.float64]
SPREAD, DELTA, DRAWS = 50.0, 1e-5, 4_000_000
GRANULARITY = 2.0**-30
CONFIDENCE = 1e-6  # of each one-sided bound on a probability


def stream(name: str) -> Stream:
    return Stream(hashlib.sha256(name.encode()).digest())


def gaussian_epsilon() -> float:
    """Exact epsilon of the Gaussian mechanism with std / sensitivity = SPREAD, at DELTA."""

    def excess(epsilon: float) -> float:
        near, far = 0.5 / SPREAD - epsilon * SPREAD, -0.5 / SPREAD - epsilon * SPREAD
        return float(stats.norm.cdf(near) - math.exp(epsilon) * stats.norm.cdf(far) - DELTA)

    return float(optimize.brentq(excess, 0.0, 5.0))


def naive(draw: Callable[..., Values], secret: int, key: str) -> Values:
    return (np.float32(secret) + draw(stream(key), DRAWS, SPREAD)).astype(np.float64)


def protected(protect: Callable[..., Values], secret: int, key: str) -> Values:
    total = np.full(DRAWS, round(secret / GRANULARITY))
    return unsnap(protect(total, SPREAD, GRANULARITY, stream(key)), GRANULARITY)


def looks_like_zero(outputs: Values, bits: int) -> int:
    """How often a small output has a digit beyond the `bits`-th: with the secret at 1, adding it
    to noise near -1 leaves none beyond the 24th, since float32 noise near -1 has none."""
    small = outputs[np.abs(outputs) < 0.25] * 2.0**bits
    return int((small != np.rint(small)).sum())


def certain_violation(seen0: int, seen1: int, epsilon: float, delta: float) -> float:
    """Lower confidence bound of P0(event) - e^epsilon P1(event) - delta; above 0 refutes DP."""
    least = stats.beta.ppf(CONFIDENCE, seen0, DRAWS - seen0 + 1) if seen0 else 0.0
    most = stats.beta.ppf(1 - CONFIDENCE, seen1 + 1, DRAWS - seen1)
    return float(least - math.exp(epsilon) * most - delta)


@pytest.mark.parametrize(("draw", "pure"), [(gaussian, False), (laplace, True)])
def test_floating_point_noise_betrays_the_sum(draw, pure):
    epsilon, delta = (1 / SPREAD, 0.0) if pure else (gaussian_epsilon(), DELTA)
    assert epsilon < 0.1
    seen0 = looks_like_zero(naive(draw, 0, "zero"), 24)
    seen1 = looks_like_zero(naive(draw, 1, "one"), 24)
    assert seen1 == 0  # whoever sees the event knows the secret
    assert seen0 > 1000
    assert certain_violation(seen0, seen1, epsilon, delta) > 100 * 1e-5
    # Not even a promise of epsilon = 3 would have been kept.
    assert certain_violation(seen0, seen1, 3.0, delta) > 100 * 1e-5


@pytest.mark.parametrize(("protect", "pure"), [(protect_sum, False), (protect_sum_laplace, True)])
def test_the_same_attack_learns_nothing_on_the_grid(protect, pure):
    """Every digit of the grid is tried, both ways (120 bounds at 1e-6)."""
    epsilon, delta = (1 / SPREAD, 0.0) if pure else (gaussian_epsilon(), DELTA)
    zero, one = (
        outputs[np.abs(outputs) < 0.25]
        for outputs in (protected(protect, 0, "zero"), protected(protect, 1, "one"))
    )
    seen_any = 0
    for bits in range(1, 31):
        seen0, seen1 = looks_like_zero(zero, bits), looks_like_zero(one, bits)
        seen_any += seen0
        assert certain_violation(seen0, seen1, epsilon, delta) <= 0
        assert certain_violation(seen1, seen0, epsilon, delta) <= 0
    assert seen_any > 1000  # the events do occur, so the bounds mean something


def test_outputs_of_textbook_laplace_noise_are_reachable_from_one_secret_only():
    """Mironov 2012: invert the sampler and ask which secrets could have given this very double."""
    scale, count = 50.0, 4000
    uniforms = stream("textbook").uniforms(2 * count) + 2.0**-54
    noise = np.where(uniforms[:count] < 0.5, -1.0, 1.0) * scale * -np.log(uniforms[count:])
    outputs = 1.0 + noise

    def reachable(secret):
        found = np.zeros(count, dtype=bool)
        guess = np.rint(np.exp(-np.abs(outputs - secret) / scale) * 2.0**53)
        for step in range(-12, 13):
            uniform = (guess + step) * 2.0**-53 + 2.0**-54
            candidate = np.sign(outputs - secret) * scale * -np.log(uniform)
            found |= secret + candidate == outputs
        return found

    from_truth, from_other = reachable(1.0), reachable(0.0)
    assert from_truth.mean() > 0.99
    # Under epsilon = 1/50 no test may be right more than 50.5 % of the time; this one is certain
    # for every output that cannot come from 0.
    assert (from_truth & ~from_other).mean() > 0.1


def test_every_grid_point_is_reachable_from_either_secret():
    total = np.zeros(1_000_000, dtype=np.int64)
    for protect in (protect_sum, protect_sum_laplace):
        from_zero = set(protect(total, 20.0, 1.0, stream("zero")).tolist())
        from_one = set(protect(total + 1, 20.0, 1.0, stream("one")).tolist())
        assert set(range(-60, 61)) <= from_zero & from_one
