"""What a device must remember across restarts: which rounds it has answered.

Two cohorts under one round number, differing by one device, would unmask that device. A round is
therefore claimed, on disk, before the first byte about it leaves, and never claimed again; numbers
only rise, by steps that the terms bound. Several purposes may share one round number if they share
the cohort. A journal belongs to one X25519 key and is made together with it: a key without its
journal must be renewed (`vault.py`), for nobody knows what it has answered.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Protocol

from fedveil.secagg import store
from fedveil.secagg.errors import RuleBroken


@dataclass(frozen=True)
class Claim:
    """A round that a device is about to answer; `cohort` is a digest of its members."""

    federation: str
    round_number: int
    purpose: str
    cohort: bytes
    step: int  # how far above the last round this one may lie


class Journal(Protocol):
    """Claims a round or raises `RuleBroken`; a claim that returned is never lost."""

    def claim(self, wanted: Claim) -> None: ...

    def draw(self, wanted: Claim, most: int) -> None:
        """Count one draw of a graph for a round that could be claimed; at most `most` of them."""


@dataclass(frozen=True)
class _Last:
    """The highest round so far: its cohort, and the purposes it has served."""

    round_number: int
    cohort: bytes = b""
    purposes: frozenset[str] = frozenset()

    def check(self, wanted: Claim) -> None:
        if wanted.round_number < self.round_number:
            raise RuleBroken(
                f"round {wanted.round_number} comes after round {self.round_number}: "
                "numbers only rise"
            )
        if wanted.round_number == self.round_number and wanted.purpose in self.purposes:
            raise RuleBroken(f"round {wanted.round_number} ({wanted.purpose}) was answered before")
        if wanted.round_number == self.round_number and wanted.cohort != self.cohort:
            raise RuleBroken(f"round {wanted.round_number} has another cohort already")
        if wanted.round_number > self.round_number + wanted.step:
            raise RuleBroken(
                f"round {wanted.round_number} lies {wanted.round_number - self.round_number} above "
                f"the last one, {self.round_number}; at most {wanted.step} are taken"
            )


class MemoryJournal:
    """The rules without the memory of a disk: for simulated devices, which never restart.

    `last`: the highest round that may not be answered any more.
    """

    def __init__(self, last: int = -1) -> None:
        self._lock = threading.Lock()
        self._start = _Last(last)
        self._last: dict[str, _Last] = {}
        self._draws: dict[tuple[str, int, str], int] = {}

    def claim(self, wanted: Claim) -> None:
        with self._lock:
            last = self._last.get(wanted.federation, self._start)
            last.check(wanted)
            known = last.purposes if wanted.round_number == last.round_number else frozenset()
            self._last[wanted.federation] = _Last(
                wanted.round_number, wanted.cohort, known | {wanted.purpose}
            )

    def draw(self, wanted: Claim, most: int) -> None:
        key = (wanted.federation, wanted.round_number, wanted.purpose)
        with self._lock:
            self._last.get(wanted.federation, self._start).check(wanted)
            _check_draws(wanted, self._draws.get(key, 0), most)
            self._draws[key] = self._draws.get(key, 0) + 1


_SCHEMA = (
    "CREATE TABLE owner (key BLOB NOT NULL, last INTEGER NOT NULL, claims INTEGER NOT NULL)",
    "CREATE TABLE claims (federation TEXT, round INTEGER, purpose TEXT, cohort BLOB,"
    " PRIMARY KEY (federation, round, purpose))",
    "CREATE TABLE draws (federation TEXT, round INTEGER, purpose TEXT, count INTEGER,"
    " PRIMARY KEY (federation, round, purpose))",
)


class FileJournal:
    """Claims kept in an SQLite file, one per key, safe against crashes and second processes.

    `key`: a digest of the X25519 key that the journal belongs to. The file must be there; `create`
    makes it, once, for a fresh key.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        with store.transaction(path) as connection:
            owner = connection.execute("SELECT key FROM owner").fetchall()
            if owner != [(key,)]:
                raise RuleBroken(f"journal {path}: it belongs to another key; renew the key")

    @classmethod
    def create(cls, path: Path, key: bytes, last: int = -1) -> FileJournal:
        """The journal of a fresh key; rounds up to `last` are never answered."""
        store.create(path, _SCHEMA, [("INSERT INTO owner VALUES (?, ?, 0)", (key, last))])
        return cls(path, key)

    @property
    def claims(self) -> int:
        """How many claims and draws were ever made: what a copy from a backup lacks."""
        with store.transaction(self._path) as connection:
            return int(connection.execute("SELECT claims FROM owner").fetchone()[0])

    @property
    def last(self) -> int:
        """The highest round claimed in any federation, or what the journal began with."""
        with store.transaction(self._path) as connection:
            found = connection.execute("SELECT last, (SELECT max(round) FROM claims) FROM owner")
            first, claimed = found.fetchone()
            return max(int(first), -1 if claimed is None else int(claimed))

    def claim(self, wanted: Claim) -> None:
        with store.transaction(self._path) as connection:
            self._last(connection, wanted.federation).check(wanted)
            connection.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?)",
                (wanted.federation, wanted.round_number, wanted.purpose, wanted.cohort),
            )
            connection.execute("UPDATE owner SET claims = claims + 1")

    def draw(self, wanted: Claim, most: int) -> None:
        key = (wanted.federation, wanted.round_number, wanted.purpose)
        with store.transaction(self._path) as connection:
            self._last(connection, wanted.federation).check(wanted)
            row = connection.execute(
                "SELECT count FROM draws WHERE federation = ? AND round = ? AND purpose = ?", key
            ).fetchone()
            _check_draws(wanted, row[0] if row else 0, most)
            connection.execute(
                "INSERT INTO draws VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                key,
            )
            connection.execute("UPDATE owner SET claims = claims + 1")

    @staticmethod
    def _last(connection: Connection, federation: str) -> _Last:
        rows = connection.execute(
            "SELECT round, purpose, cohort FROM claims WHERE federation = ? AND round ="
            " (SELECT max(round) FROM claims WHERE federation = ?)",
            (federation, federation),
        ).fetchall()
        if not rows:
            return _Last(connection.execute("SELECT last FROM owner").fetchone()[0])
        return _Last(rows[0][0], rows[0][2], frozenset(row[1] for row in rows))


def _check_draws(wanted: Claim, count: int, most: int) -> None:
    if count >= most:
        raise RuleBroken(
            f"round {wanted.round_number} ({wanted.purpose}): this device has drawn "
            f"{count} times for it"
        )
