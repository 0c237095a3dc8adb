"""The discrete Laplace: P(k) proportional to exp(-|k| / scale) over the integers."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.curves import Tent
from fedveil.privacy.noise.layout import lay_out
from fedveil.privacy.noise.slabs import Integers, SlabSampler

SMALLEST_SCALE = 2.0**-16
LARGEST_SCALE = 2.0**46


def discrete_laplace(stream: Stream, count: int, scale: float) -> Integers:
    """`count` independent discrete Laplace draws, exactly distributed; `scale` in grid units.

    Adding one to each coordinate of an integer vector of L1 sensitivity D is purely
    (D / scale)-differentially private.
    """
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigError(f"scale: need 2^-16 <= scale <= 2^46 grid units, got {scale}")
    return _sampler(float(scale)).draw(stream, count)


@lru_cache(maxsize=64)
def _sampler(scale: float) -> SlabSampler:
    return SlabSampler(lay_out(Tent(Fraction(scale)), continuous=False))
