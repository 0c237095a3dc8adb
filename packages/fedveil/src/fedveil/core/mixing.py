"""A fast vectorised hash of 64-bit words: the finaliser of splitmix64. Public randomness only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the step between a stream's states
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def mix(x: Words) -> Words:
    """Return the hash of every word."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
        return x ^ (x >> np.uint64(31))


def mix_int(x: int) -> int:
    """Return the hash of one word."""
    x = (x ^ (x >> 30)) * _MULTIPLIERS[0] & _MASK
    x = (x ^ (x >> 27)) * _MULTIPLIERS[1] & _MASK
    return x ^ (x >> 31)


def uniforms(words: Words) -> npt.NDArray[np.float64]:
    """Words as multiples of 2^-53 in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
