"""Who is enrolled: key cards checked against identities that were known beforehand.

The server relays cards and could invent them. A card therefore counts only if its identity key was
pinned for that device, and if that identity signed it. Versions only rise: a replaced key never
comes back. An id that was ever seen stays with its identity.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import ForeignKey, RuleBroken
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.messages import KeyCard

CARD_LIMIT = 512


@dataclass(frozen=True, slots=True)
class Enrolled:
    """One device as others see it; `fingerprint` is the SHA-256 of its card."""

    device: int
    version: int
    identity_bytes: bytes
    identity: Ed25519PublicKey
    agreement: X25519PublicKey
    fingerprint: bytes


class Memory(Protocol):
    """The memory of a roster across restarts; a `DeviceStore` keeps it on disk."""

    def known(self, federation: str) -> dict[int, Known]: ...
    def keep_known(self, federation: str, changed: Mapping[int, Known]) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """The identity that an id belongs to for ever, and its newest version."""

    identity: bytes
    version: int


class Roster:
    """The enrolled devices; grows between rounds without a restart.

    With a `memory`, versions go on rising after a restart: a card that was replaced before it does
    not come back.

    Args:
        federation: The federation whose cards count.
        pinned: By device, the Ed25519 key that it is known by.
        memory: What keeps versions over restarts.
    """

    def __init__(
        self, federation: str, pinned: Mapping[int, bytes], memory: Memory | None = None
    ) -> None:
        self.federation = federation
        self._pinned = pinned
        self._memory = memory
        self._enrolled: dict[int, Enrolled] = {}
        self._known: dict[int, Known] = {} if memory is None else memory.known(federation)
        self._lock = threading.RLock()
        self._last: tuple[tuple[int, ...], bytes] | None = None  # a cohort and its digest

    def __len__(self) -> int:
        return len(self._enrolled)

    def admit(self, *cards: bytes) -> None:
        """Enrol devices, or replace their keys by newer ones: all of them, or nobody.

        Args:
            cards: The frames of their key cards.

        Raises:
            ForeignKey: A card is not that of a pinned identity, or older than a known one.
        """
        entries = [self._card(card) for card in cards]
        with self._lock:
            fresh: dict[int, Enrolled] = {}
            for entry in entries:
                if self._newer(entry, fresh.get(entry.device)):
                    fresh[entry.device] = entry
            known = {i: Known(e.identity_bytes, e.version) for i, e in fresh.items()}
            if self._memory is not None and known:
                self._memory.keep_known(self.federation, known)
            self._known |= known
            self._enrolled |= fresh
            self._last = None if fresh else self._last

    def _card(self, frame: bytes) -> Enrolled:
        """Return the claims of a card, if whoever it names may make them."""
        claims = wire.expect(frame, KeyCard, CARD_LIMIT)
        card = wire.read(frame, KeyCard, CARD_LIMIT, _public_identity(claims.context))
        if card.federation != self.federation:
            raise ForeignKey(f"card of federation {card.federation!r}, not {self.federation!r}")
        if self._pinned.get(card.device) != card.identity:
            raise ForeignKey(f"device {card.device}: another identity is pinned, or none")
        return Enrolled(
            card.device,
            card.version,
            card.identity,
            _public_identity(card.identity),
            _public_agreement(card.agreement, card.device),
            wire.message_digest(frame),
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
        again = current is None and entry.version == known.version
        if entry.version <= known.version and not again:
            raise ForeignKey(
                f"device {device}: key version {entry.version} is not newer than {known.version}"
            )
        return True

    def get(self, device: int) -> Enrolled:
        entry = self._enrolled.get(device)
        if entry is None:
            raise RuleBroken(f"device {device} is not enrolled")
        return entry

    def digest(self, members: Sequence[int]) -> bytes:
        """Stands for all members' key cards, in order; the last one asked for is kept."""
        with self._lock:
            cohort = tuple(members)
            if self._last is None or self._last[0] != cohort:
                prints = b"".join(self.get(device).fingerprint for device in cohort)
                self._last = (cohort, derive.digest(b"roster", prints))
            return self._last[1]


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
