"""The server's side of one round: relays frames, adds masked vectors and removes the masks.

Memory is one vector plus a few hundred bytes for each pair of neighbours: a masked vector is added
to the total when it arrives and kept nowhere. A frame that fails a check raises a typed error and
changes nothing, so a round survives whatever the network does to single messages; a frame that
comes again counts once. Frames may come from many threads: signatures are checked side by side,
and what they change is changed under one lock.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container
from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.secagg import wire
from fedveil.secagg.blame import Fault, Wrong, proven
from fedveil.secagg.draw import drawn_seed
from fedveil.secagg.errors import Malformed, NotReleased, OutOfTurn
from fedveil.secagg.layout import Layout, lay_out
from fedveil.secagg.masks import word_type
from fedveil.secagg.messages import (
    Confirm,
    Confirmed,
    Disclosure,
    Masked,
    Plan,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil.secagg.modulus import IntVector, decode
from fedveil.secagg.params import SecAggParams
from fedveil.secagg.recovery import Recovery
from fedveil.secagg.relay import Kept
from fedveil.secagg.roster import Roster
from fedveil.secagg.sizes import SLACK, from_device

_KINDS: dict[int, type[Shares | Masked | Confirm | Unmask]] = {
    kind.KIND: kind for kind in (Shares, Masked, Confirm, Unmask)
}


class Phase(IntEnum):
    """What a round collects; the numbers are the kinds of message it then takes."""

    SHARES = Shares.KIND
    VECTORS = Masked.KIND
    CONFIRMATIONS = Confirm.KIND
    UNMASKING = Unmask.KIND
    OVER = 255


class ServerRound:
    """One round: `receive` frames in each phase, then close the phase."""

    def __init__(
        self, plan: Plan, key: Ed25519PrivateKey, roster: Roster, params: SecAggParams
    ) -> None:
        self.plan = wire.seal(plan, key)
        entries = {member: roster.get(member) for member in plan.members}
        raw = {member: entry.identity_bytes for member, entry in entries.items()}
        seed = drawn_seed(plan, params.colluders, raw)
        self.layout: Layout = lay_out(plan, wire.message_digest(self.plan), seed)
        self.identities: dict[int, Ed25519PublicKey] = {m: e.identity for m, e in entries.items()}
        self.phase = Phase.SHARES
        self.faults: list[Fault] = []
        self.suspects: set[int] = set()  # at odds with more neighbours than an honest device is
        self._lock = threading.RLock()
        self._key = key
        self._fewest = params.fewest_survivors(len(plan.members))
        self._droppable = params.droppable(self.layout.graph.complete)
        self._seen: dict[tuple[int, int], bytes] = {}  # kind, device -> signature
        self._doubters: dict[int, set[int]] = {}
        total = np.zeros(plan.dimension, dtype=word_type(plan.bits))
        self._kept = Kept(self.layout, self.identities, total)
        self._confirmed = b""

    @property
    def sharers(self) -> list[int]:
        return sorted(self._kept.dealt)

    @property
    def survivors(self) -> list[int]:
        return sorted(self._kept.upload_tags)

    @property
    def confirmed(self) -> list[int]:
        return sorted(self._kept.confirm_tags)

    @property
    def disputes(self) -> list[tuple[int, int]]:
        """Who complains about whose shares: pairs of holder and dealer."""
        return self._kept.disputes()

    def expects(self, start: bytes) -> int:
        """How long the frame is that begins so, or an error: ask before reading on.

        Everything that the header claims is checked: kind, phase, round, membership and size.
        """
        claims = wire.head(start)
        kind = _KINDS.get(claims.kind)
        if kind is None:
            raise Malformed(f"kind {claims.kind} is no message to a server")
        plan = self.layout.plan
        vector = plan.dimension * (plan.bits // 8)
        wire.expect(start, kind, from_device(kind, plan.degree, vector))
        if claims.device not in self.identities:
            raise OutOfTurn(f"device {claims.device} is not in this round's cohort")
        if claims.context != self.layout.digest:
            raise OutOfTurn(f"{kind.__name__} of another round")
        if claims.kind != self.phase and (claims.kind, claims.device) not in self._seen:
            when = "late" if claims.kind < self.phase else "early"
            raise OutOfTurn(f"kind {claims.kind} comes too {when}: collecting {self.phase.name}")
        return claims.size

    def receive(self, frame: bytes) -> int:
        """Take one device's frame of the current phase; returns the device's id."""
        size = self.expects(frame)
        claims = wire.head(frame)
        key = (claims.kind, claims.device)
        if key in self._seen:
            return self._repeated(frame, key)
        message = wire.read(frame, _KINDS[claims.kind], size, self.identities[claims.device])
        with self._lock:
            if key in self._seen:  # by another thread, meanwhile
                return self._repeated(frame, key)
            self.expects(frame)
            signature = frame[wire.SIGNATURE : wire.HEADER]
            self._kept.take(message, signature)
            self._seen[key] = signature
        return claims.device

    def close_sharing(self) -> None:
        """No more shares: from here on those who have not shared are out of the round.

        A device at odds about keys with more neighbours than devices agree to leave out goes too;
        the other pairs at odds leave out the mask between them.
        """
        with self._lock:
            self._expect_phase(Phase.SHARES)
            gone, self.suspects = self._kept.odds.resolve(self._droppable)
            for device in gone:
                del self._kept.dealt[device]
            self._kept.off = self._kept.odds.left_out()
            self._close(Phase.VECTORS, len(self._kept.dealt), "shared")
            self._kept.sharers = self.layout.bitmap(self._kept.dealt)

    def sharers_for(self, device: int) -> bytes:
        """The frame that tells a sharer who else has shared, with the shares meant for it."""
        self._expect(Phase.VECTORS, device, self._kept.dealt)
        flags, sealed, marks = self._kept.relayed(device)
        told = Sharers(self.layout.digest, device, self._kept.sharers, flags, sealed, marks)
        return wire.seal(told, self._key)

    def close_upload(self) -> None:
        """No more vectors: who has not sent one is lost, and a late one is refused."""
        with self._lock:
            self._expect_phase(Phase.VECTORS)
            self._close(Phase.CONFIRMATIONS, len(self._kept.upload_tags), "survived")
            self._kept.survivors = self.layout.bitmap(self._kept.upload_tags)

    def survivors_for(self, device: int, doubted: Collection[int] = ()) -> bytes:
        """The frame that names the survivors to one of them.

        `doubted`: neighbours whose tags the device refused (`Doubted`); it then gets their signed
        statements. Devices that are doubted by many become suspect.
        """
        self._expect(Phase.CONFIRMATIONS, device, self._kept.upload_tags)
        tags = self._kept.tags_for(device, self._kept.upload_tags)
        named = tuple(sorted(set(doubted) & set(self._kept.statements)))
        with self._lock:
            for other in named:
                self._doubters.setdefault(other, set()).add(device)
                if len(self._doubters[other]) > self._droppable:
                    self.suspects.add(other)
        statements = b"".join(self._kept.statements[other] for other in named)
        told = Survivors(self.layout.digest, device, self._kept.survivors, tags, named, statements)
        return wire.seal(told, self._key)

    def close_confirmation(self) -> None:
        """No more confirmations."""
        with self._lock:
            self._expect_phase(Phase.CONFIRMATIONS)
            enough = self.layout.plan.threshold
            self._close(Phase.UNMASKING, len(self._kept.confirm_tags), "confirmed", enough)
            self._confirmed = self.layout.bitmap(self._kept.confirm_tags)

    def confirmed_for(self, device: int) -> bytes:
        """The frame that shows a device which neighbours act on the same survivors."""
        self._expect(Phase.UNMASKING, device, self._kept.confirm_tags)
        tags = self._kept.tags_for(device, self._kept.confirm_tags)
        message = Confirmed(self.layout.digest, device, self._confirmed, tags)
        return wire.seal(message, self._key)

    def finish(self) -> IntVector:
        """The exact sum of the survivors' vectors, int64 [dimension], or `NotReleased`.

        May be called again after more answers came in, as long as it has raised. Who spoiled it, or
        tried to, is in `faults` afterwards.
        """
        with self._lock:
            self._expect_phase(Phase.UNMASKING)
            kept = self._kept
            recovery = Recovery(self.layout, kept.dealt, kept.upload_tags, kept.off, kept.answers)
            try:
                recovery.remove_masks(self._kept.total)
            finally:
                self._blame(recovery)
            self.phase = Phase.OVER
            return decode(self._kept.total, self.layout.plan.bits)

    def dealt_by(self, device: int) -> bytes:
        """The `Shares` of a device, for a neighbour that complains about them."""
        if device not in self._kept.dealt:
            raise OutOfTurn(f"device {device} has not shared")
        return self._kept.dealt[device].frame

    def settle(self, frame: bytes) -> Fault | None:
        """Take a `Disclosure`: a fault of the dealer, or None if it proves nothing."""
        claims = wire.expect(frame, Disclosure, SLACK)
        identity = self.identities.get(claims.device)
        if identity is None or claims.context != self.layout.digest:
            raise OutOfTurn(f"device {claims.device}: a disclosure of another round or cohort")
        message = wire.read(frame, Disclosure, SLACK, identity)
        if (claims.device, message.dealer) not in self.disputes:
            raise OutOfTurn(f"device {claims.device} has not complained in time")
        frames = (self.dealt_by(message.dealer), frame)
        found = Fault(message.dealer, claims.device, Wrong.SEAL, self.layout.digest, frames)
        if not proven(found, self.layout, self.identities):
            return None
        self._accuse(found)
        return found

    def _blame(self, recovery: Recovery) -> None:
        for holder, dealer in recovery.wrong:
            self._accuse(self._kept.share_fault(holder, dealer))
        for fault in recovery.faults:
            self._accuse(fault)

    def _accuse(self, fault: Fault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)

    def _repeated(self, frame: bytes, key: tuple[int, int]) -> int:
        """The same frame again changes nothing; another one of its kind comes too late."""
        if self._seen[key] != frame[wire.SIGNATURE : wire.HEADER]:
            raise OutOfTurn(f"device {key[1]} has sent its {_KINDS[key[0]].__name__} before")
        wire.verify(frame, self.identities[key[1]])
        return key[1]

    def _expect(self, phase: Phase, device: int, among: Container[int]) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"this frame belongs to {phase.name}, not to {self.phase.name}")
        if device not in among:
            raise OutOfTurn(f"device {device} has dropped out of this round")

    def _expect_phase(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"this belongs to {phase.name}, not to {self.phase.name}")

    def _close(self, following: Phase, count: int, what: str, fewest: int | None = None) -> None:
        needed = self._fewest if fewest is None else fewest
        if count < needed:
            self.phase = Phase.OVER
            cohort = len(self.layout.plan.members)
            raise NotReleased(f"{count} of {cohort} devices {what}, need {needed}")
        self.phase = following
