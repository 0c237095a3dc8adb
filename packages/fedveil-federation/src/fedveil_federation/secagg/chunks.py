"""Long frames in pieces: a network that carries small messages, and a receiver with little memory.

A chunk is the offset of its bytes in the frame (8 bytes), then the bytes. Whoever carries chunks
says who sent each; the frame's signature is checked when it is whole, so a chunk that somebody
slipped in costs its victim a second try and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn
from fedveil_federation.secagg import wire

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
    set aside for all senders together; who begins a frame when there is no room comes again later.
    Whoever carries the chunks knows the time, and drops senders that have stalled.
    """

    def __init__(self, expects: Callable[[bytes], int], most: int, size: int = CHUNK_BYTES) -> None:
        self._expects = expects
        self._most = most
        self._size = size
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[int, bytearray]] = {}  # sender -> length, what came so far

    @property
    def held(self) -> int:
        """Bytes of unfinished frames."""
        with self._lock:
            return sum(len(data) for _, data in self._begun.values())

    @property
    def begun(self) -> list[int]:
        """Senders of unfinished frames, in the order in which they began."""
        return list(self._begun)

    def drop(self, sender: int) -> None:
        """Forget what a sender has begun; it starts again."""
        with self._lock:
            self._begun.pop(sender, None)

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
                self._begun.pop(sender, None)
                self._begin(sender, opening)
            if sender not in self._begun:
                raise OutOfTurn(f"device {sender}: send this frame from its start")
            length, held = self._begun[sender]
            if offset < len(held):  # one of the two is wrong, and nobody can tell which
                del self._begun[sender]
                raise OutOfTurn(f"device {sender}: other bytes came before; send it from its start")
            if offset > len(held):
                raise OutOfTurn(f"device {sender}: {len(held)} bytes came, not {offset}")
            if offset + len(data) > length:
                del self._begun[sender]
                raise Malformed(f"device {sender}: more bytes than the frame's header says")
            held += data
            if len(held) < length:
                return None
            del self._begun[sender]
            return bytes(held)

    def _opening(self, sender: int, data: bytes) -> int:
        if wire.head(data).device != sender:
            raise Forged(f"device {sender} sends a frame of device {wire.head(data).device}")
        length = self._expects(data)
        if length > self._most:
            raise Malformed(f"a frame of {length} bytes; at most {self._most} are held")
        return length

    def _begin(self, sender: int, length: int) -> None:
        if sum(one for one, _ in self._begun.values()) + length > self._most:
            raise OutOfTurn(f"device {sender}: no room for {length} bytes now, send it later")
        self._begun[sender] = (length, bytearray())
