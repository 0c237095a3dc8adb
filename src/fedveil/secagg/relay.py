"""What the server keeps of a round besides the total, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.secagg import derive, wire
from fedveil.secagg.blame import Fault, Wrong, complaints
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.errors import Forged, Malformed, OutOfTurn
from fedveil.secagg.keys import signed
from fedveil.secagg.layout import Layout, check_pieces, pack_flags, piece, pieces
from fedveil.secagg.masks import Words
from fedveil.secagg.messages import Confirm, Masked, Shares, Unmask
from fedveil.secagg.odds import Odds
from fedveil.secagg.pairs import CHECK_BYTES, MARK_BYTES, SEALED_BYTES
from fedveil.secagg.recovery import Dealt
from fedveil.secagg.shares import as_elements
from fedveil.secagg.sizes import ANSWER_BYTES


@dataclass
class Kept:
    """By device: what it dealt, its tags by neighbour, its confirmation, and its answers."""

    layout: Layout
    identities: Mapping[int, Ed25519PublicKey]
    total: Words  # of the masked vectors
    sharers: bytes = b""  # bitmaps, once they are known
    survivors: bytes = b""
    odds: Odds = field(default_factory=Odds)
    dealt: dict[int, Dealt] = field(default_factory=dict)
    off: dict[int, frozenset[int]] = field(default_factory=dict)  # whom it does not mask with
    upload_tags: dict[int, dict[int, bytes]] = field(default_factory=dict)
    statements: dict[int, bytes] = field(default_factory=dict)  # signed, about the upload
    confirm_tags: dict[int, dict[int, bytes]] = field(default_factory=dict)
    confirms: dict[int, tuple[Confirm, bytes]] = field(default_factory=dict)  # with signatures
    answers: dict[int, dict[int, bytes]] = field(default_factory=dict)
    signatures: dict[int, bytes] = field(default_factory=dict)  # of the answers
    _partners: dict[int, list[int]] = field(default_factory=dict)

    def partners(self, device: int) -> list[int]:
        """The neighbours a device masks with; asked for once the sharers are known."""
        known = self._partners.get(device)
        if known is None:
            off = self.off.get(device, ())
            neighbours = self.layout.graph.neighbours(device)
            known = [n for n in neighbours if n in self.dealt and n not in off]
            self._partners[device] = known
        return known

    def relayed(self, device: int) -> tuple[bytes, bytes, bytes]:
        """For a device: flags of whom it does not mask with; the others' sealed shares, marks."""
        neighbours, off = self.layout.graph.neighbours(device), self.off.get(device, ())
        sealed, marks = [], []
        for dealer in self.partners(device):
            message, rank = self.dealt[dealer].message, self.layout.rank(dealer, device)
            sealed.append(piece(message.sealed, SEALED_BYTES, rank))
            marks.append(piece(message.marks, MARK_BYTES, rank))
        flags = pack_flags([i for i, n in enumerate(neighbours) if n in off], len(neighbours))
        return flags, b"".join(sealed), b"".join(marks)

    def held(self, device: int) -> list[int]:
        """The neighbours whose shares a device holds."""
        partners = self.partners(device)
        bad = complaints(self.confirms[device][0], partners)
        return [n for n in partners if n not in bad]

    def marks(self, device: int, dealers: list[int]) -> bytes:
        """What those dealers say about the shares they sealed to a device."""
        return b"".join(
            piece(self.dealt[n].message.marks, MARK_BYTES, self.layout.rank(n, device))
            for n in dealers
        )

    def accepted(self, device: int, bad: frozenset[int]) -> bytes:
        """What a device that complains about these dealers says about all others."""
        held = [n for n in self.partners(device) if n not in bad]
        return derive.digest(b"accepted", self.layout.digest, self.marks(device, held))

    def tags_for(self, device: int, tags: dict[int, dict[int, bytes]]) -> bytes:
        return b"".join(tags[n][device] for n in self.partners(device) if n in tags)

    def disputes(self) -> list[tuple[int, int]]:
        """Who complains about whose shares: pairs of holder and dealer."""
        return [
            (holder, dealer)
            for holder, (message, _) in sorted(self.confirms.items())
            for dealer in sorted(complaints(message, self.partners(holder)))
        ]

    def share_fault(self, holder: int, dealer: int) -> Fault:
        """The evidence that a holder gave another share than it had accepted."""
        confirm, confirm_signature = self.confirms[holder]
        held = self.held(holder)
        answers = b"".join(self.answers[holder][n] for n in held)
        given = Unmask(self.layout.digest, holder, answers)
        frames = (
            self.dealt[dealer].frame,
            wire.rebuilt(confirm, confirm_signature),
            wire.rebuilt(given, self.signatures[holder]),
        )
        values = (self.marks(holder, held),)
        return Fault(holder, dealer, Wrong.SHARE, self.layout.digest, frames, values)

    def take(self, message: Shares | Masked | Confirm | Unmask, signature: bytes) -> None:
        """Keep what a device says in its turn, or raise and change nothing."""
        if isinstance(message, Shares):
            self._take_shares(message, signature)
        elif isinstance(message, Masked):
            self._take_vector(message)
        elif isinstance(message, Confirm):
            self._take_confirmation(message, signature)
        else:
            self._take_unmasking(message, signature)

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
        self.odds.note(device, neighbours, message.checks)
        self.dealt[device] = Dealt(message, signature)

    def _take_vector(self, message: Masked) -> None:
        plan, device = self.layout.plan, message.device
        if device not in self.dealt:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        size = plan.dimension * (plan.bits // 8)
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        tags = pieces(message.tags, TAG_BYTES, self.partners(device), "Masked.tags")
        stated = self.layout.statement(device, self.sharers)
        if not signed(self.identities[device], message.statement, stated):
            raise Forged(f"device {device} masked for other sharers")
        np.add(self.total, np.frombuffer(message.vector, self.total.dtype), out=self.total)
        self.upload_tags[device] = tags
        self.statements[device] = message.statement

    def _take_confirmation(self, message: Confirm, signature: bytes) -> None:
        device = message.device
        if device not in self.upload_tags:
            raise OutOfTurn(f"device {device} is lost in this round")
        if message.survivors != self.layout.survivors_digest(self.sharers, self.survivors):
            raise Forged(f"device {device} acts on other survivors")
        partners = self.partners(device)
        bad = complaints(message, partners)
        if message.accepted != self.accepted(device, bad):
            raise Forged(f"device {device} has accepted other shares than it was sent")
        alive = [n for n in partners if n in self.upload_tags]
        self.confirm_tags[device] = pieces(message.tags, TAG_BYTES, alive, "Confirm.tags")
        self.confirms[device] = (message, signature)

    def _take_unmasking(self, message: Unmask, signature: bytes) -> None:
        device = message.device
        if device not in self.confirm_tags:
            raise OutOfTurn(f"device {device} has not confirmed")
        answers = pieces(message.answers, ANSWER_BYTES, self.held(device), "Unmask.answers")
        if answers:
            words = np.frombuffer(message.answers, np.uint8).reshape(-1, ANSWER_BYTES)
            as_elements(words[:, :32].tobytes())
        self.answers[device] = answers
        self.signatures[device] = signature
