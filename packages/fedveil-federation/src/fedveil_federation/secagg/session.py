"""What authenticates the frames of one device and the server, once the device has shared.

The device signs its `Shares`, and in it a fresh X25519 key; the server's is in the plan that it
signs. The two agree on a key for each direction, and later frames carry a keyed hash where others
carry a signature: it costs a hundredth, and nobody but these two need be convinced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import ForeignKey

_PIECE = 1 << 30  # the library takes less than 2^31 bytes at a time


@dataclass(frozen=True, slots=True)
class Stamp:
    """A key by which both ends make and check the 64 bytes of a frame's signature."""

    key: bytes = field(repr=False)

    def digest(self, body: bytes | memoryview) -> bytes:
        """An almost universal hash of a body: GMAC of each piece at its number as the nonce, twenty
        times as fast as SHA-256. It never shows: `sign` hides it."""
        cipher = AESGCM(derive.expand(self.key, b"hash"))
        starts = range(0, max(1, len(body)), _PIECE)
        return b"".join(
            cipher.encrypt(number.to_bytes(12, "little"), b"", body[at : at + _PIECE])
            for number, at in enumerate(starts)
        )

    def sign(self, data: bytes) -> bytes:
        return derive.expand(self.key, b"stamp", data, 64)

    def verify(self, signature: bytes, data: bytes) -> None:
        if not derive.same(self.sign(data), signature):
            raise InvalidSignature


@dataclass(frozen=True, slots=True)
class Session:
    """The stamps of what a device sends up and of what the server sends down to it."""

    up: Stamp
    down: Stamp


@dataclass(frozen=True, slots=True)
class Handshake:
    """A device's session, and the key that it shows the server for it."""

    session: Session
    exchange: bytes


def begin(server: bytes, plan: bytes, device: int) -> Handshake:
    """Begin a session as a device.

    Args:
        server: The X25519 key of the plan.
        plan: The plan's digest.
        device: The device's id.

    Returns:
        The session, and the key to show the server for it.

    Raises:
        ForeignKey: The server's key is weak.
    """
    fresh = X25519PrivateKey.generate()
    own = fresh.public_key().public_bytes_raw()
    return Handshake(_agreed(fresh, server, plan, device, server + own), own)


def answer(
    server: X25519PrivateKey, public: bytes, other: bytes, plan: bytes, device: int
) -> Session:
    """Answer a device's handshake as the server.

    Args:
        server: The server's X25519 key.
        public: Its public part, as in the plan.
        other: The key that the device shows.
        plan: The plan's digest.
        device: The device's id.

    Returns:
        The session.

    Raises:
        ForeignKey: The device's key is weak.
    """
    return _agreed(server, other, plan, device, public + other)


def _agreed(own: X25519PrivateKey, other: bytes, plan: bytes, device: int, both: bytes) -> Session:
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # of small order: anybody would know the result
        raise ForeignKey(f"device {device}: a weak X25519 key for its frames") from None
    key = derive.extract(shared, b"session", plan + derive.id_bytes(device) + both)
    stamps = derive.expand(key, b"stamps", length=2 * derive.KEY_BYTES)
    return Session(Stamp(stamps[: derive.KEY_BYTES]), Stamp(stamps[derive.KEY_BYTES :]))


def exchange_key(identity: Ed25519PrivateKey) -> X25519PrivateKey:
    """A server's X25519 key: made from its signing key, so that a restarted server has it too."""
    seed = derive.expand(identity.private_bytes_raw(), b"exchange")
    return X25519PrivateKey.from_private_bytes(seed)
