"""The ledger of a run: what was released, written down before it was.

One JSON document a line. The first line is the plan's header (setting, delta, planned releases);
every later line is one reserved release. A reservation is on disk before the result it pays for,
so the ledger never counts less than what left. It cannot be exceeded: a release beyond the plan is
refused, whatever crashed before.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.errors import BadInput, FedveilError
from fedveil.privacy.accounting import Release, Setting, account
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.units import Entropy

VERSION = 1


class BudgetSpent(FedveilError):
    """A release would go beyond what was planned and promised."""


@dataclass(frozen=True)
class Header:
    """What a run promised: the releases of all its rounds, under which setting, at which delta."""

    setting: Setting
    delta: float
    planned: tuple[Release, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "setting": self.setting.to_dict(),
            "delta": self.delta,
            "planned": [release.to_dict() for release in self.planned],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Header:
        version = document.get("version") if isinstance(document, dict) else None
        if version != VERSION:
            raise BadInput(f"ledger: version {version!r}, not {VERSION}")
        return cls(
            Setting.from_dict(document["setting"]),
            float(document["delta"]),
            tuple(Release.from_dict(release) for release in document["planned"]),
        )


@dataclass(frozen=True)
class Entry:
    """One reserved release: which round, and which of the planned releases."""

    round: int
    planned: int  # index into the header's releases


class Ledger:
    """An append-only file of releases. Opening one replays it; `reserve` adds to it."""

    def __init__(self, path: Path, header: Header, entries: Sequence[Entry]) -> None:
        self.path, self.header = path, header
        self._rounds = {entry.round for entry in entries}
        self._spent = Counter(entry.planned for entry in entries)

    @classmethod
    def create(cls, path: Path, header: Header) -> Ledger:
        """Start a ledger; the file must not exist."""
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(header.to_dict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return cls(path, header, ())

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Replay a ledger. A last line cut short by a crash paid for nothing that left."""
        header, entries, complete = _replay(path)
        with path.open("rb+") as file:  # what is appended next must start a line of its own
            file.truncate(complete)
        return cls(path, header, entries)

    @property
    def repeatable(self) -> bool:
        """With a seed, redoing a round draws the same noise and releases nothing new."""
        return self.header.setting.entropy is Entropy.SEEDED

    @property
    def remaining(self) -> int:
        """How many more rounds may be released."""
        left = [release.rounds - self._spent[i] for i, release in enumerate(self.header.planned)]
        return min(left, default=0)

    def reserve(self, round: int) -> None:
        """Write down that round `round` releases its part of the plan, before it does.

        A repeated round counts again, unless its noise is the same as before.
        """
        if self.repeatable and round in self._rounds:
            return
        if self.remaining < 1:
            raise BudgetSpent(
                f"round {round + 1}: every planned release is spent; "
                "one more would break the promised epsilon"
            )
        planned = range(len(self.header.planned))
        self._append("".join(json.dumps({"round": round, "planned": i}) + "\n" for i in planned))
        self._rounds.add(round)
        self._spent.update(planned)

    def _append(self, lines: str) -> None:
        data = lines.encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if not self.repeatable:  # protective noise: survive a power cut, not only a kill
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def guarantee(self) -> Guarantee | None:
        """What has been spent so far, recomputed from the entries; None if nothing was."""
        spent = [replace(r, rounds=self._spent[i]) for i, r in enumerate(self.header.planned)]
        if not any(release.rounds for release in spent):
            return None
        return account(spent, setting=self.header.setting, delta=self.header.delta)


def read(path: Path) -> Ledger:
    """A ledger to look at, without touching the file."""
    header, entries, _ = _replay(path)
    return Ledger(path, header, entries)


def _replay(path: Path) -> tuple[Header, list[Entry], int]:
    """Header, entries, and the length in bytes of the complete lines."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"ledger {path}: no such file") from None
    complete = data.rfind(b"\n") + 1
    entries: list[Entry] = []
    try:
        first, *lines = data[:complete].decode().splitlines()
        header = Header.from_dict(json.loads(first))
        for line in lines:
            document = json.loads(line)
            entry = Entry(int(document["round"]), int(document["planned"]))
            if not (0 <= entry.planned < len(header.planned) and entry.round >= 0):
                raise ValueError("it names a release that was never planned")
            entries.append(entry)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise BadInput(f"ledger {path}, line {len(entries) + 2}: cannot be read: {error}") from None
    return header, entries, complete
