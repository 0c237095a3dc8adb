"""What passes between hub and guards: a header and some bytes, signed.

    frame = magic (4), Ed25519 signature (64), header's length (4), header (JSON), parts

A request is signed by the hub. A reply is signed by the site, together with the signature of the
request that it answers, so that no courier can give one request the answer of another. A refusal of
what the hub has not signed is signed together with all of it: the hub's signature may be in there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.core.canonical import canonical
from fedveil.core.errors import FedveilError
from fedveil_federation.deploy.courier import MAX_FRAME
from fedveil_federation.secagg.keys import signed

MAGIC = b"FVD1"
_BODY = 4 + 64
_MAX_HEADER = 1 << 20


class BadFrame(FedveilError):
    """Bytes that are no message of a deployment, or that nobody known has signed."""


@dataclass(frozen=True)
class Message:
    """A message, and the bytes that go with it."""

    header: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()

    def number(self, name: str) -> int:
        """A whole number of the header."""
        value = self.header.get(name)
        if type(value) is not int or not 0 <= value < 2**32:
            raise BadFrame(f"message: {name} must be a whole number")
        return value

    def text(self, name: str) -> str:
        value = self.header.get(name)
        if type(value) is not str:
            raise BadFrame(f"message: {name} must be text")
        return value

    def part(self, at: int = 0) -> bytes:
        if at >= len(self.parts):
            raise BadFrame(f"message: part {at + 1} is missing")
        return self.parts[at]


def seal(
    message: Message, author: Ed25519PrivateKey, answers: bytes = b"", known: bool = True
) -> bytes:
    """A signed frame; `answers`: the request to which it is the reply; `known`: as the hub's."""
    header = {**message.header, "parts": [len(part) for part in message.parts]}
    text = canonical(header)
    body = (len(text).to_bytes(4, "little"), text, *message.parts)
    return b"".join((MAGIC, author.sign(_signed(body, answers, known)), *body))


def unseal(
    frame: bytes, authors: Iterable[bytes], answers: bytes = b"", most: int = MAX_FRAME
) -> Message:
    """The message in a frame that one of these authors (public keys) has signed."""
    if len(frame) > most:
        raise BadFrame(f"message: {len(frame)} bytes, at most {most} are taken")
    if len(frame) < _BODY + 4 or frame[:4] != MAGIC:
        raise BadFrame("message: not one of ours")
    body = (memoryview(frame)[_BODY:],)
    keys = [Ed25519PublicKey.from_public_bytes(author) for author in authors]
    if not any(
        signed(key, signature_of(frame), _signed(body, answers, known))
        for known in (True, False)[: 2 if answers else 1]
        for key in keys
    ):
        raise BadFrame("message: not signed by anybody who may send it")
    return claimed(frame)


def plain(said: object) -> str:
    """Return what another party says as one line that a terminal only shows."""
    text = said if isinstance(said, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text[:500])


def signature_of(frame: bytes) -> bytes:
    """Return a name for a frame whose signature was checked."""
    return frame[4:_BODY]


def claimed(frame: bytes) -> Message:
    """Return a frame's message before its signature is checked."""
    at = _BODY + 4
    size = int.from_bytes(frame[_BODY:at], "little")
    try:
        if size > min(_MAX_HEADER, len(frame) - at):
            raise ValueError("too long")
        header = json.loads(frame[at : at + size])
        sizes = header.pop("parts")
        if not all(type(one) is int and one >= 0 for one in sizes):
            raise ValueError("sizes")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise BadFrame("message: its header cannot be read") from None
    at += size
    if sum(sizes) != len(frame) - at:
        raise BadFrame("message: its parts are not as long as its header says")
    return Message(header, tuple(_cut(frame, at, sizes)))


def _cut(frame: bytes, at: int, sizes: Sequence[int]) -> Iterable[bytes]:
    for size in sizes:
        yield frame[at : at + size]
        at += size


def _signed(body: Iterable[bytes | memoryview], answers: bytes, known: bool) -> bytes:
    kind, digest = b"fedveil reply" if answers else b"fedveil request", hashlib.sha256()
    if not known:
        kind = b"fedveil refusal"
    for part in body:
        digest.update(part)
    about = answers[:_BODY] if known else answers
    return kind + hashlib.sha256(about).digest() + digest.digest()
