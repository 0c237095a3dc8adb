"""What a device must remember across restarts: which rounds it has answered.

Two cohorts under one round number, differing by one device, would unmask that device. A round is
therefore claimed, on disk, before the first byte about it leaves, and never claimed again; numbers
only rise. Several purposes may share one round number if they share the cohort.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from fedveil.secagg.errors import RuleBroken


class Journal(Protocol):
    """Claims a round or raises `RuleBroken`; a claim that returned is never lost."""

    def claim(self, federation: str, round: int, purpose: str, members: bytes) -> None: ...


class MemoryJournal:
    """The rules without the memory of a disk: for simulated devices, which never restart."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, bytes, set[str]]] = {}

    def claim(self, federation: str, round: int, purpose: str, members: bytes) -> None:
        last, cohort, purposes = self._last.get(federation, (-1, b"", set()))
        _check(round, purpose, members, last, cohort, purposes)
        known = purposes if round == last else set()
        self._last[federation] = (round, members, known | {purpose})


class FileJournal:
    """Claims kept in an SQLite file, one per device, safe against crashes and second processes.

    A copy of the file put back from a backup forgets what came after it: never restore one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS claims (federation TEXT, round INTEGER, purpose TEXT,"
                " members BLOB, PRIMARY KEY (federation, round, purpose))"
            )

    def claim(self, federation: str, round: int, purpose: str, members: bytes) -> None:
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT round, purpose, members FROM claims WHERE federation = ? AND round ="
                " (SELECT max(round) FROM claims WHERE federation = ?)",
                (federation, federation),
            ).fetchall()
            last, cohort = (rows[0][0], rows[0][2]) if rows else (-1, b"")
            _check(round, purpose, members, last, cohort, {row[1] for row in rows})
            connection.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?)", (federation, round, purpose, members)
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one process at a time, on disk when it returns."""
        try:
            with closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as opened:
                opened.execute("PRAGMA synchronous = FULL")
                opened.execute("BEGIN IMMEDIATE")
                yield opened  # an exception leaves the transaction to be rolled back by close
                opened.execute("COMMIT")
        except sqlite3.Error as error:
            raise RuleBroken(f"journal {self._path}: {error}; no round without it") from None


def _check(
    round: int, purpose: str, members: bytes, last: int, cohort: bytes, purposes: set[str]
) -> None:
    if round < last:
        raise RuleBroken(f"round {round} comes after round {last}: numbers only rise")
    if round == last and purpose in purposes:
        raise RuleBroken(f"round {round} ({purpose}) was answered before")
    if round == last and members != cohort:
        raise RuleBroken(f"round {round} has another cohort already")
