"""What the server keeps of a round besides the total, and what follows from it.

Everything that is about a pair lies in arrays [member, neighbour, bytes]: members by their place in
the plan, neighbours by their place in the member's list. So a device's mail is one gather, and no
step of the server walks over pairs in Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.secagg import derive, wire
from fedveil.secagg.blame import Fault, Wrong
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.errors import Forged, Malformed, OutOfTurn
from fedveil.secagg.keys import signed
from fedveil.secagg.layout import Layout, check_pieces, flagged_places, packed
from fedveil.secagg.masks import word_type
from fedveil.secagg.messages import Confirm, Masked, Shares, Unmask
from fedveil.secagg.odds import resolve
from fedveil.secagg.pairs import CHECK_BYTES, MARK_BYTES, SEALED_BYTES
from fedveil.secagg.shares import SHARE_BYTES, as_elements
from fedveil.secagg.sizes import ANSWER_BYTES

Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_BLOCK = 256  # members whose checks are compared at a time


class Kept:
    """By member: what it dealt, its tags for each neighbour, its complaints and its answers."""

    def __init__(self, layout: Layout, identities: Mapping[int, Ed25519PublicKey]) -> None:
        plan = layout.plan
        members, degree = len(plan.members), plan.degree
        self.layout = layout
        self.identities = identities
        self.total = np.zeros(plan.dimension, dtype=word_type(plan.bits))  # of masked vectors
        self.places = {member: place for place, member in enumerate(plan.members)}
        self.neighbours, self.ranks = layout.graph.table
        self.sharers = self.survivors = b""  # bitmaps, once they are known

        def flags(*shape: int) -> Flags:
            return np.zeros(shape or (members,), dtype=np.bool_)

        def pieces(size: int) -> Bytes:
            return np.zeros((members, degree, size), dtype=np.uint8)

        self.shared, self.uploaded, self.confirmed, self.answered = (flags() for _ in range(4))
        self.partners = flags(members, degree)  # masks with, once the sharers are known
        self.off = flags(members, degree)  # at odds with: the mask between the two is left out
        self.bad = flags(members, degree)  # complains about
        self.sealed, self.wrapped = pieces(SEALED_BYTES), pieces(derive.KEY_BYTES)
        self.checks, self.marks = pieces(CHECK_BYTES), pieces(MARK_BYTES)
        self.upload_tags, self.confirm_tags = pieces(TAG_BYTES), pieces(TAG_BYTES)
        self.answers = pieces(ANSWER_BYTES)
        self.commitments: dict[int, bytes] = {}  # by place, as all below
        self.statements: dict[int, bytes] = {}  # signed, about the upload
        self.signatures: dict[tuple[int, int], bytes] = {}  # by kind of message and place

    def ids(self, flags: Flags) -> list[int]:
        """The members that are flagged."""
        members = self.layout.plan.members
        return [members[place] for place in np.flatnonzero(flags).tolist()]

    def has(self, flags: Flags, device: int) -> bool:
        place = self.places.get(device)
        return place is not None and bool(flags[place])

    def close_sharing(self, droppable: int) -> set[int]:
        """Settle who masks with whom; returns the devices that are suspect."""
        members = self.layout.plan.members
        between = self._at_odds()
        gone, suspects = resolve(between, droppable)
        self.shared[list(gone)] = False
        for place, others in between.items():
            self.off[place] = np.isin(self.neighbours[place], list(others))
        self.partners = self.shared[:, None] & self.shared[self.neighbours] & ~self.off
        self.sharers = packed(self.shared)
        return {members[place] for place in suspects}

    def _at_odds(self) -> dict[int, set[int]]:
        """By place, with whom a sharer is at odds about keys."""
        between: dict[int, set[int]] = defaultdict(set)
        for start in range(0, len(self.shared), _BLOCK):
            rows = slice(start, start + _BLOCK)
            near, ranks = self.neighbours[rows], self.ranks[rows]
            differ = (self.checks[rows] != self.checks[near, ranks]).any(axis=2)
            differ &= self.shared[rows, None] & self.shared[near]
            for row, column in np.argwhere(differ).tolist():
                between[start + row].add(int(near[row, column]))
        return between

    def relayed(self, device: int) -> tuple[bytes, bytes, bytes]:
        """For a device: flags of whom it does not mask with; the others' sealed shares, marks."""
        place = self.places[device]
        flags = packed(self.off[place])
        chosen = self.partners[place]
        return flags, self._from(place, chosen, self.sealed), self._from(place, chosen, self.marks)

    def tags_for(self, device: int, tags: Bytes, present: Flags) -> bytes:
        """The tags that a device's partners among those present made for it."""
        place = self.places[device]
        return self._from(place, self.partners[place] & present[self.neighbours[place]], tags)

    def _from(self, place: int, chosen: Flags, pieces: Bytes) -> bytes:
        """What some neighbours of a device left for it."""
        found: bytes = pieces[self.neighbours[place][chosen], self.ranks[place][chosen]].tobytes()
        return found

    def held(self, place: int) -> Flags:
        """The neighbours whose shares a device holds."""
        chosen: Flags = self.partners[place] & ~self.bad[place]
        return chosen

    def accepted(self, place: int, bad: Flags) -> bytes:
        """What a device that complains about these neighbours says about all others."""
        marks = self._from(place, self.partners[place] & ~bad, self.marks)
        return derive.digest(b"accepted", self.layout.digest, marks)

    def disputes(self) -> list[tuple[int, int]]:
        """Who complains about whose shares: pairs of holder and dealer."""
        members = self.layout.plan.members
        return [
            (members[place], members[int(self.neighbours[place, column])])
            for place, column in np.argwhere(self.bad).tolist()
        ]

    # --- evidence ---------------------------------------------------------------------------------

    def dealt(self, place: int) -> Shares:
        """What a device dealt."""
        lists = (self.sealed, self.wrapped, self.checks, self.marks)
        device = self.layout.plan.members[place]
        parts = (pieces[place].tobytes() for pieces in lists)
        return Shares(self.layout.digest, device, self.commitments[place], *parts)

    def dealt_frame(self, place: int) -> bytes:
        """The same as it came."""
        return wire.rebuilt(self.dealt(place), self.signatures[Shares.KIND, place])

    def share_fault(self, holder: int, dealer: int) -> Fault:
        """The evidence, by places, that a holder gave another share than it had accepted."""
        members, digest = self.layout.plan.members, self.layout.digest
        held = self.held(holder)
        confirm = Confirm(
            digest,
            members[holder],
            self.layout.survivors_digest(self.sharers, self.survivors),
            self.confirm_tags[holder, self._alive(holder)].tobytes(),
            packed(self.bad[holder, self.partners[holder]]),
            self.accepted(holder, self.bad[holder]),
        )
        given = Unmask(digest, members[holder], self.answers[holder, held].tobytes())
        frames = (
            self.dealt_frame(dealer),
            wire.rebuilt(confirm, self.signatures[Confirm.KIND, holder]),
            wire.rebuilt(given, self.signatures[Unmask.KIND, holder]),
        )
        values = (self._from(holder, held, self.marks),)
        return Fault(members[holder], members[dealer], Wrong.SHARE, digest, frames, values)

    # --- what comes in ----------------------------------------------------------------------------

    def take(self, message: Shares | Masked | Confirm | Unmask, signature: bytes) -> None:
        """Keep what a device says in its turn, or raise and change nothing."""
        place = self.places[message.device]
        if isinstance(message, Shares):
            self._take_shares(message, place)
        elif isinstance(message, Masked):
            self._take_vector(message, place)
            return
        elif isinstance(message, Confirm):
            self._take_confirmation(message, place)
        else:
            self._take_unmasking(message, place)
        self.signatures[message.KIND, place] = signature

    def _take_shares(self, message: Shares, place: int) -> None:
        everybody = np.ones(self.layout.plan.degree, dtype=np.bool_)
        lists = [
            (into, _cut(joined, into, everybody, f"Shares.{name}"))
            for joined, into, name in (
                (message.sealed, self.sealed, "sealed"),
                (message.wrapped, self.wrapped, "wrapped"),
                (message.checks, self.checks, "checks"),
                (message.marks, self.marks, "marks"),
            )
        ]
        for into, pieces in lists:
            into[place] = pieces
        self.commitments[place] = message.commitments
        self.shared[place] = True

    def _take_vector(self, message: Masked, place: int) -> None:
        plan, device = self.layout.plan, message.device
        if not self.shared[place]:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        size = plan.dimension * (plan.bits // 8)
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        chosen = self.partners[place]
        tags = _cut(message.tags, self.upload_tags, chosen, "Masked.tags")
        stated = self.layout.statement(device, self.sharers)
        if not signed(self.identities[device], message.statement, stated):
            raise Forged(f"device {device} masked for other sharers")
        np.add(self.total, np.frombuffer(message.vector, self.total.dtype), out=self.total)
        self.upload_tags[place, chosen] = tags
        self.statements[place] = message.statement
        self.uploaded[place] = True

    def _take_confirmation(self, message: Confirm, place: int) -> None:
        device = message.device
        if not self.uploaded[place]:
            raise OutOfTurn(f"device {device} is lost in this round")
        if message.survivors != self.layout.survivors_digest(self.sharers, self.survivors):
            raise Forged(f"device {device} acts on other survivors")
        partners = np.flatnonzero(self.partners[place])
        bad = np.zeros(self.layout.plan.degree, dtype=np.bool_)
        bad[partners[flagged_places(message.bad, len(partners), "Confirm.bad")]] = True
        if message.accepted != self.accepted(place, bad):
            raise Forged(f"device {device} has accepted other shares than it was sent")
        alive = self._alive(place)
        tags = _cut(message.tags, self.confirm_tags, alive, "Confirm.tags")
        self.confirm_tags[place, alive] = tags
        self.bad[place] = bad
        self.confirmed[place] = True

    def _alive(self, place: int) -> Flags:
        """The partners of a device that survived."""
        chosen: Flags = self.partners[place] & self.uploaded[self.neighbours[place]]
        return chosen

    def _take_unmasking(self, message: Unmask, place: int) -> None:
        if not self.confirmed[place]:
            raise OutOfTurn(f"device {message.device} has not confirmed")
        held = self.held(place)
        answers = _cut(message.answers, self.answers, held, "Unmask.answers")
        as_elements(answers[:, :SHARE_BYTES].tobytes())
        self.answers[place, held] = answers
        self.answered[place] = True


def _cut(joined: bytes, like: Bytes, chosen: Flags, name: str) -> Bytes:
    """A list as one row for each chosen neighbour, in rows as long as those of `like`."""
    size, count = like.shape[2], int(np.count_nonzero(chosen))
    check_pieces(joined, size, count, name)
    return np.frombuffer(joined, dtype=np.uint8).reshape(count, size)
