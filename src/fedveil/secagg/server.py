"""The server's side: opens rounds, relays frames, adds masked vectors and removes the masks.

Memory is one vector plus a few hundred bytes for each pair of neighbours: a masked vector is added
to the total when it arrives and kept nowhere. A frame that fails a check raises a typed error and
changes nothing, so a round survives whatever the network does to single messages.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import IntEnum
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.errors import BadInput
from fedveil.secagg import derive, wire
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.device import SLACK
from fedveil.secagg.errors import Forged, Malformed, NotReleased, OutOfTurn
from fedveil.secagg.layout import Layout, check_pieces, lay_out, piece, pieces
from fedveil.secagg.masks import word_type
from fedveil.secagg.messages import (
    MAX_DIMENSION,
    Confirm,
    Confirmed,
    Masked,
    Plan,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil.secagg.modulus import IntVector, check_bits, decode
from fedveil.secagg.pairs import CHECK_BYTES, SEALED_BYTES
from fedveil.secagg.recovery import Dealt, remove_masks
from fedveil.secagg.roster import Roster
from fedveil.secagg.shares import SHARE_BYTES, as_elements
from fedveil.secagg.terms import Terms

_FromDeviceT = TypeVar("_FromDeviceT", Shares, Masked, Confirm, Unmask)


class Phase(IntEnum):
    """What a round collects; the numbers are the kinds of message it then takes."""

    SHARES = Shares.KIND
    VECTORS = Masked.KIND
    CONFIRMATIONS = Confirm.KIND
    UNMASKING = Unmask.KIND
    OVER = 255


class Server:
    """Opens rounds for enrolled devices; the signing key is what devices know it by."""

    def __init__(self, key: Ed25519PrivateKey, roster: Roster, terms: Terms) -> None:
        self.key = key
        self.roster = roster
        self.terms = terms

    def open(
        self,
        round: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
    ) -> ServerRound:
        """A round over the given devices; its `plan` is the frame for all of them."""
        check_bits(bits)
        cohort = tuple(sorted(members))
        if len(set(cohort)) != len(cohort):
            raise BadInput("members: a device is named twice")
        if not 1 <= dimension <= MAX_DIMENSION:
            raise BadInput(f"dimension = {dimension}: need 1 to {MAX_DIMENSION}")
        if not 0 <= round < 1 << 62:
            raise BadInput(f"round = {round}: need a number within 0..2^62 - 1")
        if not 1 <= len(purpose.encode()) <= 64:
            raise BadInput(f"purpose = {purpose!r}: need 1 to 64 bytes")
        topology = self.terms.topology(len(cohort))
        plan = Plan(
            self.terms.federation,
            round,
            purpose,
            cohort,
            self.roster.digest(cohort),
            dimension,
            bits,
            topology.degree,
            topology.threshold,
            self.terms.min_survivors,
        )
        return ServerRound(plan, self.key, self.roster, self.terms)


class ServerRound:
    """One round: `receive` frames in each phase, then close the phase."""

    def __init__(self, plan: Plan, key: Ed25519PrivateKey, roster: Roster, terms: Terms) -> None:
        self.plan = wire.seal(plan, key)
        self.layout: Layout = lay_out(plan, wire.body_digest(self.plan))
        self.phase = Phase.SHARES
        self._key = key
        self._entries = {member: roster.get(member) for member in plan.members}
        self._fewest = terms.fewest_survivors(len(plan.members))
        self._dealt: dict[int, Dealt] = {}
        self._sharers = b""
        self._survivors = b""
        self._upload_tags: dict[int, dict[int, bytes]] = {}
        self._confirm_tags: dict[int, dict[int, bytes]] = {}
        self._answers: dict[int, dict[int, bytes]] = {}
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

    def receive(self, frame: bytes) -> int:
        """Take one device's frame of the current phase; returns the device's id."""
        kind = wire.kind_of(frame)
        take = {
            Shares.KIND: self._take_shares,
            Masked.KIND: self._take_vector,
            Confirm.KIND: self._take_confirmation,
            Unmask.KIND: self._take_unmasking,
        }.get(kind)
        if take is None:
            raise Malformed(f"kind {kind} is no message to a server")
        if kind != self.phase:
            when = "late" if kind < self.phase else "early"
            raise OutOfTurn(f"kind {kind} comes too {when}: collecting {self.phase.name}")
        return take(frame)

    def close_sharing(self) -> None:
        """No more shares: from here on those who have not shared are out of the round."""
        self._close(Phase.SHARES, Phase.VECTORS, len(self._dealt), "shared")
        self._sharers = self.layout.bitmap(self._dealt)

    def sharers_for(self, device: int) -> bytes:
        """The frame that tells a sharer who else has shared, with the shares meant for it."""
        self._expect(Phase.VECTORS, device, self._dealt)
        sealed = b"".join(
            piece(self._dealt[n].sealed, SEALED_BYTES, self.layout.rank(n, device))
            for n in self.layout.graph.neighbours(device)
            if n in self._dealt
        )
        return self._to_device(Sharers(self.layout.digest, device, self._sharers, sealed))

    def close_upload(self) -> None:
        """No more vectors: who has not sent one is lost, and a late one is refused."""
        self._close(Phase.VECTORS, Phase.CONFIRMATIONS, len(self._upload_tags), "survived")
        self._survivors = self.layout.bitmap(self._upload_tags)

    def survivors_for(self, device: int) -> bytes:
        """The frame that names the survivors to one of them."""
        self._expect(Phase.CONFIRMATIONS, device, self._upload_tags)
        tags = self._tags_for(device, self._upload_tags)
        return self._to_device(Survivors(self.layout.digest, device, self._survivors, tags))

    def close_confirmation(self) -> None:
        """No more confirmations."""
        enough = self.layout.plan.threshold
        self._close(
            Phase.CONFIRMATIONS, Phase.UNMASKING, len(self._confirm_tags), "confirmed", enough
        )

    def confirmed_for(self, device: int) -> bytes:
        """The frame that shows a device which neighbours act on the same survivors."""
        self._expect(Phase.UNMASKING, device, self._confirm_tags)
        tags = self._tags_for(device, self._confirm_tags)
        present = self.layout.bitmap(self._confirm_tags)
        return self._to_device(Confirmed(self.layout.digest, device, present, tags))

    def finish(self) -> IntVector:
        """The exact sum of the survivors' vectors, int64 [dimension], or `NotReleased`.

        May be called again after more answers came in, as long as it has raised.
        """
        if self.phase is not Phase.UNMASKING:
            raise OutOfTurn(f"cannot finish while collecting {self.phase.name}")
        remove_masks(self.layout, self._total, self._dealt, self._upload_tags, self._answers)
        self.phase = Phase.OVER
        return decode(self._total, self.layout.plan.bits)

    def _take_shares(self, frame: bytes) -> int:
        per_neighbour = SEALED_BYTES + derive.KEY_BYTES + CHECK_BYTES
        message = self._read(frame, Shares, per_neighbour * self.layout.plan.degree, self._dealt)
        device = message.device
        neighbours = self.layout.graph.neighbours(device)
        count = len(neighbours)
        check_pieces(message.sealed, SEALED_BYTES, count, "Shares.sealed")
        check_pieces(message.wrapped, derive.KEY_BYTES, count, "Shares.wrapped")
        check_pieces(message.checks, CHECK_BYTES, count, "Shares.checks")
        for place, neighbour in enumerate(neighbours):
            other = self._dealt.get(neighbour)
            if other is None:
                continue
            theirs = piece(other.checks, CHECK_BYTES, self.layout.rank(neighbour, device))
            if theirs != piece(message.checks, CHECK_BYTES, place):
                raise Forged(f"devices {device} and {neighbour} hold different keys")
        self._dealt[device] = Dealt(
            message.commitments, message.sealed, message.wrapped, message.checks
        )
        return device

    def _take_vector(self, frame: bytes) -> int:
        plan = self.layout.plan
        size = plan.dimension * (plan.bits // 8)
        limit = size + TAG_BYTES * plan.degree
        message = self._read(frame, Masked, limit, self._upload_tags)
        device = message.device
        if device not in self._dealt:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        held = [n for n in self.layout.graph.neighbours(device) if n in self._dealt]
        tags = pieces(message.tags, TAG_BYTES, held, "Masked.tags")
        np.add(self._total, np.frombuffer(message.vector, self._total.dtype), out=self._total)
        self._upload_tags[device] = tags
        return device

    def _take_confirmation(self, frame: bytes) -> int:
        limit = TAG_BYTES * self.layout.plan.degree
        message = self._read(frame, Confirm, limit, self._confirm_tags)
        device = message.device
        if device not in self._upload_tags:
            raise OutOfTurn(f"device {device} is lost in this round")
        if message.survivors != self.layout.survivors_digest(self._sharers, self._survivors):
            raise Forged(f"device {device} acts on other survivors")
        alive = [n for n in self.layout.graph.neighbours(device) if n in self._upload_tags]
        self._confirm_tags[device] = pieces(message.tags, TAG_BYTES, alive, "Confirm.tags")
        return device

    def _take_unmasking(self, frame: bytes) -> int:
        limit = SHARE_BYTES * self.layout.plan.degree
        message = self._read(frame, Unmask, limit, self._answers)
        device = message.device
        if device not in self._confirm_tags:
            raise OutOfTurn(f"device {device} has not confirmed")
        held = [n for n in self.layout.graph.neighbours(device) if n in self._dealt]
        answers = pieces(message.shares, SHARE_BYTES, held, "Unmask.shares")
        as_elements(message.shares)
        self._answers[device] = answers
        return device

    def _read(
        self, frame: bytes, kind: type[_FromDeviceT], lists: int, seen: Container[int]
    ) -> _FromDeviceT:
        """A frame of a member for this round that it has not sent before."""
        message = wire.read(frame, kind, SLACK + lists)
        entry = self._entries.get(message.device)
        if entry is None:
            raise OutOfTurn(f"device {message.device} is not in this round's cohort")
        wire.verify(frame, entry.identity)
        if message.plan != self.layout.digest:
            raise OutOfTurn(f"{kind.__name__} of another round")
        if message.device in seen:
            raise OutOfTurn(f"device {message.device} has sent its {kind.__name__} before")
        return message

    def _tags_for(self, device: int, tags: dict[int, dict[int, bytes]]) -> bytes:
        return b"".join(tags[n][device] for n in self.layout.graph.neighbours(device) if n in tags)

    def _to_device(self, message: Sharers | Survivors | Confirmed) -> bytes:
        return wire.seal(message, self._key)

    def _expect(self, phase: Phase, device: int, among: Container[int]) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"this frame belongs to {phase.name}, not to {self.phase.name}")
        if device not in among:
            raise OutOfTurn(f"device {device} has dropped out of this round")

    def _close(
        self, phase: Phase, following: Phase, count: int, what: str, fewest: int | None = None
    ) -> None:
        if self.phase is not phase:
            raise OutOfTurn(f"cannot close {phase.name} while collecting {self.phase.name}")
        needed = self._fewest if fewest is None else fewest
        if count < needed:
            self.phase = Phase.OVER
            cohort = len(self.layout.plan.members)
            raise NotReleased(f"{count} of {cohort} devices {what}, need {needed}")
        self.phase = following
