"""The file under a client's ledger: events that are only ever appended, in SQLite.

Each event carries a digest over itself and the one before it, so an edited or cut-out event is
noticed whenever the file is used: every transaction follows the chain from its first event. That
the last ones were cut, or the file deleted or put back, is noticed by its *head*: how many events
there are, and the last one's digest. It is kept apart, beside the ledger (`NAME.head`) and as a
note with the user's state (`privacy.ledger_anchor`), and compared whenever the file is used. An
event is committed first and then noted, before anything leaves the client. So the ledger may be
ahead of its head by the one event whose noting a crash prevented, and is never behind. Putting
ledger, head and note back together is not noticed: they belong where only their owner can write.

Beside the note lies a copy of all events (`ID.events`, one JSON list a line). From it `restore`
brings an older copy of the file up to date, so that a backup forgets nothing that was spent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.privacy import ledger_anchor

VERSION = 2
EXHAUSTED = 1e-9  # the budget of a ledger that allows nothing any more
_APPLICATION = 0x66766C31  # marks the file as ours
_LOCK_SECONDS = 60.0
_LONGEST_EVENT = 1 << 16  # bytes; the terms of a release have at most 4096


class LedgerFault(ConfigError):
    """The file of a ledger cannot be used; what it says is its owner's to know."""


Body = dict[str, Any]
Head = tuple[int, str]  # number of events, digest of the last
NONE: Head = (0, "")

# A commit or a cancel names the seq of its reservation; no reservation has two of them.
_SCHEMA = (
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL,"
    " reservation INTEGER UNIQUE, body TEXT NOT NULL, digest TEXT NOT NULL)",
    "CREATE TRIGGER no_update BEFORE UPDATE ON events"
    " BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON events"
    " BEGIN SELECT RAISE(ABORT, 'append only'); END",
)
_CHARGED = """
SELECT body, COUNT(*) FROM events AS reserved WHERE kind = 'reserve' AND NOT EXISTS (
    SELECT 1 FROM events WHERE reservation = reserved.seq AND kind = 'cancel'
) GROUP BY body
"""


class Events:
    """The events inside one transaction. Kinds: open, lower, reserve, commit, cancel; state notes
    a change of what else the owner keeps in `database`."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self.database, self._path = database, path

    def append(self, kind: str, body: Body, reservation: int | None = None) -> int:
        """Write one event down; its number."""
        seq, before = self.head()
        event = (seq + 1, kind, reservation, json.dumps(body, sort_keys=True))
        row = (*event, _digest(before, event))
        self.database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
        return int(seq + 1)

    def head(self) -> Head:
        """How many events there are, and the digest of the last."""
        row = self.database.execute("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1")
        return row.fetchone() or NONE

    def name(self) -> str:
        """The ledger's random id; empty before its first event."""
        row = self.database.execute("SELECT body FROM events WHERE seq = 1").fetchone()
        return "" if row is None else str(json.loads(row[0]).get("id", ""))

    def identity(self) -> str:
        """The digest of the first event, which no other ledger has; empty before it."""
        row = self.database.execute("SELECT digest FROM events WHERE seq = 1").fetchone()
        return "" if row is None else str(row[0])

    def check(self) -> None:
        """Refuse a ledger in which an event was altered, or lacks one that somebody was told of."""
        before, expected = "", 1
        for *event, digest in self.database.execute("SELECT * FROM events ORDER BY seq"):
            if event[0] != expected or digest != _digest(before, tuple(event)):
                raise LedgerFault(
                    f"client ledger {self._path}: event {expected} was altered; it allows nothing "
                    "any more"
                )
            before, expected = digest, expected + 1
        kept, noted = read_head(self._path), ledger_anchor.noted(self.name())
        for count, digest in (kept, noted or NONE):
            row = self.database.execute("SELECT digest FROM events WHERE seq = ?", (count,))
            if count and row.fetchone() != (digest,):
                raise LedgerFault(
                    f"client ledger {self._path}: lacks its event {count}: its end was cut, or an "
                    "older copy was put back; it allows nothing any more"
                )
        events = self.head()[0]
        if events > kept[0] + 1:
            raise LedgerFault(
                f"client ledger {self._path}: has {events} events, its head knows {kept[0]}: the "
                "head is missing, or an older copy of it was put back"
            )
        if events > kept[0]:  # a crash came between the two
            write_head(self._path, self.head())

    def terms(self) -> list[Body]:
        """The bodies of the events that set the terms (open, lower), the first one first."""
        bodies = self.database.execute(
            "SELECT body FROM events WHERE kind IN ('open', 'lower') ORDER BY seq"
        )
        return [json.loads(body) for (body,) in bodies]

    def budget(self) -> float:
        """The lowest budget ever set."""
        return min(float(body["budget_epsilon"]) for body in self.terms())

    def charged(self) -> list[tuple[Body, int]]:
        """Every reservation that was not cancelled, and how often the same one was made."""
        return [(json.loads(body), times) for body, times in self.database.execute(_CHARGED)]

    def fate(self, reservation: int) -> str | None:
        """Return the state of a reservation: open, commit or cancel; None if there is none."""
        row = self.database.execute(
            "SELECT (SELECT kind FROM events WHERE reservation = reserved.seq)"
            " FROM events AS reserved WHERE seq = ? AND kind = 'reserve'",
            (reservation,),
        ).fetchone()
        return None if row is None else str(row[0] or "open")


class _Open(threading.local):
    """The transactions that this thread is in, by file."""

    def __init__(self) -> None:
        self.events: dict[Path, Events] = {}


_OPEN = _Open()


@contextmanager
def transaction(path: Path) -> Iterator[Events]:
    """The file at `path` under an exclusive lock; it changes only if the block ends well.

    Inside another transaction on the same file it is a part of that one.
    """
    known = _OPEN.events.get(path)
    if known is not None:
        yield known
        return
    database = None
    try:
        database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
        database.execute("PRAGMA synchronous = EXTRA")  # survive a power cut
        database.execute("BEGIN IMMEDIATE")
        _check_kind(database, path)
        events = Events(database, path)
        events.check()
        before = events.head()
        _OPEN.events[path] = events
        yield events
        after, name = events.head(), events.name()
        database.execute("COMMIT")
        if after != before:
            write_head(path, after)
            ledger_anchor.note(name, *after)
            with suppress(OSError, RuntimeError):  # `check_anchor` says what is wrong
                _copy(database, name)
    except sqlite3.OperationalError as error:
        raise LedgerFault(f"client ledger {path}: {error}; nothing was written") from None
    except sqlite3.DatabaseError as error:
        raise LedgerFault(f"client ledger {path}: not a ledger, or damaged: {error}") from None
    except OSError as error:
        raise LedgerFault(f"client ledger {path}: its head cannot be kept: {error}") from None
    finally:
        _OPEN.events.pop(path, None)
        if database is not None:
            database.close()  # takes back what was not committed


def check_anchor(path: Path) -> None:
    """Check that the ledger's note and the copy of its events are kept, and can be.

    Raises:
        LedgerFault: they are missing, or cannot be written.
    """
    with transaction(path) as events:
        name = events.name()
        if ledger_anchor.noted(name) is None:
            raise LedgerFault(
                f"client ledger {path}: there is no note of how far it had come, so an older copy "
                "would not be noticed. If it was moved here or put back from a backup, run fedveil "
                "site restore; otherwise set XDG_STATE_HOME to the directory with its note."
            )
        try:
            ledger_anchor.place_of(name).open("r+b").close()
            _copy(events.database, name)
        except (OSError, RuntimeError) as error:
            raise LedgerFault(
                f"client ledger {path}: its note cannot be written: {error}. Set XDG_STATE_HOME "
                "to a directory that this account can write and backups of the site do not cover."
            ) from None


def restore(path: Path) -> int:
    """Append the events that an older copy of a ledger lacks.

    Args:
        path: the ledger, put back from a backup.

    Returns:
        How many events it lacked.

    Raises:
        LedgerFault: the copy of its events is missing, or of another ledger.
    """
    with _put_back(path) as events:
        count, digest = events.head()
        try:
            place = _copy_place(events.name())
            rows = [json.loads(line) for line in place.read_text().splitlines()]
        except (OSError, RuntimeError, ValueError) as error:
            raise LedgerFault(
                f"client ledger {path}: the copy of its events cannot be read: {error}. Where it "
                "is lost, fedveil site restore --exhaust lets the ledger allow nothing any more."
            ) from None
        if not 0 < count <= len(rows) or rows[count - 1][-1] != digest:
            raise LedgerFault(f"client ledger {path}: not an older copy of the ledger noted here")
        for row in rows[count:]:
            events.database.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
        return len(rows) - count


def exhaust(path: Path) -> None:
    """Let a ledger allow nothing any more, where nobody knows how far it had come.

    Args:
        path: the ledger, put back from a backup without the copy of its events.
    """
    with _put_back(path) as events:
        events.append("lower", {"budget_epsilon": EXHAUSTED})
        with suppress(OSError, RuntimeError):
            for place in (ledger_anchor.place_of(events.name()), _copy_place(events.name())):
                place.unlink(missing_ok=True)


@contextmanager
def _put_back(path: Path) -> Iterator[Events]:
    """The file at `path`, whatever its head says: when the block ends, its end is the head."""
    database = None
    try:
        database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        _check_kind(database, path)
        events = Events(database, path)
        if events.head() == NONE:
            raise LedgerFault(f"client ledger {path}: empty")
        yield events
        _place(path).unlink(missing_ok=True)
        write_head(path, events.head())
        events.check()
        database.execute("COMMIT")
        ledger_anchor.note(events.name(), *events.head())
        with suppress(OSError, RuntimeError):
            _copy(database, events.name())
    except sqlite3.Error as error:
        raise LedgerFault(f"client ledger {path}: not a ledger, or damaged: {error}") from None
    finally:
        if database is not None:
            database.close()


def _copy_place(name: str) -> Path:
    return ledger_anchor.place_of(name).with_suffix(".events")


def _copy(database: sqlite3.Connection, name: str) -> None:
    """Append to the copy of a ledger's events those that it lacks."""
    place = _copy_place(name)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # others may have committed since, and copy as well
        whole = file.seek(0, os.SEEK_END)
        file.seek(max(0, whole - _LONGEST_EVENT))
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # a crash came in the middle of it
            os.truncate(descriptor, whole - len(lines.pop()))
        have = json.loads(lines[-1])[0] if lines else 0
        rows = database.execute("SELECT * FROM events WHERE seq > ? ORDER BY seq", (have,))
        file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def _check_kind(database: sqlite3.Connection, path: Path) -> None:
    """Make the table in an empty file; refuse a file of somebody else or of another version."""
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (tables,) = database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute(f"PRAGMA user_version = {VERSION}")
        for statement in _SCHEMA:
            database.execute(statement)
    elif application != _APPLICATION:
        raise LedgerFault(f"client ledger {path}: this is another program's database")
    elif version != VERSION:
        raise LedgerFault(f"client ledger {path}: version {version}, not {VERSION}")


def _digest(before: str, event: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps([before, *event]).encode()).hexdigest()


def read_head(path: Path) -> Head:
    """Return the noted head of the ledger at `path`; `NONE` if there is none."""
    try:
        data = _place(path).read_bytes()
    except FileNotFoundError:
        return NONE
    found = ledger_anchor.parse_note(data)
    if data and found is None:
        raise LedgerFault(f"client ledger {path}: its head {_place(path)} is damaged")
    return found or NONE


def write_head(path: Path, head: Head) -> None:
    """Note an event that was committed, unless another process has noted a later one."""
    with _open(path) as descriptor:
        found = ledger_anchor.parse_note(os.pread(descriptor, 1000, 0)) or NONE
        if head[0] > found[0]:
            os.pwrite(descriptor, ledger_anchor.format_note(*head), 0)
            os.fsync(descriptor)
    if found == NONE:  # a new file: let its name survive a power cut too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system knows this
                os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(_place(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for two small calls, whoever waits
        yield descriptor
    finally:
        os.close(descriptor)


def _place(path: Path) -> Path:
    return path.with_name(path.name + ".head")
