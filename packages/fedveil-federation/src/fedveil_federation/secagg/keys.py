"""A device's own keys: a lasting Ed25519 identity and an X25519 key that is renewed.

The identity says who speaks; the X25519 key, signed by it on a `KeyCard`, is what pairs agree with.
Renewing it (`renewed`) forgets the old one, so what was masked under it stays masked even if the
device is broken into later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.messages import KeyCard
from fedveil_federation.secagg.wire import MAX_ID


@dataclass(frozen=True)
class DeviceKeys:
    """Private keys of one device; `version` counts its X25519 keys from 1."""

    federation: str
    device: int
    identity: Ed25519PrivateKey = field(repr=False)
    agreement: X25519PrivateKey = field(repr=False)
    version: int = 1

    @property
    def public(self) -> bytes:
        """Of the X25519 key."""
        return self.agreement.public_key().public_bytes_raw()

    def card(self) -> bytes:
        """The signed frame that enrols, or re-enrols, this device."""
        card = KeyCard(
            self.federation,
            self.device,
            self.version,
            self.identity.public_key().public_bytes_raw(),
            self.public,
        )
        return wire.seal(card, self.identity)

    def renewed(self) -> DeviceKeys:
        """Return the same identity with a fresh X25519 key of the next version."""
        return replace(self, agreement=X25519PrivateKey.generate(), version=self.version + 1)


def new_keys(federation: str, device: int) -> DeviceKeys:
    """Make fresh keys from the operating system.

    Args:
        federation: The federation that they are for.
        device: The device's id there, 0 to 2^63 - 1.

    Returns:
        The keys, of version 1.
    """
    if not 0 <= device <= MAX_ID:
        raise ConfigError(f"device = {device}: need an id within 0..2^63 - 1")
    return DeviceKeys(federation, device, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())


def signed(author: Ed25519PublicKey, signature: bytes, content: bytes) -> bool:
    """Whether this is the author's signature of the content."""
    try:
        author.verify(signature, content)
    except InvalidSignature:
        return False
    return True
