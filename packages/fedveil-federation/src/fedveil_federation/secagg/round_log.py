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
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fedveil.core.errors import ConfigError
from fedveil.core.files import sync_directory
from fedveil.privacy.secure_sums import derive

_HEAD = 9
MAGIC = b"FVSALOG5"

Identities = dict[int, bytes]


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
            try:
                packed = b"".join(derive.id_bytes(i) + key for i, key in sorted(identities.items()))
                _write(log._handle, MAGIC)
                log.append(RecordKind.PLAN, plan)
                log.append(RecordKind.IDENTITIES, packed, sync=True)
                sync_directory(path.parent)
            except BaseException:
                log.discard()  # nobody has been told of this round
                raise
        except OSError as error:
            raise ConfigError(f"round log {path}: {error.strerror}") from None
        return log

    @classmethod
    @contextmanager
    def resume(cls, path: Path) -> Iterator[tuple[RoundLog, bytes, Identities, Iterator[Record]]]:
        """The log, its plan and identities, and the records after them, read one by one.

        A torn end is cut off when they have been read. The log is closed if they cannot be used.
        """
        handle = -1
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
            with open(handle, "rb", closefd=False) as file:
                start = file.read(len(MAGIC))
                if not MAGIC.startswith(start):
                    raise ConfigError(f"round log {path}: of another program or version")
                records = _records(file)
                none = Record(RecordKind.ABORTED, b"")
                plan, packed = next(records, none), next(records, none)
                if (plan.kind, packed.kind) != (RecordKind.PLAN, RecordKind.IDENTITIES):
                    raise Unopened(f"round log {path}: it has no plan, so no device has seen one")
                yield cls(path, handle), plan.content, _identities(packed.content), records
        except BaseException as error:
            if handle >= 0:
                os.close(handle)
            if isinstance(error, OSError):
                raise ConfigError(f"round log {path}: {error.strerror}") from None
            raise

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


def _identities(packed: bytes) -> Identities:
    return {
        int.from_bytes(packed[at : at + 8], "little"): packed[at + 8 : at + 40]
        for at in range(0, len(packed), 40)
    }


def _records(file: BinaryIO) -> Iterator[Record]:
    """The whole records that follow; what comes after them is cut off."""
    size, whole = os.fstat(file.fileno()).st_size, file.tell()
    while len(head := file.read(_HEAD)) == _HEAD:
        length, check = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4))
        if whole + _HEAD + length > size or head[8] not in RecordKind._value2member_map_:
            break
        content = file.read(length)
        if zlib.crc32(content, zlib.crc32(head[8:])) != check:
            break
        yield Record(RecordKind(head[8]), content)
        whole += _HEAD + length
    os.ftruncate(file.fileno(), whole)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
