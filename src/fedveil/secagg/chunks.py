"""Long frames in pieces: a network that carries small messages, and a receiver with little memory.

A chunk is the offset of its bytes in the frame (8 bytes), then the bytes. Whoever carries chunks
says who sent each; the frame's signature is checked when it is whole, so a chunk that somebody
slipped in costs its victim a second try and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from fedveil.core.errors import ConfigError
from fedveil.secagg import wire
from fedveil.secagg.errors import Forged, Malformed, OutOfTurn

CHUNK_BYTES = 1 << 20


def chunks(frame: bytes, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """A frame in chunks of at most `size` bytes of it each."""
    if size < wire.HEADER:
        raise ConfigError(f"size = {size}: the first chunk holds the header, {wire.HEADER} bytes")
    for start in range(0, len(frame), size):
        yield start.to_bytes(8, "little") + frame[start : start + size]


class Assembler:
    """Frames of many senders from chunks, each sender's in order.

    `expects` is asked with the first chunk, as for a frame in one piece. At most `most` bytes are
    held for all senders together: if more come, the frame that was begun first is dropped, and its
    sender starts again.
    """

    def __init__(self, expects: Callable[[bytes], int], most: int, size: int = CHUNK_BYTES) -> None:
        self._expects = expects
        self._most = most
        self._size = size
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[int, bytearray]] = {}  # sender -> length, what came so far
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of unfinished frames."""
        return self._held

    def take(self, sender: int, chunk: bytes) -> bytes | None:
        """One chunk; the whole frame with the last one."""
        if type(chunk) is not bytes or not 8 < len(chunk) <= 8 + self._size:
            raise Malformed(f"a chunk holds 1 to {self._size} bytes after its offset")
        offset, data = int.from_bytes(chunk[:8], "little"), chunk[8:]
        opening = self._opening(sender, data) if offset == 0 else None
        with self._lock:
            _, before = self._begun.get(sender, (0, b""))
            if offset < len(before) and before[offset : offset + len(data)] == data:
                return None  # sent again
            if opening is not None:  # another frame
                self._drop(sender)
                self._begun[sender] = (opening, bytearray())
            if sender not in self._begun:
                raise OutOfTurn(f"device {sender}: send this frame from its start")
            length, held = self._begun[sender]
            if offset < len(held):  # one of the two is wrong, and nobody can tell which
                self._drop(sender)
                raise OutOfTurn(f"device {sender}: other bytes came before; send it from its start")
            if offset > len(held):
                raise OutOfTurn(f"device {sender}: {len(held)} bytes came, not {offset}")
            if offset + len(data) > length:
                self._drop(sender)
                raise Malformed(f"device {sender}: more bytes than the frame's header says")
            self._make_room(sender, len(data))
            held += data
            self._held += len(data)
            if len(held) < length:
                return None
            self._drop(sender)
            return bytes(held)

    def _opening(self, sender: int, data: bytes) -> int:
        if wire.head(data).device != sender:
            raise Forged(f"device {sender} sends a frame of device {wire.head(data).device}")
        length = self._expects(data)
        if length > self._most:
            raise Malformed(f"a frame of {length} bytes; at most {self._most} are held")
        return length

    def _make_room(self, sender: int, size: int) -> None:
        while self._held + size > self._most:
            self._drop(next(other for other in self._begun if other != sender))

    def _drop(self, sender: int) -> None:
        _, held = self._begun.pop(sender, (0, b""))
        self._held -= len(held)
