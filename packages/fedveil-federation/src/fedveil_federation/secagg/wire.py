"""The wire format, version 5: a signed frame around typed fields.

    bytes 0-3      "FVSA"
    byte  4        version (5)
    byte  5        kind of message
    bytes 6-13     device: the author, or the addressee
    bytes 14-45    context: digest of the plan; on cards the identity key
    bytes 46-49    length of the body
    bytes 50-113   Ed25519 signature of (label, bytes 4-49, SHA-256 of the body), or its `Stamp`
    bytes 114-     body: the message's other fields in order (`fields.py`)

The header says whose frame it is and how long, so a receiver knows before it reads on whether it
wants it (`head`), and checks the signature before it looks into the body (`read`). A body is never
parsed for somebody whose signature does not hold.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from cryptography.exceptions import InvalidSignature

from fedveil.privacy.secure_sums.derive import PROTOCOL
from fedveil.privacy.secure_sums.errors import Forged, Malformed
from fedveil_federation.secagg import fields as codecs
from fedveil_federation.secagg.session import Stamp

MAGIC = b"FVSA"
VERSION = 5
SIGNATURE = 50  # where it begins
HEADER = 114
MAX_FRAME = (1 << 32) - 1


@dataclass(frozen=True)
class WireMessage:
    """What travels in a frame; subclasses give the kind and the fields."""

    KIND: ClassVar[int]


MessageT = TypeVar("MessageT", bound=WireMessage)


class Signer(Protocol):
    """An Ed25519 private key, or a `Stamp`."""

    def sign(self, data: bytes, /) -> bytes: ...


class Author(Protocol):
    """An Ed25519 public key, or a `Stamp`."""

    def verify(self, signature: bytes, data: bytes, /) -> None: ...


class Head(NamedTuple):
    """What the first bytes of a frame claim; nothing of it is proved yet."""

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
    """What stands for a body where it is signed, or stamped."""
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
    """What a signature covers of a body."""
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
        if codec is codecs.DEVICE:
            device = value
        elif codec is codecs.CONTEXT:
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
    reader = codecs.Reader(memoryview(frame)[HEADER:])
    values: dict[str, object] = {}
    for name, codec, full_name in _specs(kind):
        if codec is codecs.DEVICE:
            values[name] = codecs.checked_id(found.device, full_name)
        elif codec is codecs.CONTEXT:
            values[name] = found.context
        else:
            values[name] = codec.take(reader, full_name)
    if reader.left:
        raise Malformed(f"{kind.__name__}: {reader.left} bytes after the last field")
    return kind(**values)


_Specs = tuple[tuple[str, codecs.Codec, str], ...]
_known: dict[type[WireMessage], _Specs] = {}


def _specs(kind: type[WireMessage]) -> _Specs:
    """Name, codec and full name of each field."""
    if kind not in _known:
        _known[kind] = tuple(
            (spec.name, spec.metadata["codec"], f"{kind.__name__}.{spec.name}")
            for spec in fields(kind)
        )
    return _known[kind]


def _signed(claims: bytes, content: bytes) -> bytes:
    return PROTOCOL + b"frame\0" + claims + content
