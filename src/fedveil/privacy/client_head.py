"""The head of a client's ledger, kept apart: how many events there are, and the last one's digest.

It lies beside the ledger (`NAME.head`) and, as a note, with the user's state (`privacy.witness`).
An event is committed to the ledger first and then noted here, before anything leaves the client. So
the ledger may be ahead of its head by the one event whose noting a crash prevented, and is never
behind: if it is, its last events were cut, or it is an older copy. Putting ledger, head and note
back together is not noticed: they belong where only their owner can write.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.privacy.witness import format_note, parse_note

Head = tuple[int, str]  # number of events, digest of the last
NONE: Head = (0, "")


def read_head(path: Path) -> Head:
    """What was noted of the ledger at `path`; `NONE` if nothing was."""
    try:
        data = _place(path).read_bytes()
    except FileNotFoundError:
        return NONE
    found = parse_note(data)
    if data and found is None:
        raise ConfigError(f"client ledger {path}: its head {_place(path)} is damaged")
    return found or NONE


def write_head(path: Path, head: Head) -> None:
    """Note an event that was committed, unless another process has noted a later one."""
    with _open(path) as descriptor:
        found = parse_note(os.pread(descriptor, 1000, 0)) or NONE
        if head[0] > found[0]:
            os.pwrite(descriptor, format_note(*head), 0)
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
