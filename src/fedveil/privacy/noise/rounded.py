"""Continuous noise rounded to the nearest integer.

For an integer sum S and continuous noise X, S + round(X) is round(S + X): post-processing of the
continuous mechanism. Whatever is proved for that one, composition curves and amplification
included, holds unchanged. (It does not hold for discrete noise: a discrete Laplace variable sits on
its mode more often than a continuous one on its favourite side.)
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.curves import Bell, Curve, Tent
from fedveil.privacy.noise.layout import lay_out
from fedveil.privacy.noise.slabs import Integers, SlabSampler

SMALLEST_SPREAD = 0.25
LARGEST_SPREAD = 2.0**46


def rounded_gaussian(stream: Stream, count: int, std: float) -> Integers:
    """`count` independent draws of round(X), X normal with `std` grid units, exactly distributed.

    P(k) = Phi((k + 1/2) / std) - Phi((k - 1/2) / std).
    """
    return _draw(Bell, "std", stream, count, std)


def rounded_laplace(stream: Stream, count: int, scale: float) -> Integers:
    """`count` independent draws of round(X), X Laplace with `scale` grid units, exactly so.

    P(k) = F((k + 1/2) / scale) - F((k - 1/2) / scale), F the standard Laplace distribution.
    """
    return _draw(Tent, "scale", stream, count, scale)


def _draw(curve: type[Curve], name: str, stream: Stream, count: int, spread: float) -> Integers:
    if not SMALLEST_SPREAD <= spread <= LARGEST_SPREAD:
        raise ConfigError(f"{name}: need 1/4 <= {name} <= 2^46 grid units, got {spread}")
    return _sampler(curve(Fraction(spread))).draw(stream, count)


@lru_cache(maxsize=64)
def _sampler(curve: Curve) -> SlabSampler:
    return SlabSampler(lay_out(curve, continuous=True))
