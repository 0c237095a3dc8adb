"""A continuous Gaussian rounded to the nearest integer."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from fedveil.errors import BadInput
from fedveil.privacy.noise.curves import Bell
from fedveil.privacy.noise.layout import lay_out
from fedveil.privacy.noise.slabs import Integers, SlabSampler
from fedveil.randomness import Stream

SMALLEST_STD = 0.25
LARGEST_STD = 2.0**46


def rounded_gaussian(stream: Stream, count: int, std: float) -> Integers:
    """`count` independent draws of round(X), X normal with `std` grid units, exactly distributed.

    P(k) = Phi((k + 1/2) / std) - Phi((k - 1/2) / std). For an integer sum S, S + round(X) is
    round(S + X): post-processing of the continuous Gaussian mechanism, so whatever is proved for
    that one (Poisson and fixed-size amplification included) holds unchanged.
    """
    if not SMALLEST_STD <= std <= LARGEST_STD:
        raise BadInput(f"std: need 1/4 <= std <= 2^46 grid units, got {std}")
    return _sampler(float(std)).draw(stream, count)


@lru_cache(maxsize=64)
def _sampler(std: float) -> SlabSampler:
    return SlabSampler(lay_out(Bell(Fraction(std)), continuous=True))
