"""Notes outside run directories: how far each ledger has come, one small file for each.

They lie with the user's state (`$XDG_STATE_HOME/fedveil`, else `~/.local/state/fedveil`). A ledger
that is behind its note was cut, or is an older copy of one that went on. A note is a second
witness, not a condition: where none can be kept or found (no home, another machine), the other
checks remain. It holds a random id, a number of lines and a digest: nothing about data.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_NOTE = re.compile(rb"(\d{12}) ([0-9a-f]{64})\n")
_ID = re.compile(r"[0-9a-f]{32}")


def noted(name: str) -> tuple[int, str] | None:
    """Lines and head of the ledger with this id when they were last noted; None: not known."""
    try:
        return parse_note(place_of(name).read_bytes())
    except (OSError, RuntimeError):
        return None


def note(name: str, lines: int, head: str) -> None:
    """Remember how far a ledger has come, if there is a place for it.

    One block written in place: a crash leaves the old note or the new one, and an old one only
    knows less.
    """
    with suppress(OSError, RuntimeError):
        path = place_of(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, format_note(lines, head), 0)
        finally:
            os.close(descriptor)


def format_note(lines: int, head: str) -> bytes:
    return b"%012d %s\n" % (lines, head.encode())


def parse_note(data: bytes) -> tuple[int, str] | None:
    """Lines and head; None if that is no note."""
    found = _NOTE.fullmatch(data)
    return None if found is None else (int(found[1]), found[2].decode())


def place_of(name: str) -> Path:
    """Return where the note of the ledger with this id lies.

    Raises:
        RuntimeError: it is no id, or this account has no home.
    """
    if not _ID.fullmatch(name):
        raise RuntimeError(f"{name!r} is no id")
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return home / "fedveil" / "ledgers" / name
