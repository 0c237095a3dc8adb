"""Integers modulo 2^bits: how many bits a sum needs, and the way in and out.

A vector of int64 goes in as words modulo 2^bits, a sum comes out centred in
[-2^(bits-1), 2^(bits-1)): equal to the plain integer sum whenever that lies in this range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.secagg.masks import Words, word_type

IntVector = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Modulus:
    """Word size, the largest |sum| planned for, and the chance that a coordinate exceeds it."""

    bits: int
    bound: int
    wrap_probability: float  # over a whole vector, one round


def bits_for(
    cohort: int,
    clip: float,
    granularity: float,
    share_std: float,
    failure_probability: float,
    dimension: int = 1,
) -> Modulus:
    """The word size, 32 or 64 bits, that holds the sum of `cohort` noisy vectors.

    Each coordinate of a device's vector is at most `clip` in size, rounded to the grid (at most
    one unit further), plus a discrete Gaussian of standard deviation `share_std`; all three are
    in the units of the vector, `granularity` is one unit of the grid. A discrete Gaussian of
    parameter s is sub-Gaussian with variance proxy s^2 (Canonne, Kamath and Steinke 2020), so the
    sum of the shares exceeds sqrt(2 * cohort * s^2 * ln(2 * dimension / p)) in some coordinate
    with probability at most p. Without noise the sum cannot wrap at all.
    """
    for name, value in (("clip", clip), ("share_std", share_std)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} = {value}: need a finite number, zero or more")
    if not (math.isfinite(granularity) and granularity > 0):
        raise ConfigError(f"granularity = {granularity}: need a finite number above zero")
    if cohort < 1 or dimension < 1:
        raise ConfigError(f"cohort = {cohort}, dimension = {dimension}: need at least 1 of each")
    if share_std > 0 and not 0 < failure_probability < 1:
        raise ConfigError(
            f"failure_probability = {failure_probability}: noise is unbounded, so a sum wraps "
            "with some probability; name one in (0, 1)"
        )
    signal = cohort * (math.ceil(clip / granularity) + 1)
    probability = failure_probability if share_std > 0 else 0.0
    noise = 0
    if share_std > 0:
        variance = cohort * (share_std / granularity) ** 2
        noise = math.ceil(math.sqrt(2 * variance * math.log(2 * dimension / probability)))
    bound = signal + noise
    for bits in (32, 64):
        if bound < 2 ** (bits - 1):
            return Modulus(bits, bound, probability)
    raise ConfigError(f"granularity = {granularity}: a sum up to {bound:.3g} exceeds 64 bits")


def check_bits(bits: int) -> None:
    if bits not in (32, 64):
        raise ConfigError(f"bits = {bits}: need 32 or 64")


def encode(vector: IntVector, bits: int) -> Words:
    """A fresh copy of int64 [dimension] as words modulo 2^bits."""
    check_bits(bits)
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype != np.int64:
        raise ConfigError("vector: need a one-dimensional int64 array; floats never enter the sum")
    if bits == 32 and vector.size and not (vector.min() >= -(2**31) and vector.max() < 2**31):
        raise ConfigError("vector: an entry does not fit 32 bits; use bits = 64 or a coarser grid")
    # On a little-endian machine both casts are plain C conversions modulo 2^bits.
    return vector.astype(word_type(bits))  # type: ignore[return-value]


def decode(words: Words, bits: int) -> IntVector:
    """Words modulo 2^bits as centred int64 [dimension]."""
    check_bits(bits)
    signed = words.view(np.dtype("<i4") if bits == 32 else np.dtype("<i8"))
    return signed.astype(np.int64)
