"""The wire format, version 1: a signed frame around a msgpack body.

    bytes 0-3    "FVSA"
    byte  4      version (1)
    byte  5      kind of message
    bytes 6-69   Ed25519 signature of (label, version, kind, SHA-256 of the body)
    bytes 70-    body: one msgpack array, the message's fields in order

A field has a rule, kept in the message's dataclass, that fixes its type and bounds its size; a body
with another number of fields, another type, an extra byte or a value out of range is `Malformed`.
Nothing of a body is trusted before the signature holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import msgpack  # type: ignore[import-untyped]
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.secagg.derive import PROTOCOL
from fedveil.secagg.errors import Forged, Malformed

MAGIC = b"FVSA"
VERSION = 1
HEADER = 70
MAX_FRAME = 1 << 32
MAX_ID = (1 << 63) - 1

Rule = Callable[[str, Any], None]


@dataclass(frozen=True)
class Message:
    """What travels in a frame; subclasses give the kind and the fields."""

    KIND: ClassVar[int]


MessageT = TypeVar("MessageT", bound=Message)


def bytes_field(size: int | None = None) -> Any:
    """Raw bytes, of exactly `size` if given (else the reader knows the right length)."""

    def rule(name: str, value: Any) -> None:
        if type(value) is not bytes or (size is not None and len(value) != size):
            raise Malformed(f"{name}: need {'' if size is None else f'{size} '}bytes")

    return field(metadata={"rule": rule})


def int_field(low: int, high: int) -> Any:
    """An integer within low..high; a boolean is none."""

    def rule(name: str, value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise Malformed(f"{name}: need an integer within {low}..{high}")

    return field(metadata={"rule": rule})


def text_field(most: int) -> Any:
    """Text of 1..most bytes of UTF-8."""

    def rule(name: str, value: Any) -> None:
        if type(value) is not str or not 1 <= len(value.encode()) <= most:
            raise Malformed(f"{name}: need text of 1 to {most} bytes")

    return field(metadata={"rule": rule})


def ids_field(most: int) -> Any:
    """A list of at most `most` device ids, strictly ascending."""

    def rule(name: str, value: Any) -> None:
        if type(value) is not list or not 1 <= len(value) <= most:
            raise Malformed(f"{name}: need 1 to {most} ids")
        if not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
            raise Malformed(f"{name}: ids are integers within 0..2^63 - 1")
        if any(a >= b for a, b in pairwise(value)):
            raise Malformed(f"{name}: ids must ascend")

    return field(metadata={"rule": rule})


def kind_of(frame: bytes) -> int:
    """The kind a frame claims; `Malformed` if it is no frame of this version."""
    if type(frame) is not bytes:
        raise Malformed(f"a frame is bytes, not {type(frame).__name__}")
    if len(frame) <= HEADER or frame[:4] != MAGIC:
        raise Malformed("not a frame of this protocol")
    if frame[4] != VERSION:
        raise Malformed(f"version {frame[4]} of the protocol; this is version {VERSION}")
    return frame[5]


def body_digest(frame: bytes) -> bytes:
    """SHA-256 of a frame's body."""
    return hashlib.sha256(memoryview(frame)[HEADER:]).digest()


def seal(message: Message, key: Ed25519PrivateKey) -> bytes:
    """The frame of a message, signed by its author."""
    values = [getattr(message, spec.name) for spec in fields(message)]
    body: bytes = msgpack.packb(values, use_bin_type=True)
    signature = key.sign(_signed(message.KIND, hashlib.sha256(body).digest()))
    return b"".join((MAGIC, bytes((VERSION, message.KIND)), signature, body))


def read(frame: bytes, expected: type[MessageT], limit: int) -> MessageT:
    """Parse and check a frame of at most `limit` bytes; the signature is not looked at yet."""
    kind = kind_of(frame)
    if kind != expected.KIND:
        raise Malformed(f"kind {kind} where a {expected.__name__} was expected")
    if len(frame) > min(limit, MAX_FRAME):
        raise Malformed(f"{expected.__name__} of {len(frame)} bytes; at most {limit} can be right")
    return _parse(memoryview(frame)[HEADER:], expected)


def verify(frame: bytes, author: Ed25519PublicKey) -> None:
    """Raise `Forged` unless `author` signed this very frame."""
    try:
        author.verify(frame[6:HEADER], _signed(frame[5], body_digest(frame)))
    except InvalidSignature:
        raise Forged("the signature is not its author's") from None


def _parse(body: memoryview, expected: type[MessageT]) -> MessageT:
    specs = fields(expected)
    try:
        values = msgpack.unpackb(body, raw=False, use_list=True, strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise Malformed(f"{expected.__name__}: {type(error).__name__} in the body") from None
    except msgpack.exceptions.UnpackException as error:
        raise Malformed(f"{expected.__name__}: {type(error).__name__} in the body") from None
    if type(values) is not list or len(values) != len(specs):
        raise Malformed(f"{expected.__name__}: need a list of {len(specs)} fields")
    for spec, value in zip(specs, values, strict=True):
        spec.metadata["rule"](f"{expected.__name__}.{spec.name}", value)
    return expected(
        **{
            spec.name: tuple(value) if type(value) is list else value
            for spec, value in zip(specs, values, strict=True)
        }
    )


def _signed(kind: int, body_hash: bytes) -> bytes:
    return PROTOCOL + b"frame\0" + bytes((VERSION, kind)) + body_hash
