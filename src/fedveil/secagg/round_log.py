"""The server's write-ahead log of one round: what a killed hub needs to go on where it stood.

It holds the plan, every frame that was accepted and every phase that was closed. A close is on
disk, with all frames before it, before any device is told who was in time: a restarted server
therefore names the same sharers and survivors again, or has named nobody yet. Frames that a crash
tore off come again from the devices, which keep what they sent until the next leg.

    record = length (4 bytes), CRC-32 (4 bytes), kind (1 byte), content
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from fedveil.core.errors import ConfigError
from fedveil.secagg import derive

_HEAD = 9
MAGIC = b"FVSALOG4"


class RecordKind(IntEnum):
    PLAN = 1  # the plan's frame
    IDENTITIES = 2  # of all members, ascending: id (8 bytes), Ed25519 key (32 bytes)
    FRAME = 3
    CLOSED = 4  # the phase, one byte
    ABORTED = 5


class Unopened(ConfigError):
    """The server ended before the plan was on disk, hence before it went out."""


class Record(NamedTuple):
    kind: RecordKind
    content: bytes


class RoundLog:
    """An append-only file; `begin` makes it, `resume` reads it and goes on."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    @classmethod
    def begin(cls, path: Path, plan: bytes, identities: Mapping[int, bytes]) -> RoundLog:
        """A new log, on disk before the plan goes out; `ConfigError` if there is one already."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = cls(path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND, 0o600))
            packed = b"".join(derive.id_bytes(i) + key for i, key in sorted(identities.items()))
            _write(log._handle, MAGIC)
            log.append(RecordKind.PLAN, plan)
            log.append(RecordKind.IDENTITIES, packed, sync=True)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ConfigError(f"round log {path}: {error.strerror}") from None
        return log

    @classmethod
    def resume(cls, path: Path) -> tuple[RoundLog, list[Record]]:
        """The log and its records; a torn end is cut off."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
            with open(handle, "rb", closefd=False) as file:
                data = file.read()
            if data[: len(MAGIC)] != MAGIC and not MAGIC.startswith(data):
                raise ConfigError(f"round log {path}: of another program or version")
            found = list(_records(data))
            os.ftruncate(handle, found[-1][1] if found else 0)
        except OSError as error:
            raise ConfigError(f"round log {path}: {error.strerror}") from None
        records = [record for record, _ in found]
        kinds = [record.kind for record in records[:2]]
        if kinds != [RecordKind.PLAN, RecordKind.IDENTITIES]:
            raise Unopened(f"round log {path}: its plan was not written; no device has seen it")
        return cls(path, handle), records

    def append(self, kind: RecordKind, content: bytes, sync: bool = False) -> None:
        """Add a record; with `sync`, it and all before it survive a power cut."""
        body = bytes((kind,)) + content
        head = len(content).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        _write(self._handle, head + body)
        if sync:
            os.fsync(self._handle)

    def discard(self) -> None:
        """Delete the log, once what the round gave is kept elsewhere."""
        os.close(self._handle)
        self.path.unlink()


def identities_of(record: Record) -> dict[int, bytes]:
    packed = record.content
    return {
        int.from_bytes(packed[at : at + 8], "little"): packed[at + 8 : at + 40]
        for at in range(0, len(packed), 40)
    }


def _records(data: bytes) -> Iterator[tuple[Record, int]]:
    """Whole records with the place where each ends."""
    at = len(MAGIC)
    while at + _HEAD <= len(data):
        end = at + _HEAD + int.from_bytes(data[at : at + 4], "little")
        body = data[at + 8 : end]
        if end > len(data) or zlib.crc32(body) != int.from_bytes(data[at + 4 : at + 8], "little"):
            return
        if body[0] not in RecordKind._value2member_map_:
            return
        yield Record(RecordKind(body[0]), body[1:]), end
        at = end


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
