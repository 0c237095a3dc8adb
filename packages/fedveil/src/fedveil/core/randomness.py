"""Random streams keyed by (seed, round, client, purpose).

Two kinds never mix. *Streams* are AES-256-CTR keystreams and draw cohorts and noise: with a seed
their key is a hash of (seed, purpose, round, client) and the run is repeatable; without one, the
key comes from the operating system and is kept nowhere. *Shuffle words* order examples and shape
nothing that protects anybody, so they come from a fast vectorised hash.

Because every draw names its round, client and purpose, results do not depend on the engine, on
the chunk size or on the number of workers.
"""

from __future__ import annotations

import hashlib
import os
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from fedveil.core.mixing import STRIDE, Words, mix, mix_int, uniforms
from fedveil.core.units import Entropy

__all__ = ["Randomness", "Stream", "Words", "system_stream"]

_FROM_ZERO = modes.CTR(bytes(16))  # every key is used for one stream alone


class Stream:
    """An endless sequence of random bytes: the AES-256-CTR keystream of a 32-byte key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"key: need 32 bytes, got {len(key)}")
        self._key = key  # until something is drawn: many streams are asked for nothing
        self._encryptor: CipherContext | None = None

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        """Overwrite `out` (one-dimensional, contiguous) with random bytes."""
        if self._encryptor is None:
            self._encryptor = Cipher(algorithms.AES(self._key), _FROM_ZERO).encryptor()
            self._key = b""
        out[:] = 0
        self._encryptor.update_into(out.data, out.data)

    def words(self, count: int) -> Words:
        """Return the next `count` uniform 64-bit words."""
        out = np.empty(count, dtype=np.uint64)
        self.fill(out.view(np.uint8))
        return out

    def coins(self, count: int, rate: float | npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return the next `count` independent coins, each true with probability `rate`.

        The probability is never above the rate, and is exactly the rate from 2^-11 upwards: the
        float has no bits below 2^-64 then. Coins may have rates `[count]` of their own.
        """
        words, rates = self.words(count), np.asarray(rate)
        below = (np.where(rates < 1, rates, 0.0) * 2.0**64).astype(np.uint64)
        return (words < below) | (rates >= 1)

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return the next `count` multiples of 2^-53 in [0, 1)."""
        return uniforms(self.words(count))


def system_stream() -> Stream:
    """Return a stream whose key comes from the operating system and is not stored."""
    return Stream(os.urandom(32))


@dataclass(frozen=True)
class Randomness:
    """All randomness of one run. `seed=None` means that cohorts and noise come from the system."""

    seed: int | None
    _public_key: int = field(init=False, repr=False)
    _first: int = field(init=False, repr=False, default=0)  # the number of client 0

    def __post_init__(self) -> None:
        source = os.urandom(8) if self.seed is None else _digest(self.seed, "shuffle", 0, 0)[:8]
        object.__setattr__(self, "_public_key", int.from_bytes(source, "little"))

    @property
    def entropy(self) -> Entropy:
        return Entropy.SYSTEM if self.seed is None else Entropy.SEEDED

    def of_client(self, client: int) -> Randomness:
        """Return the randomness of a federation that holds this client alone, as its number 0."""
        shifted = copy(self)
        object.__setattr__(shifted, "_first", self._first + client)
        return shifted

    def stream(self, purpose: str, round_number: int = 0, client: int = -1) -> Stream:
        """Return the stream of one draw.

        Args:
            purpose: What is drawn.
            round_number: The round, from 0.
            client: The client; -1 stands for the server.
        """
        if self.seed is None:
            return system_stream()
        number = client if client < 0 else client + self._first
        return Stream(_digest(self.seed, purpose, round_number, number))

    def shuffle_words(
        self, round_number: int, clients: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> Words:
        """Return one hashed word for each pair of a client and a position.

        Args:
            round_number: The round, from 0.
            clients: Numbers of clients.
            positions: Positions of records; broadcast together with `clients`.
        """
        key = np.uint64(mix_int(self._public_key ^ mix_int(round_number + 1)))
        with np.errstate(over="ignore"):
            per_client = mix((clients + self._first).astype(np.uint64) ^ key)
            return mix(per_client + positions.astype(np.uint64) * np.uint64(STRIDE))


def _digest(seed: int, purpose: str, round_number: int, client: int) -> bytes:
    return hashlib.sha256(f"fedveil/{seed}/{purpose}/{round_number}/{client}".encode()).digest()
