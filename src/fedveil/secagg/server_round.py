"""The server's side of one round: relays frames, adds masked vectors and removes the masks.

Memory is one vector plus a few hundred bytes for each pair of neighbours: a masked vector is added
to the total when it arrives and kept nowhere. A frame that fails a check raises a typed error and
changes nothing, so a round survives whatever the network does to single messages; a frame that
comes again counts once. Frames may come from many threads: signatures are checked side by side,
and what they change is changed under one lock.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container
from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.secagg import derive, wire
from fedveil.secagg.blame import Fault, Wrong, complaints, proven
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.draw import drawn_seed
from fedveil.secagg.errors import Forged, Malformed, NotReleased, OutOfTurn
from fedveil.secagg.layout import Layout, check_pieces, lay_out, pack_flags, piece, pieces
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
from fedveil.secagg.pairs import CHECK_BYTES, MARK_BYTES, SEALED_BYTES
from fedveil.secagg.recovery import Dealt, Recovery
from fedveil.secagg.roster import Roster
from fedveil.secagg.shares import as_elements
from fedveil.secagg.sizes import ANSWER_BYTES, SLACK, from_device
from fedveil.secagg.terms import Terms

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

    def __init__(self, plan: Plan, key: Ed25519PrivateKey, roster: Roster, terms: Terms) -> None:
        self.plan = wire.seal(plan, key)
        entries = {member: roster.get(member) for member in plan.members}
        raw = {member: entry.identity_bytes for member, entry in entries.items()}
        seed = drawn_seed(plan, terms.colluders, raw)
        self.layout: Layout = lay_out(plan, wire.message_digest(self.plan), seed)
        self.identities: dict[int, Ed25519PublicKey] = {m: e.identity for m, e in entries.items()}
        self.phase = Phase.SHARES
        self.faults: list[Fault] = []
        self.suspects: set[int] = set()  # at odds with more neighbours than an honest device is
        self._lock = threading.RLock()
        self._key = key
        self._fewest = terms.fewest_survivors(len(plan.members))
        self._droppable = terms.droppable(self.layout.graph.complete)
        self._seen: dict[tuple[int, int], bytes] = {}  # kind, device -> signature
        self._dealt: dict[int, Dealt] = {}
        self._first_checks: dict[tuple[int, int], bytes] = {}  # of pairs with one check so far
        self._at_odds: dict[int, set[int]] = defaultdict(set)
        self._off: dict[int, frozenset[int]] = {}
        self._sharers = b""
        self._survivors = b""
        self._upload_tags: dict[int, dict[int, bytes]] = {}
        self._confirm_tags: dict[int, dict[int, bytes]] = {}
        self._confirms: dict[int, tuple[Confirm, bytes]] = {}  # with their signatures
        self._answers: dict[int, dict[int, bytes]] = {}
        self._unmask_signatures: dict[int, bytes] = {}
        self._total = np.zeros(plan.dimension, dtype=word_type(plan.bits))

    @property
    def sharers(self) -> list[int]:
        return sorted(self._dealt)

    @property
    def survivors(self) -> list[int]:
        return sorted(self._upload_tags)

    @property
    def confirmed(self) -> list[int]:
        return sorted(self._confirm_tags)

    @property
    def disputes(self) -> list[tuple[int, int]]:
        """Who complains about whose shares: pairs of holder and dealer."""
        return [
            (holder, dealer)
            for holder, (message, _) in sorted(self._confirms.items())
            for dealer in sorted(complaints(message, self._partners(holder)))
        ]

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
            if isinstance(message, Shares):
                self._take_shares(message, signature)
            elif isinstance(message, Masked):
                self._take_vector(message)
            elif isinstance(message, Confirm):
                self._take_confirmation(message, signature)
            else:
                self._take_unmasking(message, signature)
            self._seen[key] = signature
        return claims.device

    def close_sharing(self) -> None:
        """No more shares: from here on those who have not shared are out of the round.

        A device at odds about keys with more neighbours than devices agree to leave out goes too;
        the other pairs at odds leave out the mask between them.
        """
        with self._lock:
            self._expect_phase(Phase.SHARES)
            while True:
                count = {device: len(others) for device, others in self._at_odds.items()}
                worst = max(count, key=lambda device: count[device], default=None)
                if worst is None or count[worst] <= self._droppable:
                    break
                others = self._at_odds.pop(worst)
                if all(count[other] < count[worst] for other in others):
                    self.suspects.add(worst)  # else it is one's word against the other's
                del self._dealt[worst]
                for other in others:
                    self._at_odds[other].discard(worst)
            self._off = {d: frozenset(others) for d, others in self._at_odds.items() if others}
            self._close(Phase.VECTORS, len(self._dealt), "shared")
            self._first_checks.clear()
            self._sharers = self.layout.bitmap(self._dealt)

    def sharers_for(self, device: int) -> bytes:
        """The frame that tells a sharer who else has shared, with the shares meant for it."""
        self._expect(Phase.VECTORS, device, self._dealt)
        neighbours, off = self.layout.graph.neighbours(device), self._off.get(device, frozenset())
        sealed, marks = [], []
        for dealer in self._partners(device):
            message, rank = self._dealt[dealer].message, self.layout.rank(dealer, device)
            sealed.append(piece(message.sealed, SEALED_BYTES, rank))
            marks.append(piece(message.marks, MARK_BYTES, rank))
        flags = pack_flags([i for i, n in enumerate(neighbours) if n in off], len(neighbours))
        message = Sharers(
            self.layout.digest, device, self._sharers, flags, b"".join(sealed), b"".join(marks)
        )
        return wire.seal(message, self._key)

    def close_upload(self) -> None:
        """No more vectors: who has not sent one is lost, and a late one is refused."""
        with self._lock:
            self._expect_phase(Phase.VECTORS)
            self._close(Phase.CONFIRMATIONS, len(self._upload_tags), "survived")
            self._survivors = self.layout.bitmap(self._upload_tags)

    def survivors_for(self, device: int) -> bytes:
        """The frame that names the survivors to one of them."""
        self._expect(Phase.CONFIRMATIONS, device, self._upload_tags)
        tags = self._tags_for(device, self._upload_tags)
        return wire.seal(Survivors(self.layout.digest, device, self._survivors, tags), self._key)

    def close_confirmation(self) -> None:
        """No more confirmations."""
        with self._lock:
            self._expect_phase(Phase.CONFIRMATIONS)
            enough = self.layout.plan.threshold
            self._close(Phase.UNMASKING, len(self._confirm_tags), "confirmed", enough)
            self._confirmed_bitmap = self.layout.bitmap(self._confirm_tags)

    def confirmed_for(self, device: int) -> bytes:
        """The frame that shows a device which neighbours act on the same survivors."""
        self._expect(Phase.UNMASKING, device, self._confirm_tags)
        tags = self._tags_for(device, self._confirm_tags)
        message = Confirmed(self.layout.digest, device, self._confirmed_bitmap, tags)
        return wire.seal(message, self._key)

    def finish(self) -> IntVector:
        """The exact sum of the survivors' vectors, int64 [dimension], or `NotReleased`.

        May be called again after more answers came in, as long as it has raised. Who spoiled it, or
        tried to, is in `faults` afterwards.
        """
        with self._lock:
            self._expect_phase(Phase.UNMASKING)
            recovery = Recovery(
                self.layout, self._dealt, self._upload_tags, self._off, self._answers
            )
            try:
                recovery.remove_masks(self._total)
            finally:
                self._blame(recovery)
            self.phase = Phase.OVER
            return decode(self._total, self.layout.plan.bits)

    def dealt_by(self, device: int) -> bytes:
        """The `Shares` of a device, for a neighbour that complains about them."""
        if device not in self._dealt:
            raise OutOfTurn(f"device {device} has not shared")
        return self._dealt[device].frame

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
        if not self._proves(found):
            return None
        self._accuse(found)
        return found

    def _take_shares(self, message: Shares, signature: bytes) -> None:
        device = message.device
        neighbours = self.layout.graph.neighbours(device)
        for packed, size, name in (
            (message.sealed, SEALED_BYTES, "sealed"),
            (message.wrapped, derive.KEY_BYTES, "wrapped"),
            (message.checks, CHECK_BYTES, "checks"),
            (message.marks, MARK_BYTES, "marks"),
        ):
            check_pieces(packed, size, len(neighbours), f"Shares.{name}")
        for place, neighbour in enumerate(neighbours):
            pair = (device, neighbour) if device < neighbour else (neighbour, device)
            own = piece(message.checks, CHECK_BYTES, place)
            if self._first_checks.setdefault(pair, own) != own:
                self._at_odds[device].add(neighbour)
                self._at_odds[neighbour].add(device)
        self._dealt[device] = Dealt(message, signature)

    def _take_vector(self, message: Masked) -> None:
        plan, device = self.layout.plan, message.device
        if device not in self._dealt:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        size = plan.dimension * (plan.bits // 8)
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        tags = pieces(message.tags, TAG_BYTES, self._partners(device), "Masked.tags")
        np.add(self._total, np.frombuffer(message.vector, self._total.dtype), out=self._total)
        self._upload_tags[device] = tags

    def _take_confirmation(self, message: Confirm, signature: bytes) -> None:
        device = message.device
        if device not in self._upload_tags:
            raise OutOfTurn(f"device {device} is lost in this round")
        if message.survivors != self.layout.survivors_digest(self._sharers, self._survivors):
            raise Forged(f"device {device} acts on other survivors")
        partners = self._partners(device)
        bad = complaints(message, partners)
        if message.accepted != self._accepted(device, bad):
            raise Forged(f"device {device} has accepted other shares than it was sent")
        alive = [n for n in partners if n in self._upload_tags]
        self._confirm_tags[device] = pieces(message.tags, TAG_BYTES, alive, "Confirm.tags")
        self._confirms[device] = (message, signature)

    def _take_unmasking(self, message: Unmask, signature: bytes) -> None:
        device = message.device
        if device not in self._confirm_tags:
            raise OutOfTurn(f"device {device} has not confirmed")
        answers = pieces(message.answers, ANSWER_BYTES, self._held(device), "Unmask.answers")
        if answers:
            words = np.frombuffer(message.answers, np.uint8).reshape(-1, ANSWER_BYTES)
            as_elements(words[:, :32].tobytes())
        self._answers[device] = answers
        self._unmask_signatures[device] = signature

    def _partners(self, device: int) -> list[int]:
        """The neighbours a device masks with."""
        off = self._off.get(device, ())
        neighbours = self.layout.graph.neighbours(device)
        return [n for n in neighbours if n in self._dealt and n not in off]

    def _held(self, device: int) -> list[int]:
        """The neighbours whose shares a device holds."""
        bad = complaints(self._confirms[device][0], partners := self._partners(device))
        return [n for n in partners if n not in bad]

    def _marks(self, device: int, dealers: list[int]) -> bytes:
        """What those dealers say about the shares they sealed to a device."""
        return b"".join(
            piece(self._dealt[n].message.marks, MARK_BYTES, self.layout.rank(n, device))
            for n in dealers
        )

    def _accepted(self, device: int, bad: frozenset[int]) -> bytes:
        held = [n for n in self._partners(device) if n not in bad]
        return derive.digest(b"accepted", self.layout.digest, self._marks(device, held))

    def _blame(self, recovery: Recovery) -> None:
        for holder, dealer in recovery.wrong:
            confirm, signature = self._confirms[holder]
            claims, body = wire.encoded(confirm)
            held = self._held(holder)
            given = Unmask(
                self.layout.digest, holder, b"".join(self._answers[holder][n] for n in held)
            )
            unmask_claims, unmask_body = wire.encoded(given)
            frames = (
                self._dealt[dealer].frame,
                wire.MAGIC + claims + signature + body,
                wire.MAGIC + unmask_claims + self._unmask_signatures[holder] + unmask_body,
            )
            values = (self._marks(holder, held),)
            self._accuse(Fault(holder, dealer, Wrong.SHARE, self.layout.digest, frames, values))
        for fault in recovery.faults:
            self._accuse(fault)

    def _accuse(self, fault: Fault) -> None:
        if fault not in self.faults:
            self.faults.append(fault)

    def _proves(self, fault: Fault) -> bool:
        return proven(fault, self.layout, self.identities)

    def _repeated(self, frame: bytes, key: tuple[int, int]) -> int:
        """The same frame again changes nothing; another one of its kind comes too late."""
        if self._seen[key] != frame[wire.SIGNATURE : wire.HEADER]:
            raise OutOfTurn(f"device {key[1]} has sent its {_KINDS[key[0]].__name__} before")
        wire.verify(frame, self.identities[key[1]])
        return key[1]

    def _tags_for(self, device: int, tags: dict[int, dict[int, bytes]]) -> bytes:
        return b"".join(tags[n][device] for n in self._partners(device) if n in tags)

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
