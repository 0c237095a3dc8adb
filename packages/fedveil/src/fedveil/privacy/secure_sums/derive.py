"""Hashes and key derivation, each use under a label of its own.

Every label starts with the protocol's name and version, so that no value of one purpose, or of
another version, can serve for another. All integers are little-endian.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b

PROTOCOL = b"fedveil.secagg.v5."
ID_BYTES = 8
KEY_BYTES = 32
TAG_BYTES = 16


def id_bytes(device: int) -> bytes:
    """A device's id as 8 bytes."""
    return device.to_bytes(ID_BYTES, "little")


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the label and the parts, each preceded by its length: no two lists collide."""
    state = hashlib.sha256(PROTOCOL + label + b"\0")
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def extract(shared_secret: bytes, label: bytes, context: bytes) -> bytes:
    """HKDF-SHA256 of a Diffie-Hellman result: 32 bytes."""
    salt = hashlib.sha256(PROTOCOL + label).digest()
    uniform = hmac.digest(salt, shared_secret, "sha256")
    return hmac.digest(uniform, context + b"\x01", "sha256")


def expand(key: bytes, label: bytes, context: bytes = b"", length: int = KEY_BYTES) -> bytes:
    """Keyed BLAKE2b of (protocol, label, zero byte, context): up to 64 bytes of a uniform key.

    A device computes some hundred of these a round, and each costs a third of an HMAC-SHA256.
    """
    return blake2b(prefix(label) + context, key=key, digest_size=length).digest()


def expand_all(
    keys: Iterable[bytes], label: bytes, contexts: Iterable[bytes], length: int
) -> bytes:
    """Expand many keys, each with its context, one after the other: loops are costly here."""
    start = prefix(label)
    return b"".join(
        [
            blake2b(start + context, key=key, digest_size=length).digest()
            for key, context in zip(keys, contexts, strict=True)
        ]
    )


@cache  # labels are few
def prefix(label: bytes) -> bytes:
    return PROTOCOL + label + b"\0"


def same(left: bytes, right: bytes) -> bool:
    """Equality in a time that does not depend on where two secrets differ."""
    return hmac.compare_digest(left, right)
