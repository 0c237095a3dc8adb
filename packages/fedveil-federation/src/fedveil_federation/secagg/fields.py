"""How the fields of a message are written: each has a type, a range and one possible form.

    integer      8 bytes
    fixed bytes  as they are
    bytes, text  length (4 bytes), content
    ids          count (4 bytes), width w (1, 2, 4 or 8), the first id (8 bytes), then the steps
                 from one id to the next in w bytes each, w as small as possible

A reader takes no more memory than the frame has bytes: lengths are compared with what is left
before anything is made, and nothing nests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol

import numpy as np

from fedveil.privacy.secure_sums.errors import Malformed

MAX_ID = (1 << 63) - 1
_WIDTHS = (1, 2, 4, 8)


class Reader:
    """A body and how far it has been read."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._body) - self._at

    def take(self, size: int, name: str) -> bytes:
        if size > self.left:
            raise Malformed(f"{name}: {size} bytes where {self.left} are left")
        self._at += size
        return bytes(self._body[self._at - size : self._at])

    def number(self, size: int, name: str) -> int:
        return int.from_bytes(self.take(size, name), "little")


class Codec(Protocol):
    def pack(self, value: Any) -> bytes: ...

    def take(self, reader: Reader, name: str) -> Any: ...


@dataclass(frozen=True)
class _InHeader:
    """Fields that the frame's header holds."""

    what: str

    def pack(self, value: Any) -> bytes:
        raise TypeError(f"{self.what} belongs into the header")

    def take(self, reader: Reader, name: str) -> Any:
        raise TypeError(f"{self.what} belongs into the header")


DEVICE: Final = _InHeader("device")
CONTEXT: Final = _InHeader("context")


@dataclass(frozen=True)
class _Integer:
    low: int
    high: int

    def pack(self, value: int) -> bytes:
        return value.to_bytes(8, "little")

    def take(self, reader: Reader, name: str) -> int:
        value = reader.number(8, name)
        if not self.low <= value <= self.high:
            raise Malformed(f"{name}: need an integer within {self.low}..{self.high}")
        return value


@dataclass(frozen=True)
class _Bytes:
    size: int | None

    def pack(self, value: bytes) -> bytes:
        return value if self.size is not None else len(value).to_bytes(4, "little") + value

    def take(self, reader: Reader, name: str) -> bytes:
        return reader.take(reader.number(4, name) if self.size is None else self.size, name)


@dataclass(frozen=True)
class _Text:
    most: int

    def pack(self, value: str) -> bytes:
        return _Bytes(None).pack(value.encode())

    def take(self, reader: Reader, name: str) -> str:
        size = reader.number(4, name)
        if not 1 <= size <= self.most:
            raise Malformed(f"{name}: need text of 1 to {self.most} bytes")
        try:
            return reader.take(size, name).decode()
        except UnicodeDecodeError:
            raise Malformed(f"{name}: not UTF-8") from None


@dataclass(frozen=True)
class _Ids:
    most: int

    def pack(self, value: Sequence[int]) -> bytes:
        count = len(value).to_bytes(4, "little")
        steps = [after - before for before, after in pairwise(value)]
        width = _width(max(steps, default=1))
        packed = np.array(steps, dtype=f"<u{width}").tobytes()
        return count + bytes((width,)) + value[0].to_bytes(8, "little") + packed

    def take(self, reader: Reader, name: str) -> tuple[int, ...]:
        count = reader.number(4, name)
        if not 1 <= count <= self.most:
            raise Malformed(f"{name}: need 1 to {self.most} ids")
        width, first = reader.number(1, name), reader.number(8, name)
        if width not in _WIDTHS:
            raise Malformed(f"{name}: ids in steps of {width} bytes")
        packed = reader.take(width * (count - 1), name)
        steps: list[int] = np.frombuffer(packed, dtype=f"<u{width}").tolist()
        if steps and min(steps) < 1:
            raise Malformed(f"{name}: ids must ascend")
        if width != _width(max(steps, default=1)):
            raise Malformed(f"{name}: ids in wider steps than they need")
        ids = tuple(accumulate(steps, initial=first))
        checked_id(ids[-1], name)
        return ids


def _width(step: int) -> int:
    return next(width for width in _WIDTHS if step < 1 << 8 * width)


def checked_id(device: int, name: str) -> int:
    if device > MAX_ID:
        raise Malformed(f"{name}: ids are integers within 0..2^63 - 1")
    return device


def device_field() -> Any:
    """The device in the header: author or addressee."""
    return field(metadata={"codec": DEVICE})


def context_field() -> Any:
    """The 32 bytes in the header."""
    return field(metadata={"codec": CONTEXT})


def bytes_field(size: int | None = None) -> Any:
    """Raw bytes, of exactly `size` if given (else the receiver knows the right length)."""
    return field(metadata={"codec": _Bytes(size)})


def int_field(low: int, high: int) -> Any:
    """An integer within low..high."""
    return field(metadata={"codec": _Integer(low, high)})


def text_field(most: int) -> Any:
    """Text of 1..most bytes of UTF-8."""
    return field(metadata={"codec": _Text(most)})


def ids_field(most: int) -> Any:
    """A list of 1 to `most` device ids, strictly ascending."""
    return field(metadata={"codec": _Ids(most)})
