"""Streams of a protected run, keyed by what they are for instead of by the operating system."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedveil.core.randomness import Randomness, Stream

Words = npt.NDArray[np.uint64]

COINS = BATCHES, CLIENTS = "batch coins", "coin"  # purposes of what is tossed where the data are
_WORD = np.dtype("<u8")


class Tagged(Stream):
    """A stream that knows its purpose, its round and whose it is (None: the server's)."""

    def __init__(self, streams: Streams, purpose: str, round_number: int, name: str | None) -> None:
        super().__init__(streams.key(purpose, round_number, name))
        self.purpose, self.round_number, self.name = purpose, round_number, name
        self.uses = 0  # draws of noise so far
        self._coins = 0  # tossed so far
        self._streams = streams

    def words(self, count: int) -> Words:
        """Cohorts are drawn client by client: a word belongs to a name, not to a position. How many
        words coins take is noted."""
        names = self._streams.names
        if self.purpose in COINS:
            self._coins += count
            self._streams.coins[self.purpose, self.round_number, self.name] = self._coins
        if self.purpose != "cohort" or count != len(names):
            return super().words(count)
        keys = b"".join(self._streams.key("member", self.round_number, name)[:8] for name in names)
        return np.frombuffer(keys, dtype=_WORD).astype(np.uint64)


class Streams:
    """All randomness of one world. Two worlds of the same case share it, client by client."""

    def __init__(self, case: int) -> None:
        self._case = case
        self._seeded = Randomness(case % 2**62)
        self.names: Sequence[str] = ()
        self.coins: dict[tuple[str, int, str | None], int] = {}  # by purpose, round and client
        self._numbers: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def name_clients(self, names: Sequence[str]) -> None:
        """Whose data stands at which position of this world's federation."""
        self.names = names
        keys = (int.from_bytes(self.key("client", 0, name)[:4], "little") for name in names)
        self._numbers = np.fromiter(keys, np.int64, len(names))

    def key(self, purpose: str, round_number: int, name: str | None) -> bytes:
        return hashlib.sha256(f"{self._case}/{purpose}/{round_number}/{name}".encode()).digest()

    def stream(self, randomness: Randomness, purpose: str, round_number: int = 0, client: int = -1):
        """In the place of `Randomness.stream`."""
        return Tagged(
            self, purpose, round_number, None if client < 0 else self.name(randomness, client)
        )

    def name(self, randomness: Randomness, client: int) -> str:
        """Whose number this is; a client that trains alone calls itself number 0. Before there is
        a federation, shares of noise have numbers only."""
        number = client + randomness._first
        return self.names[number] if self.names else f"share {number}"

    def shuffle_words(self, randomness, round_number, clients, positions) -> Words:
        """In the place of `Randomness.shuffle_words`: seeded by the case, clients by name."""
        numbers = self._numbers[clients + randomness._first]
        return _SHUFFLE(self._seeded, round_number, numbers, positions)


_SHUFFLE = Randomness.shuffle_words
