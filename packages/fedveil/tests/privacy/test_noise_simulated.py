"""Fast floating-point noise against the distributions it stands for.

Each statistical test rejects at p < 1e-6 under fixed keys.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedveil.core.randomness import Stream
from fedveil.privacy.noise.simulated import (
    LARGEST_GAUSSIAN,
    LARGEST_LAPLACE,
    gaussian,
    gaussian_rows,
    laplace,
)

Draw = Callable[..., npt.NDArray[np.float32]]
KINDS = [(gaussian, stats.norm), (laplace, stats.laplace)]
FALSE_ALARM = 1e-6


def stream(name: str) -> Stream:
    return Stream(hashlib.sha256(name.encode()).digest())


@pytest.mark.parametrize(("draw", "law"), KINDS)
@pytest.mark.parametrize("spread", [1e-20, 0.01, 1.0, 3e20])
def test_draws_follow_the_law(draw, law, spread):
    draws = draw(stream(f"law {spread}"), 500_000, spread)
    assert draws.dtype == np.float32
    assert stats.kstest(draws.astype(float) / spread, law.cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("draw", "law"), KINDS)
def test_tails_are_as_heavy_as_they_should_be(draw, law):
    count = 5_000_000
    draws = np.abs(draw(stream("tails"), count, 1.0))
    for limit in (3.0, 4.0, 5.0):
        mean = 2 * law.sf(limit) * count
        seen = int((draws > limit).sum())
        assert stats.poisson.cdf(seen, mean) > FALSE_ALARM / 2
        assert stats.poisson.sf(seen - 1, mean) > FALSE_ALARM / 2


class Extreme(Stream):
    """Only zero bits, or only one bits."""

    def __init__(self, byte: int) -> None:
        self.byte = byte

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        out[:] = self.byte


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x7F, 0x80])
def test_extreme_words_give_finite_values_within_the_documented_reach(byte):
    normal = gaussian(Extreme(byte), 10, 1.0)
    assert np.isfinite(normal).all()
    assert np.abs(normal).max() <= LARGEST_GAUSSIAN * (1 + 1e-6)
    double = laplace(Extreme(byte), 10, 1.0)
    assert np.isfinite(double).all()
    assert np.abs(double).max() <= LARGEST_LAPLACE * (1 + 1e-6)
    if byte == 0:
        assert np.abs(normal).max() == pytest.approx(6.6604, rel=1e-4)
        assert np.abs(double).max() == pytest.approx(22.1807, rel=1e-4)


@pytest.mark.parametrize(("draw", "law"), KINDS)
def test_coordinates_are_uncorrelated_in_value_and_in_size(draw, law):
    """Box-Muller pairs share a radius: neither values nor squares may correlate, at the lag of a
    pair or any other (each within five standard errors, 24 correlations: false alarm 1.4e-5)."""
    size = 1 << 18
    draws = draw(stream("lags"), size, 1.0).astype(float)
    uniform = law.cdf(draws)
    for lag in (1, 2, 1 << 15, 1 << 16, 3, 4096):
        for function in (lambda u: u, lambda u: np.abs(u - 0.5)):
            left, right = function(uniform[:-lag]), function(uniform[lag:])
            correlation = np.corrcoef(left, right)[0, 1]
            assert abs(correlation) * math.sqrt(size - lag) < 5


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000, 70_001])
def test_rows_drawn_together_are_those_drawn_alone(count):
    keys = [bytes([key] * 32) for key in range(5)]
    together = [Stream(key) for key in keys]
    alone = [Stream(key) for key in keys]
    for _ in range(2):  # the streams go on at the same place
        rows = gaussian_rows(together, count, 0.7)
        assert rows.shape == (5, count)
        for row, stream in zip(rows, alone, strict=True):
            np.testing.assert_array_equal(row, gaussian(stream, count, 0.7))
    assert gaussian_rows([], count).shape == (0, count)
