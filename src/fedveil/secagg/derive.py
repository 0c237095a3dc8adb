"""Hashes and key derivation, each use under a label of its own.

Every label starts with the protocol's name and version, so that no value of one purpose, or of
another version, can serve for another. All integers are little-endian.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PROTOCOL = b"fedveil.secagg.v3."
KEY_BYTES = 32
TAG_BYTES = 16


def id_bytes(device: int) -> bytes:
    """A device's id as 8 bytes."""
    return device.to_bytes(8, "little")


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
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, context).derive(shared_secret)


def expand(key: bytes, label: bytes, context: bytes = b"", length: int = KEY_BYTES) -> bytes:
    """HKDF-Expand-SHA256 of a uniform key, info = protocol, label, zero byte, context.

    Written out, because the library's object costs several times the HMAC it wraps.
    """
    info = PROTOCOL + label + b"\0" + context
    found = block = hmac.digest(key, info + b"\x01", "sha256")
    if length == KEY_BYTES:
        return found
    for counter in range(2, -(-length // KEY_BYTES) + 1):
        block = hmac.digest(key, block + info + bytes((counter,)), "sha256")
        found += block
    return found[:length]


def fork(key: bytes, label: bytes) -> tuple[bytes, bytes]:
    """Two keys from one, 32 bytes each: HMAC-SHA512 of (protocol, label, zero byte), halved."""
    both = hmac.digest(key, PROTOCOL + label + b"\0", "sha512")
    return both[:KEY_BYTES], both[KEY_BYTES:]


def tag(key: bytes, label: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 of (protocol, label, zero byte, message), cut to 16 bytes."""
    return hmac.digest(key, PROTOCOL + label + b"\0" + message, "sha256")[:TAG_BYTES]


def same(left: bytes, right: bytes) -> bool:
    """Equality in a time that does not depend on where two secrets differ."""
    return hmac.compare_digest(left, right)
