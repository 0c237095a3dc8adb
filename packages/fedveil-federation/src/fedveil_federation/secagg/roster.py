"""Who is enrolled: key cards checked against identities that were known beforehand.

The server relays cards and could invent them. A card therefore counts only if its identity key was
pinned for that device, or certified by an authority whose key the device holds, and if that
identity signed it. Versions only rise: a withdrawn or replaced key never comes back. An id that was
ever seen stays with its identity.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.privacy.secure_sums.errors import ForeignKey, RuleBroken
from fedveil_federation.secagg import merkle, wire
from fedveil_federation.secagg.keys import certificate_holds
from fedveil_federation.secagg.messages import KeyCard, Leave

CARD_LIMIT = 512


@dataclass(frozen=True)
class Admission:
    """Whom to believe: identities pinned by device id, an authority's key, or both; else nobody."""

    pinned: Mapping[int, bytes] = field(default_factory=dict)
    authority: bytes | None = None

    def admits(self, card: KeyCard) -> bool:
        """A pinned device is that identity and no other, whatever an authority certifies."""
        if card.device in self.pinned:
            return self.pinned[card.device] == card.identity
        if self.authority is None or len(card.certificate) != 64:
            return False
        authority = Ed25519PublicKey.from_public_bytes(self.authority)
        return certificate_holds(
            authority, card.certificate, card.federation, card.device, card.identity
        )


@dataclass(frozen=True, slots=True)
class Enrolled:
    """One device as others see it; `fingerprint` is the SHA-256 of its card."""

    device: int
    version: int
    identity_bytes: bytes
    identity: Ed25519PublicKey
    agreement: X25519PublicKey
    fingerprint: bytes
    card: bytes  # the frame itself, for others


class Memory(Protocol):
    """What a roster must remember across restarts; a `DeviceStore` keeps it on disk."""

    def load(self) -> dict[int, Known]: ...

    def keep(self, changed: Mapping[int, Known]) -> None:
        """On disk when it returns."""


@dataclass(frozen=True, slots=True)
class Known:
    """The identity that an id belongs to for ever, its newest version, and whether that left."""

    identity: bytes
    version: int
    withdrawn: bool = False


class Roster:
    """The enrolled devices; grows and shrinks between rounds without a restart.

    With a `memory`, versions go on rising after a restart: a card that was replaced or withdrawn
    before it does not come back.
    """

    def __init__(self, federation: str, admission: Admission, memory: Memory | None = None) -> None:
        self.federation = federation
        self._admission = admission
        self._memory = memory
        self._enrolled: dict[int, Enrolled] = {}
        self._known: dict[int, Known] = {} if memory is None else memory.load()
        self._lock = threading.RLock()
        self._last: tuple[tuple[int, ...], merkle.Tree] | None = None

    def __contains__(self, device: int) -> bool:
        return device in self._enrolled

    def __len__(self) -> int:
        return len(self._enrolled)

    def admit(self, frame: bytes) -> Enrolled:
        """Enrol a device, or replace its key by a newer one."""
        return self.admit_all([frame])[0]

    def admit_all(self, frames: Iterable[bytes]) -> list[Enrolled]:
        """Enrol many devices with one write to the disk: all of them, or nobody."""
        return self.enrol([self._card(frame) for frame in frames])

    def enrol(self, entries: Sequence[Enrolled]) -> list[Enrolled]:
        """The same with cards that were examined before."""
        with self._lock:
            fresh = self._fresh(entries)
            self._keep({i: Known(e.identity_bytes, e.version) for i, e in fresh.items()})
            self._enrolled |= fresh
            self._last = None if fresh else self._last
            return [self._enrolled[entry.device] for entry in entries]

    def examined(self, frames: Iterable[bytes]) -> dict[int, Enrolled]:
        """What of these cards would be new here, if all may be admitted; nobody is enrolled yet."""
        entries = [self._card(frame) for frame in frames]
        with self._lock:
            return self._fresh(entries)

    def _fresh(self, entries: Iterable[Enrolled]) -> dict[int, Enrolled]:
        """Those of the cards that are to be kept; `ForeignKey` if one of them must not be."""
        fresh: dict[int, Enrolled] = {}
        for entry in entries:
            if self._newer(entry, fresh.get(entry.device)):
                fresh[entry.device] = entry
        return fresh

    def _card(self, frame: bytes) -> Enrolled:
        """What a card says, if whoever it names may say so."""
        claims = wire.expect(frame, KeyCard, CARD_LIMIT)
        card = wire.read(frame, KeyCard, CARD_LIMIT, _public_identity(claims.context))
        if card.federation != self.federation:
            raise ForeignKey(f"card of federation {card.federation!r}, not {self.federation!r}")
        if not self._admission.admits(card):
            raise ForeignKey(f"device {card.device}: identity neither pinned nor certified")
        return Enrolled(
            card.device,
            card.version,
            card.identity,
            _public_identity(card.identity),
            _public_agreement(card.agreement, card.device),
            wire.message_digest(frame),
            frame,
        )

    def _newer(self, entry: Enrolled, before: Enrolled | None) -> bool:
        """Whether a card is to be kept; `ForeignKey` if it must not be. `before`: of one batch."""
        device = entry.device
        known = self._known.get(device, Known(entry.identity_bytes, 0))
        if before is not None:
            known = Known(before.identity_bytes, before.version)
        if known.identity != entry.identity_bytes:
            raise ForeignKey(f"device {device} is enrolled under another identity")
        current = before or self._enrolled.get(device)
        if current is not None and current.fingerprint == entry.fingerprint:
            return False
        # After a restart the newest card is shown again and is as good as it was.
        again = current is None and not known.withdrawn and entry.version == known.version
        if entry.version <= known.version and not again:
            raise ForeignKey(
                f"device {device}: key version {entry.version} is not newer than {known.version}"
            )
        return True

    def withdraw(self, frame: bytes) -> int:
        """Take a device that asks to leave off the roster; returns its id."""
        claims = wire.expect(frame, Leave, CARD_LIMIT)
        with self._lock:
            known = self._known.get(claims.device)
            if known is None:
                raise ForeignKey(f"device {claims.device} is not enrolled here")
            notice = wire.read(frame, Leave, CARD_LIMIT, _public_identity(known.identity))
            if notice.federation != self.federation:
                raise ForeignKey(f"notice of federation {notice.federation!r}")
            if notice.version < known.version:
                raise ForeignKey(f"device {notice.device}: leave of an older key, {notice.version}")
            self._keep({notice.device: Known(known.identity, notice.version, True)})
            self._enrolled.pop(notice.device, None)
            self._last = None
        return notice.device

    def get(self, device: int) -> Enrolled:
        entry = self._enrolled.get(device)
        if entry is None:
            raise RuleBroken(f"device {device} is not enrolled")
        return entry

    def digest(self, members: Sequence[int]) -> bytes:
        """The Merkle root of all members' key cards, in order."""
        return self.tree(members).root

    def tree(self, members: Sequence[int]) -> merkle.Tree:
        """All members' key cards, in order; the last one asked for is kept."""
        with self._lock:
            cohort = tuple(members)
            if self._last is None or self._last[0] != cohort:
                leaves = [self.get(device).fingerprint for device in cohort]
                self._last = (cohort, merkle.Tree(leaves))
            return self._last[1]

    def _keep(self, changed: Mapping[int, Known]) -> None:
        if self._memory is not None and changed:
            self._memory.keep(changed)
        self._known |= changed


def _public_identity(identity: bytes) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(identity)
    except ValueError:
        raise ForeignKey("identity: not an Ed25519 public key") from None


_PROBE = X25519PrivateKey.generate()


def _public_agreement(agreement: bytes, device: int) -> X25519PublicKey:
    """A key with which a secret can be agreed: a point of small order gives the same to all."""
    public = X25519PublicKey.from_public_bytes(agreement)
    try:
        _PROBE.exchange(public)
    except ValueError:
        raise ForeignKey(f"device {device}: a weak X25519 key") from None
    return public
