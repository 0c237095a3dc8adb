"""Integer noise, exactly distributed: discrete laws, and continuous ones that are rounded.

For an integer sum S and continuous noise X, S + round(X) is round(S + X): post-processing of the
continuous mechanism. Whatever is proved for that one, composition curves and amplification
included, holds unchanged. (It does not hold for discrete noise: a discrete Laplace variable sits on
its mode more often than a continuous one on its favourite side.)
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.slabs import Curve, Integers, SlabSampler, lay_out

# Standard deviations and scales, in grid units.
SMALLEST_DISCRETE = 2.0**-16
SMALLEST_ROUNDED = 0.25
LARGEST = 2.0**46

_MOST_AHEAD = 1_000_000  # integers held at once


def discrete_gaussian(stream: Stream, count: int, std: float) -> Integers:
    """`count` independent draws with P(k) proportional to exp(-k^2 / (2 std^2)).

    Adding one to each coordinate of an integer vector of L2 sensitivity D is D^2 / (2 std^2)-zCDP.
    """
    return _draw(stream, count, std, bell=True, rounded=False)


def rounded_gaussian(stream: Stream, count: int, std: float) -> Integers:
    """`count` independent draws of round(X), X normal.

    P(k) = Phi((k + 1/2) / std) - Phi((k - 1/2) / std).
    """
    return _draw(stream, count, std, bell=True)


def rounded_laplace(stream: Stream, count: int, scale: float) -> Integers:
    """`count` independent draws of round(X), X Laplace.

    P(k) = F((k + 1/2) / scale) - F((k - 1/2) / scale), F the standard Laplace distribution.
    """
    return _draw(stream, count, scale, bell=False)


class Ahead:
    """A stream that gives rounded Gaussians of one spread to `sums` vectors of one size, drawn
    together since half of a short draw is its start; the stream itself in all else."""

    def __init__(self, stream: Stream, sums: int) -> None:
        self._stream, self._left = stream, sums
        self._drawn = np.empty((0, 0), dtype=np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def rounded_gaussian(self, count: int, std: float) -> Integers:
        """The next vector's noise, `[count]`."""
        if not len(self._drawn):
            rows = max(1, min(self._left, _MOST_AHEAD // max(1, count)))
            self._left -= rows
            self._drawn = rounded_gaussian(self._stream, rows * count, std).reshape(rows, count)
        row: Integers = self._drawn[0]
        self._drawn = self._drawn[1:]
        return row


def _draw(
    stream: Stream, count: int, spread: float, *, bell: bool, rounded: bool = True
) -> Integers:
    least, name = (SMALLEST_ROUNDED if rounded else SMALLEST_DISCRETE), "std" if bell else "scale"
    if not least <= spread <= LARGEST:
        raise ConfigError(f"{name}: need {least:g} <= {name} <= 2^46 grid units, got {spread}")
    return _sampler(Curve(Fraction(spread), bell), rounded).draw(stream, count)


@lru_cache(maxsize=64)
def _sampler(curve: Curve, rounded: bool) -> SlabSampler:
    return SlabSampler(lay_out(curve, continuous=rounded))
