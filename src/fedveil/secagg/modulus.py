"""Integers modulo 2^bits: the way in and out.

A vector of int64 goes in as words modulo 2^bits, a sum comes out centred in
[-2^(bits-1), 2^(bits-1)): equal to the plain integer sum whenever that lies in this range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.secagg.masks import Words, word_type

IntVector = npt.NDArray[np.int64]


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
