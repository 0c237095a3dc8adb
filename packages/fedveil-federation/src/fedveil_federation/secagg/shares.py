"""Shamir's secret sharing of 32-byte secrets, for many holders at once.

The field is the integers modulo 65521, the largest prime below 2^16; a secret is 16 elements of it
(255.99 bits), each 2 little-endian bytes, shared by 16 polynomials of degree threshold - 1. Holder
number x (1, 2, ...) gets the values at x. Fewer than `threshold` shares are independent of the
secret; any `threshold` of them determine it.

Small elements make sharing one exact matrix product: entries are below 2^16, so a product of at
most 65520 terms stays below 2^48 and float64 is exact. A general field of 128 bits costs a hundred
times more in Python, which is why pycryptodome's implementation is the test's reference and not
the engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedveil.privacy.secure_sums.errors import Malformed

PRIME = 65521
ELEMENTS = 16
SHARE_BYTES = 2 * ELEMENTS
MAX_HOLDERS = PRIME - 1
_PRIMITIVE_ROOT = 17

RandomBytes = Callable[[int], bytes]
Field = npt.NDArray[np.int64]


def draw_secret(random_bytes: RandomBytes = os.urandom) -> bytes:
    """A uniform secret of 32 bytes (16 elements below the prime)."""
    return _draw(ELEMENTS, random_bytes).astype("<u2").tobytes()


def split(
    secrets: Sequence[bytes], threshold: int, holders: int, random_bytes: RandomBytes = os.urandom
) -> npt.NDArray[np.uint8]:
    """Shares of every secret: uint8 [holders, len(secrets) * 32], row x - 1 for holder x."""
    if not 1 <= threshold <= holders <= MAX_HOLDERS:
        raise ValueError(f"need 1 <= threshold <= holders <= {MAX_HOLDERS}: {threshold}, {holders}")
    constant = as_elements(b"".join(secrets))
    width = constant.size
    random = _draw((threshold - 1) * width, random_bytes).reshape(threshold - 1, width)
    coefficients = np.vstack([constant[None], random]).astype(np.float64)
    values = (_powers(threshold, holders) @ coefficients).astype(np.int64) % PRIME
    return values.astype("<u2").view(np.uint8)


def combine(points: Field, shares: npt.NDArray[np.uint8]) -> bytes:
    """Recover a secret from as many shares as the threshold.

    With fewer or wrong shares the result is some other secret: compare it with a commitment.

    Args:
        points: The holders' numbers, distinct, int64 [threshold].
        shares: Their shares, uint8 [threshold, 32], of valid elements.

    Returns:
        The secret, 32 bytes.
    """
    values = np.ascontiguousarray(shares).view("<u2").astype(np.float64)
    weights = _weights_at_zero(points).astype(np.float64)
    secret = (weights @ values).astype(np.int64) % PRIME
    return secret.astype("<u2").tobytes()


def as_elements(packed: bytes) -> Field:
    """The field elements of shares or secrets written one after the other."""
    words = np.frombuffer(packed, "<u2")
    if (words >= PRIME).any():
        raise Malformed(f"a share's elements must be below {PRIME}")
    return words.astype(np.int64)


def valid_elements(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """By row of packed elements, whether all of them are below the prime."""
    words = np.ascontiguousarray(packed).view("<u2")
    valid: npt.NDArray[np.bool_] = np.all(words < PRIME, axis=1)
    return valid


def _draw(count: int, random_bytes: RandomBytes) -> Field:
    """Uniform elements: words at or above the prime are dropped, and more are drawn."""
    kept: list[Field] = []
    missing = count
    while missing > 0:
        words = np.frombuffer(random_bytes(2 * missing), "<u2").astype(np.int64)
        kept.append(words[words < PRIME])
        missing -= kept[-1].size
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


@lru_cache(maxsize=16)
def _powers(threshold: int, holders: int) -> npt.NDArray[np.float64]:
    """x^e modulo the prime, [holders, threshold]."""
    x = np.arange(1, holders + 1, dtype=np.int64)
    powers = np.ones((holders, threshold), dtype=np.int64)
    for exponent in range(1, threshold):
        powers[:, exponent] = powers[:, exponent - 1] * x % PRIME
    return powers.astype(np.float64)


def _weights_at_zero(points: Field) -> Field:
    """Lagrange weights prod_{j != i} x_j / (x_j - x_i), by discrete logarithms."""
    exponentials, logarithms = _tables()
    differences = (points[None, :] - points[:, None]) % PRIME
    logs = logarithms[differences]  # the diagonal's entry is 0, the logarithm of 1
    numerator = logarithms[points].sum() - logarithms[points]
    result: Field = exponentials[(numerator - logs.sum(axis=1)) % (PRIME - 1)]
    return result


@lru_cache(maxsize=1)
def _tables() -> tuple[Field, Field]:
    exponentials = np.ones(PRIME - 1, dtype=np.int64)
    known = 1
    while known < PRIME - 1:
        step = min(known, PRIME - 1 - known)
        factor = pow(_PRIMITIVE_ROOT, known, PRIME)
        exponentials[known : known + step] = exponentials[:step] * factor % PRIME
        known += step
    logarithms = np.zeros(PRIME, dtype=np.int64)
    logarithms[exponentials] = np.arange(PRIME - 1)
    return exponentials, logarithms
