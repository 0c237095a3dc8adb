"""Integers modulo 2^bits, and masks: AES-128-CTR keystreams added to them.

A vector of int64 goes in as little-endian words modulo 2^bits, a sum comes out centred in
[-2^(bits-1), 2^(bits-1)): equal to the plain integer sum whenever that lies in this range.

A key makes one mask and is never used again (it is derived for one round and one pair), so the
counter always starts at the same block: at 2, as in GCM with a nonce of zeros. GCM's tag is not
used, but processors have faster code for it than for the counter mode alone. 128 bits are what
X25519 gives, and only who knows all other masks of an upload could check a guess. Words of 32 or 64
bits wrap by themselves, which is the modulus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from fedveil.core.errors import ConfigError

IntVector = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]

# Two blocks of this size (keystream and accumulator) stay in the second-level cache.
_BLOCK_BYTES = 1 << 17
# Open ciphers at a time: bounds the memory of a server that removes thousands of masks.
_OPEN_CIPHERS = 256


MASK_KEY_BYTES = 16


def word_type(bits: int) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
    """The little-endian word of a modulus 2^bits, bits = 32 or 64."""
    return np.dtype("<u4") if bits == 32 else np.dtype("<u8")


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


def apply_masks(total: Words, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """Add and subtract the masks of the given 16-byte keys, in place, modulo 2^bits of `total`.

    `total` is one-dimensional, contiguous and of a `word_type`. Blocks are the outer loop: each
    block of the accumulator is read once, however many masks there are.
    """
    signed = [(key, False) for key in added] + [(key, True) for key in subtracted]
    for start in range(0, len(signed), _OPEN_CIPHERS):
        _apply_open(total, [(_cipher(k), s) for k, s in signed[start : start + _OPEN_CIPHERS]])


def keystream(key: bytes, size: int) -> bytes:
    """So many bytes of the keystream of a key of 16 or 32 bytes."""
    return _cipher(key).update(bytes(size))


def _cipher(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.GCM(bytes(12))).encryptor()


def _apply_open(total: Words, ciphers: list[tuple[CipherContext, bool]]) -> None:
    block = min(_BLOCK_BYTES // total.itemsize, max(1, total.size))
    zeros = memoryview(bytes(block * total.itemsize))
    stream = np.empty(block, dtype=total.dtype)
    stream_bytes = stream.data.cast("B")
    for start in range(0, total.size, block):
        part = total[start : start + block]
        mask, size = stream[: part.size], part.nbytes
        source, sink = zeros[:size], stream_bytes[:size]
        for cipher, subtract in ciphers:
            cipher.update_into(source, sink)
            if subtract:
                np.subtract(part, mask, out=part)
            else:
                np.add(part, mask, out=part)
