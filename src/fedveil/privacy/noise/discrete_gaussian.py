"""The discrete Gaussian: P(k) proportional to exp(-k^2 / (2 std^2)) over the integers."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.curves import Bell
from fedveil.privacy.noise.layout import lay_out
from fedveil.privacy.noise.slabs import Integers, SlabSampler

SMALLEST_STD = 2.0**-16
LARGEST_STD = 2.0**46


def discrete_gaussian(stream: Stream, count: int, std: float) -> Integers:
    """`count` independent discrete Gaussians, exactly distributed; `std` in grid units.

    Adding one to each coordinate of an integer vector of L2 sensitivity D is D^2 / (2 std^2)-zCDP.
    """
    if not SMALLEST_STD <= std <= LARGEST_STD:
        raise ConfigError(f"std: need 2^-16 <= std <= 2^46 grid units, got {std}")
    return _sampler(float(std)).draw(stream, count)


@lru_cache(maxsize=64)
def _sampler(std: float) -> SlabSampler:
    return SlabSampler(lay_out(Bell(Fraction(std)), continuous=False))
