"""Who is enrolled: key cards checked against identities that were known beforehand.

The server relays cards and could invent them. A card therefore counts only if its identity key was
pinned for that device, or certified by an authority whose key the device holds, and if that
identity signed it. Versions only rise: a withdrawn or replaced key never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fedveil.secagg import derive, wire
from fedveil.secagg.errors import ForeignKey, RuleBroken
from fedveil.secagg.keys import certificate_holds
from fedveil.secagg.messages import KeyCard, Leave

_CARD_LIMIT = 512


@dataclass(frozen=True)
class Admission:
    """Whom to believe: identities pinned by device id, an authority's key, or both; else nobody."""

    pinned: Mapping[int, bytes] = field(default_factory=dict)
    authority: bytes | None = None

    def admits(self, card: KeyCard) -> bool:
        if self.pinned.get(card.device) == card.identity:
            return True
        if self.authority is None or len(card.certificate) != 64:
            return False
        authority = Ed25519PublicKey.from_public_bytes(self.authority)
        return certificate_holds(
            authority, card.certificate, card.federation, card.device, card.identity
        )


@dataclass(frozen=True)
class Enrolled:
    """One device as others see it; `fingerprint` is the SHA-256 of its card."""

    device: int
    version: int
    identity_bytes: bytes
    identity: Ed25519PublicKey
    agreement: X25519PublicKey
    fingerprint: bytes


class Roster:
    """The enrolled devices; grows and shrinks between rounds without a restart."""

    def __init__(self, federation: str, admission: Admission) -> None:
        self.federation = federation
        self._admission = admission
        self._enrolled: dict[int, Enrolled] = {}
        self._identities: dict[int, bytes] = {}  # kept after leaving: an id is never reassigned
        self._withdrawn: dict[int, int] = {}

    def __contains__(self, device: int) -> bool:
        return device in self._enrolled

    def __len__(self) -> int:
        return len(self._enrolled)

    def admit(self, frame: bytes) -> Enrolled:
        """Enrol a device, or replace its key by a newer one."""
        card = wire.read(frame, KeyCard, _CARD_LIMIT)
        if card.federation != self.federation:
            raise ForeignKey(f"card of federation {card.federation!r}, not {self.federation!r}")
        if not self._admission.admits(card):
            raise ForeignKey(f"device {card.device}: identity neither pinned nor certified")
        if self._identities.get(card.device, card.identity) != card.identity:
            raise ForeignKey(f"device {card.device} is enrolled under another identity")
        identity = _public_identity(card.identity)
        wire.verify(frame, identity)
        fingerprint = wire.body_digest(frame)
        current = self._enrolled.get(card.device)
        if current is not None and current.fingerprint == fingerprint:
            return current
        newest = max(current.version if current else 0, self._withdrawn.get(card.device, 0))
        if card.version <= newest:
            raise ForeignKey(
                f"device {card.device}: key version {card.version} is not newer than {newest}"
            )
        entry = Enrolled(
            card.device,
            card.version,
            card.identity,
            identity,
            X25519PublicKey.from_public_bytes(card.agreement),
            fingerprint,
        )
        self._identities[card.device] = card.identity
        self._enrolled[card.device] = entry
        return entry

    def withdraw(self, frame: bytes) -> int:
        """Take a device that asks to leave off the roster; returns its id."""
        notice = wire.read(frame, Leave, _CARD_LIMIT)
        entry = self._enrolled.get(notice.device)
        if notice.federation != self.federation or entry is None:
            raise ForeignKey(f"device {notice.device} is not enrolled here")
        wire.verify(frame, entry.identity)
        if notice.version < entry.version:
            raise ForeignKey(f"device {notice.device}: leave of an older key, {notice.version}")
        self._withdrawn[notice.device] = notice.version
        del self._enrolled[notice.device]
        return notice.device

    def get(self, device: int) -> Enrolled:
        entry = self._enrolled.get(device)
        if entry is None:
            raise RuleBroken(f"device {device} is not enrolled")
        return entry

    def digest(self, members: Sequence[int]) -> bytes:
        """One hash of all members' key cards, in order."""
        return derive.digest(b"roster", *(self.get(device).fingerprint for device in members))


def _public_identity(identity: bytes) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(identity)
    except ValueError:
        raise ForeignKey("identity: not an Ed25519 public key") from None
