"""The ledger of a run: what was released, written down before it was.

One JSON document a line. The first line is the header: what the run promises for all its rounds, a
random run id, and which file this is. Every later line is an event: a reserved round, or the user's
word that the run was moved. A reservation is on disk before the result it pays for, so the ledger
never counts less than what left; no round is reserved twice and none beyond the plan, whatever
crashed before.

Each line carries the SHA-256 over the line before it and its own contents, its *head*. Checkpoints
keep the head that they have seen (`engine.evidence`), and so does a note outside the run directory
(`privacy.ledger_anchor`): an edited line, a cut tail, another run's ledger and an older copy do not
fit them. A copied ledger is another file than its header says, and is not gone on with. Not noticed
is whoever rewrites ledger, checkpoint, metrics and note so that they agree: there is no secret here
that such a person does not have.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
from fedveil.core.units import Entropy
from fedveil.privacy import ledger_anchor
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.guarantee import Guarantee

VERSION = 4
_GENERATION = 0x80087601  # FS_IOC_GETVERSION
MOVED = "The run was copied, and the user declared that this copy alone goes on."

File = tuple[int, int, int]  # device, inode, and which file of those that had the inode


class BudgetSpent(FedveilError):
    """A release would go beyond what was planned and promised."""


class Inconsistent(ConfigError):
    """Records of a run that contradict each other: no guarantee follows from them."""


@dataclass(frozen=True)
class Header:
    """The promise of a run: the releases of all its rounds, under which model, at what delta.

    `recipe` is a digest of the recipe that the plan was made from. `clients` is one of the clients'
    names in their order, where a schedule counts how often each takes part: were they others after
    an interruption, somebody would take part more often than the schedule says.
    """

    privacy_model: PrivacyModel
    delta: float
    planned: tuple[Release, ...]
    rounds: int
    recipe: str = ""
    clients: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "privacy_model": self.privacy_model.to_dict(),
            "delta": self.delta,
            "planned": [release.to_dict() for release in self.planned],
            "rounds": self.rounds,
            "recipe": self.recipe,
            "clients": self.clients,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Header:
        return cls(
            PrivacyModel.from_dict(document["privacy_model"]),
            float(document["delta"]),
            tuple(Release.from_dict(release) for release in document["planned"]),
            int(document["rounds"]),
            str(document["recipe"]),
            str(document["clients"]),
        )


@dataclass(frozen=True)
class Line:
    """Where the ledger stood after a line."""

    head: str
    reserved: int  # rounds
    file: File  # which this one is
    moves: int = 0


class Ledger:
    """An append-only file of releases. Opening one replays it; `reserve` adds to it."""

    def __init__(self, path: Path, header: Header, run: str, lines: Sequence[Line]) -> None:
        self.path, self.header, self.run = path, header, run
        self._lines = list(lines)
        with path.open("rb") as file:
            self._opened = file_of(file.fileno())
            self._size = os.fstat(file.fileno()).st_size

    @classmethod
    def create(cls, path: Path, header: Header) -> Ledger:
        """Start a ledger; the file must not exist."""
        run = secrets.token_hex(16)
        with path.open("xb") as file:
            place = file_of(file.fileno())
            document = {"version": VERSION, "run": run, "file": place, "plan": header.to_dict()}
            head = _head("", document)
            file.write(_line(document, head))
            file.flush()
            os.fsync(file.fileno())
        return cls(path, header, run, [Line(head, 0, place)])

    @classmethod
    def open(cls, path: Path, *, moved: bool = False) -> Ledger:
        """Replay a ledger to go on with it. A last line cut short by a crash paid for nothing.

        A copy is refused, because the original may go on too and both would be released. `moved`
        is the user's word that it does not; it is written down.
        """
        ledger, complete = _replay(path)
        ledger.check_note(ledger.noted())
        here = ledger._opened
        copied = not ledger.repeatable and ledger._last.file != here
        if copied and not moved:
            raise PrivacyRefusal(
                f"{path}: a copy of another run's ledger; if both went on, more would be released "
                "than was accounted for",
                "go on with the original, or, if that is gone for good, say so with --moved",
            )
        if complete < ledger._size:  # what is appended next must start a line of its own
            os.truncate(path, complete)
            ledger._size = complete
        if copied:
            ledger._append({"moved": here}, file=here, moves=ledger.moves + 1)
        return ledger

    @property
    def repeatable(self) -> bool:
        """With a seed, redoing a round draws the same noise and releases nothing new."""
        return self.header.privacy_model.entropy is Entropy.SEEDED

    @property
    def _last(self) -> Line:
        return self._lines[-1]

    @property
    def lines(self) -> int:
        return len(self._lines)

    @property
    def head(self) -> str:
        """The digest over all lines."""
        return self._last.head

    @property
    def moves(self) -> int:
        """How often the user gave their word that a copy is the only one to go on."""
        return self._last.moves

    @property
    def reserved(self) -> int:
        """How many rounds are paid for, whatever became of them; the next one's number."""
        return self._last.reserved

    @property
    def remaining(self) -> int:
        """How many more rounds may be released."""
        return self.header.rounds - self.reserved

    def reserved_at(self, lines: int, head: str) -> int:
        """How many rounds were reserved when the ledger had so many lines, ending in `head`."""
        if not 1 <= lines <= self.lines:
            raise Inconsistent(
                f"ledger {self.path}: has {self.lines} of the {lines} lines it once had: it was "
                "cut, or is an older copy; do not rely on this run"
            )
        if self._lines[lines - 1].head != head:
            raise Inconsistent(
                f"ledger {self.path}: its first {lines} lines are not those that were written; "
                "do not rely on this run"
            )
        return self._lines[lines - 1].reserved

    def noted(self) -> tuple[int, str] | None:
        """Return the note about this ledger that is kept outside the run directory."""
        return None if self.repeatable else ledger_anchor.noted(self.run)

    def check_note(self, noted: tuple[int, str] | None) -> None:
        """Refuse a ledger that is behind what was noted about it."""
        if noted is not None:
            self.reserved_at(*noted)

    def reserve(self, round_number: int) -> None:
        """Write down that round `round` (from 0) releases its part of the plan, before it does.

        A round is never reserved again, unless its noise is the same as before.
        """
        if self.repeatable and 0 <= round_number < self.reserved:
            return
        if self.remaining < 1:
            raise BudgetSpent(
                f"round {round_number + 1}: every planned release is spent; "
                "one more would break the promised epsilon"
            )
        if round_number != self.reserved:
            raise BudgetSpent(
                f"round {round_number + 1}: the next to be released is round {self.reserved + 1}; "
                "a round that may have left is not drawn again"
            )
        self._append({"round": round_number}, reserved=round_number + 1)

    def _append(self, document: dict[str, Any], **changes: Any) -> None:
        """Write a line, after which `changes` hold."""
        head = _head(self.head, document)
        data = _line(document, head)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # two names of one file, two processes
            now = file_of(descriptor), os.fstat(descriptor).st_size
            if now != (self._opened, self._size):
                raise Inconsistent(f"ledger {self.path}: changed by somebody else during the run")
            try:
                if os.write(descriptor, data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                if not self.repeatable:  # protective noise: survive a power cut, not only a kill
                    os.fsync(descriptor)
            except OSError:  # nothing was paid for; half a line must not stay in the way
                with suppress(OSError):
                    os.ftruncate(descriptor, self._size)
                raise
        finally:
            os.close(descriptor)
        self._lines.append(replace(self._last, head=head, **changes))
        self._size += len(data)  # last: an interrupted call must not be followed by another
        if not self.repeatable:
            ledger_anchor.note(self.run, self.lines, head)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the run's whole plan, finished or not.

        A run that was stopped after somebody had looked at its outputs costs what its whole plan
        costs, for the number of rounds is then an output as well.
        """
        header, privacy_model = self.header, self.header.privacy_model
        if self.moves:
            privacy_model = replace(privacy_model, declared=(*privacy_model.declared, MOVED))
        return account(header.planned, privacy_model=privacy_model, delta=header.delta)

    def spent(self) -> float:
        """What the reserved rounds alone cost: an epsilon only if their number was fixed before
        anybody looked, which is not known here; so it certifies nothing."""
        if self.reserved == 0:
            return 0.0
        header = self.header
        begun = [_first(release, self.reserved) for release in header.planned]
        return account(begun, privacy_model=header.privacy_model, delta=header.delta).epsilon


def read(path: Path) -> Ledger:
    """A ledger to look at, without touching the file."""
    return _replay(path)[0]


def file_of(descriptor: int) -> File:
    """Which file this is: a rename keeps it, a copy is another one."""
    found, generation = os.fstat(descriptor), bytearray(8)
    with suppress(OSError):  # not every file system numbers the uses of an inode
        fcntl.ioctl(descriptor, _GENERATION, generation)
    return found.st_dev, found.st_ino, struct.unpack("=I4x", generation)[0]


def _first(release: Release, rounds: int) -> Release:
    """Return the most that a release shows in the run's first `rounds` rounds."""
    rounds, most = min(rounds, release.rounds), release.participations
    return replace(
        release, rounds=rounds, participations=None if most is None else min(most, rounds)
    )


def _head(before: str, document: dict[str, Any]) -> str:
    return hashlib.sha256((before + json.dumps(document, sort_keys=True)).encode()).hexdigest()


def _line(document: dict[str, Any], head: str) -> bytes:
    return (json.dumps({**document, "head": head}) + "\n").encode()


def _replay(path: Path) -> tuple[Ledger, int]:
    """The ledger, and the length in bytes of its complete lines."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Inconsistent(f"ledger {path}: missing; without it nothing is guaranteed") from None
    complete = data.rfind(b"\n") + 1
    lines: list[Line] = []
    try:
        first, *others = data[:complete].splitlines()
        document = json.loads(first)
        if document.get("version") != VERSION:
            raise ValueError(f"version {document.get('version')!r}, not {VERSION}")
        header, run = Header.from_dict(document["plan"]), str(document["run"])
        last = Line(_checked("", document), 0, _file(document["file"]))
        lines.append(last)
        for line in others:
            document = json.loads(line)
            last = replace(last, head=_checked(last.head, document))
            if "moved" in document:
                last = replace(last, file=_file(document["moved"]), moves=last.moves + 1)
            elif document["round"] != last.reserved or last.reserved >= header.rounds:
                raise ValueError(f"round {document['round']} is not the next of the plan")
            else:
                last = replace(last, reserved=last.reserved + 1)
            lines.append(last)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        where = f"ledger {path}, line {len(lines) + 1}"
        raise Inconsistent(f"{where}: damaged or changed: {error}") from None
    return Ledger(path, header, run, lines), complete


def _checked(before: str, document: dict[str, Any]) -> str:
    """The head of a line, which must follow from the line before and the line itself."""
    rest = {name: value for name, value in document.items() if name != "head"}
    head = _head(before, rest)
    if document["head"] != head:
        raise ValueError("it does not match its digest")
    return head


def _file(value: Any) -> File:
    device, inode, generation = value
    return int(device), int(inode), int(generation)
