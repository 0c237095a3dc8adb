"""The wire format, version 5: a signed frame around typed fields.

    bytes 0-3      "FVSA"
    byte  4        version (5)
    byte  5        kind of message
    bytes 6-13     device: the author, or the addressee
    bytes 14-45    context: digest of the plan; on cards the identity key
    bytes 46-49    length of the body
    bytes 50-113   Ed25519 signature of (label, bytes 4-49, SHA-256 of the body), or its `Stamp`
    bytes 114-     body: the message's other fields in order

    integer      8 bytes
    fixed bytes  as they are
    bytes, text  length (4 bytes), content
    ids          count (4 bytes), width w (1, 2, 4 or 8), the first id (8 bytes), then the steps
                 from one id to the next in w bytes each, w as small as possible

The header says whose frame it is and how long, so a receiver knows before it reads on whether it
wants it (`head`), and checks the signature before it looks into the body (`read`). A body is never
parsed for somebody whose signature does not hold. A reader takes no more memory than the frame has
bytes: lengths are compared with what is left before anything is made, and nothing nests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from cryptography.exceptions import InvalidSignature

from fedveil.privacy.secure_sums.derive import PROTOCOL
from fedveil.privacy.secure_sums.errors import Forged, Malformed
from fedveil_federation.secagg.session import Stamp

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


DEVICE: Final = "device"  # fields that the frame's header holds
CONTEXT: Final = "context"


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


MAGIC = b"FVSA"
VERSION = 5
SIGNATURE = 50  # where it begins
HEADER = 114
MAX_FRAME = (1 << 32) - 1


@dataclass(frozen=True)
class WireMessage:
    """The contents of a frame; subclasses give the kind and the fields."""

    KIND: ClassVar[int]


MessageT = TypeVar("MessageT", bound=WireMessage)


class Signer(Protocol):
    """An Ed25519 private key, or a `Stamp`."""

    def sign(self, data: bytes, /) -> bytes: ...


class Author(Protocol):
    """An Ed25519 public key, or a `Stamp`."""

    def verify(self, signature: bytes, data: bytes, /) -> None: ...


class Head(NamedTuple):
    """The claims in the first bytes of a frame; none of them is proved yet."""

    kind: int
    device: int
    context: bytes
    size: int  # of the whole frame


def head(start: bytes) -> Head:
    """The claims of a frame of which at least the first `HEADER` bytes are there."""
    if type(start) is not bytes:
        raise Malformed(f"a frame is bytes, not {type(start).__name__}")
    if len(start) < HEADER or start[:4] != MAGIC:
        raise Malformed("not a frame of this protocol")
    if start[4] != VERSION:
        raise Malformed(f"version {start[4]} of the protocol; this is version {VERSION}")
    device = int.from_bytes(start[6:14], "little")
    size = HEADER + int.from_bytes(start[46:50], "little")
    return Head(start[5], device, start[14:46], size)


def expect(start: bytes, kind: type[WireMessage], limit: int) -> Head:
    """The head of a frame of this kind and of at most `limit` bytes, or `Malformed`."""
    found = head(start)
    if found.kind != kind.KIND:
        raise Malformed(f"kind {found.kind} where a {kind.__name__} was expected")
    if found.size > limit:
        raise Malformed(f"{kind.__name__} of {found.size} bytes; at most {limit} can be right")
    return found


def read(frame: bytes, kind: type[MessageT], limit: int, author: Author) -> MessageT:
    """The message of a whole frame that `author` signed; `Malformed` or `Forged` otherwise."""
    found = expect(frame, kind, limit)
    if len(frame) != found.size:
        raise Malformed(f"{kind.__name__} of {len(frame)} bytes; its header says {found.size}")
    verify(frame, author)
    return parse(frame, kind)


def verify(frame: bytes, author: Author) -> None:
    """Raise `Forged` unless `author` signed this very frame."""
    content = covered(author, memoryview(frame)[HEADER:])
    check(author, frame[SIGNATURE:HEADER], frame[4:SIGNATURE], content)


def covered(author: Author | Signer, body: bytes | memoryview) -> bytes:
    """Return the bytes that stand for a body where it is signed or stamped."""
    return author.digest(body) if isinstance(author, Stamp) else digest_of(body)


def check(author: Author, signature: bytes, claims: bytes, content: bytes) -> None:
    """Raise `Forged` unless the signature is of these header bytes and this body's digest."""
    try:
        author.verify(signature, _signed(claims, content))
    except InvalidSignature:
        raise Forged("the signature is not its author's") from None


def body_digest(frame: bytes) -> bytes:
    """SHA-256 of a frame's body."""
    return digest_of(memoryview(frame)[HEADER:])


def message_digest(frame: bytes) -> bytes:
    """Stands for everything that a frame says: header and body, without the signature."""
    return digest_of(frame[4:SIGNATURE] + body_digest(frame))


def digest_of(body: bytes | memoryview) -> bytes:
    """Return the part of a body that a signature covers."""
    return hashlib.sha256(body).digest()


def seal(message: WireMessage, key: Signer) -> bytes:
    """The frame of a message, signed by its author."""
    claims, body = encoded(message)
    signature = key.sign(_signed(claims, covered(key, body)))
    return b"".join((MAGIC, claims, signature, body))


def encoded(message: WireMessage) -> tuple[bytes, bytes]:
    """The signed part of the header, and the body."""
    device, context, parts = 0, bytes(32), []
    for name, codec, _ in _specs(type(message)):
        value = getattr(message, name)
        if codec is DEVICE:
            device = value
        elif codec is CONTEXT:
            context = value
        else:
            parts.append(codec.pack(value))
    body = b"".join(parts)
    claims = b"".join(
        (
            bytes((VERSION, message.KIND)),
            device.to_bytes(8, "little"),
            context,
            len(body).to_bytes(4, "little"),
        )
    )
    return claims, body


def parse(frame: bytes, kind: type[MessageT]) -> MessageT:
    """The message of a frame whose signature holds."""
    found = head(frame)
    reader = Reader(memoryview(frame)[HEADER:])
    values: dict[str, object] = {}
    for name, codec, full_name in _specs(kind):
        if codec is DEVICE:
            values[name] = checked_id(found.device, full_name)
        elif codec is CONTEXT:
            values[name] = found.context
        else:
            values[name] = codec.take(reader, full_name)
    if reader.left:
        raise Malformed(f"{kind.__name__}: {reader.left} bytes after the last field")
    return kind(**values)


def _specs(kind: Any) -> tuple[tuple[str, Any, str], ...]:
    """Name, codec and full name of each field."""
    return tuple(
        (spec.name, spec.metadata["codec"], f"{kind.__name__}.{spec.name}") for spec in fields(kind)
    )


def _signed(claims: bytes, content: bytes) -> bytes:
    return PROTOCOL + b"frame\0" + claims + content
