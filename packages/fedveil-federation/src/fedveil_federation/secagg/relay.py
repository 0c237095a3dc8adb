"""What the server keeps of a round besides the total, and what follows from it.

Everything that is about a pair lies in arrays [member, neighbour, bytes]: members by their place in
the plan, neighbours by their place in the member's list. So a device's mail is one gather, and no
step of the server walks over pairs in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import TAG_BYTES
from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn
from fedveil.privacy.secure_sums.masks import word_type
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.blame import Fault, Wrong, exposed
from fedveil_federation.secagg.dealing import PER_MASK, PER_NEIGHBOUR, dealt_lists
from fedveil_federation.secagg.keys import signed
from fedveil_federation.secagg.layout import Bytes, Flags, RoundLayout, packed, rows, unpacked
from fedveil_federation.secagg.messages import Confirm, Masked, Shares, Unmask
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, PRINT_BYTES, SEALED_BYTES
from fedveil_federation.secagg.shares import SHARE_BYTES, valid_elements
from fedveil_federation.secagg.sizes import STATEMENT_BYTES

_BLOCK = 256  # members whose checks are compared at a time


class Kept:
    """By member: what it dealt, its tags for each neighbour, its complaints and its answers.

    `confirms`: whether members show each other, by tags, on which lists they act.
    """

    def __init__(
        self, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey], confirms: bool
    ) -> None:
        plan = layout.plan
        members, degree = len(plan.members), plan.degree
        self.layout = layout
        self.identities = identities
        self.confirms = confirms
        self.total = np.zeros(plan.dimension, dtype=word_type(plan.bits))  # of masked vectors
        self.places = {member: place for place, member in enumerate(plan.members)}
        self.members = np.array(plan.members, dtype="<u8")
        tables = layout.graph.tables
        self.neighbours, self.ranks = tables.near, tables.ranks
        self.columns, self.mask_ranks = tables.columns, tables.mask_ranks
        self.sharers = self.survivors = b""  # bitmaps, once they are known

        def flags(*shape: int) -> Flags:
            return np.zeros(shape or (members,), dtype=np.bool_)

        def pieces(size: int, count: int = degree) -> Bytes:
            return np.zeros((members, count, size), dtype=np.uint8)

        self.shared, self.uploaded, self.confirmed, self.answered = (flags() for _ in range(4))
        self.partners = flags(members, degree)  # holds shares of, once the sharers are known
        self.off = flags(members, degree)  # contradicts: the mask between the two is left out
        self.bad = flags(members, degree)  # complains about
        self.sealed, self.marks = pieces(SEALED_BYTES), pieces(MARK_BYTES)
        self.checks = pieces(PRINT_BYTES)
        self.wrapped = pieces(derive.KEY_BYTES, plan.masks)
        self.roots = pieces(PRINT_BYTES, plan.masks)
        self.upload_tags = pieces(TAG_BYTES, degree if confirms else 0)
        self.confirm_tags = pieces(TAG_BYTES, degree if confirms else 0)
        self.answers = pieces(SHARE_BYTES)
        self.nonces = np.zeros((members, NONCE_BYTES), dtype=np.uint8)
        self.heads: dict[int, Shares] = {}  # by place, as all below: what was dealt, without lists
        self.statements: dict[int, bytes] = {}  # signed, about the upload
        self.given: dict[int, bytes] = {}  # signature of the answers
        self.signatures: dict[int, bytes] = {}  # of what was dealt

    def ids(self, flags: Flags) -> list[int]:
        """The members that are flagged."""
        members = self.layout.plan.members
        return [members[place] for place in np.flatnonzero(flags).tolist()]

    def has(self, flags: Flags, device: int) -> bool:
        place = self.places.get(device)
        return place is not None and bool(flags[place])

    def close_sharing(self, liars: int, fewest: int) -> dict[int, set[int]]:
        """Settle who masks with whom; returns, by device, with whom it is at odds about keys.

        The mask between two at odds is left out. Who is at odds with more than `liars` neighbours
        must go, and so must who would keep too few holders of its shares: there would be no sum.
        Nor is there one of fewer than `fewest` sharers, whoever goes.
        """
        odds, between = self._at_odds(), dict[int, set[int]]()
        for device, other in self._pairs(odds):
            between.setdefault(device, set()).add(other)
        self.shared[[self.places[device] for device in exposed(between, liars)]] = False
        while True:
            both = self.shared[:, None] & self.shared[self.neighbours]
            self.off, self.partners = both & odds, both & ~odds
            count, holders = self.off.sum(axis=1), self.partners.sum(axis=1)
            stuck = (count > 0) & (holders < self.layout.plan.threshold)
            if not stuck.any() or np.count_nonzero(self.shared) < fewest:
                break
            self.shared[np.argmax(np.where(stuck, count, 0))] = False
        self.sharers = packed(self.shared)
        return between

    def _at_odds(self) -> Flags:
        """By place and neighbour, whether two sharers are at odds about keys."""
        odds = np.zeros_like(self.off)
        for start in range(0, len(self.shared), _BLOCK):
            block = slice(start, start + _BLOCK)
            near, ranks = self.neighbours[block], self.ranks[block]
            columns = self.columns[block]
            masked = np.take_along_axis(near, columns, axis=1)
            theirs = self.roots[masked, self.mask_ranks[block]]
            differ = (self.checks[block] != self.checks[near, ranks]).any(axis=2)
            roots = (self.roots[block] != theirs).any(axis=2)
            roots |= np.take_along_axis(differ, columns, axis=1)
            np.put_along_axis(differ, columns, roots, axis=1)
            odds[block] = differ & self.shared[block, None] & self.shared[near]
        return odds

    def _pairs(self, flags: Flags) -> list[tuple[int, int]]:
        """Devices and those of their neighbours that are flagged."""
        members = self.layout.plan.members
        return [
            (members[place], members[int(self.neighbours[place, column])])
            for place, column in np.argwhere(flags).tolist()
        ]

    def contradicting(self, device: int) -> list[int]:
        """Places of the neighbours with whom a device does not mask, by what they have signed."""
        place = self.places[device]
        found: list[int] = self.neighbours[place][self.off[place]].tolist()
        return found

    def partners_of(self, device: int) -> set[int]:
        """The neighbours with whom a device masks or holds shares."""
        place = self.places[device]
        return set(self.members[self.neighbours[place][self.partners[place]]].tolist())

    def relayed(self, device: int) -> tuple[bytes, bytes, bytes, bytes]:
        """For a device: flags of whom it does not mask with; the others' nonces, sealed shares and
        marks."""
        place = self.places[device]
        chosen = self.partners[place]
        return (
            packed(self.off[place]),
            self.nonces[self.neighbours[place][chosen]].tobytes(),
            self._from(place, chosen, self.sealed),
            self._from(place, chosen, self.marks),
        )

    def tags_for(self, device: int, tags: Bytes, present: Flags) -> bytes:
        """The tags that a device's partners among those present made for it."""
        place = self.places[device]
        return self._from(place, self.partners[place] & present[self.neighbours[place]], tags)

    def _from(self, place: int, chosen: Flags, pieces: Bytes) -> bytes:
        """What some neighbours of a device left for it."""
        found: bytes = pieces[self.neighbours[place][chosen], self.ranks[place][chosen]].tobytes()
        return found

    def accepted(self, place: int, bad: Flags) -> tuple[bytes, bytes]:
        """Of a device that complains about these neighbours: all others' ids, and their marks."""
        held = self.partners[place] & ~bad
        dealers = self.members[self.neighbours[place][held]].tobytes()
        return dealers, self._from(place, held, self.marks)

    def disputes(self) -> list[tuple[int, int]]:
        """Who complains about whose shares: pairs of holder and dealer."""
        return self._pairs(self.bad)

    def complains(self, holder: int, dealer: int) -> bool:
        """Whether one of these pairs is that of two devices."""
        place = self.places[holder]
        return dealer in self.members[self.neighbours[place][self.bad[place]]]

    # --- evidence ---------------------------------------------------------------------------------

    def dealt_frame(self, place: int) -> bytes:
        """What a device dealt, as it came."""
        lists = {name: getattr(self, name)[place].tobytes() for name in PER_NEIGHBOUR | PER_MASK}
        return wire.rebuilt(replace(self.heads[place], **lists), self.signatures[place])

    def share_fault(self, holder: int, dealer: int) -> Fault:
        """The evidence, by places, that a holder gave another share than it had accepted."""
        members, digest = self.layout.plan.members, self.layout.digest
        accepted = self.accepted(holder, self.bad[holder])
        given = Unmask(
            digest,
            members[holder],
            self.layout.survivors_digest(self.sharers, self.survivors),
            packed(self.bad[holder, self.partners[holder]]),
            self.layout.accepted(*accepted),
            self.answers[holder, self.partners[holder] & ~self.bad[holder]].tobytes(),
            self.given[holder],
        )
        frames = (wire.rebuilt(given, bytes(64)),)
        return Fault(members[holder], members[dealer], Wrong.SHARE, digest, frames, accepted)

    # --- what comes in ----------------------------------------------------------------------------

    def take(self, message: Shares | Masked | Confirm | Unmask, signature: bytes) -> None:
        """Keep what a device says in its turn, or raise and change nothing."""
        place = self.places[message.device]
        if isinstance(message, Shares):
            self._take_shares(message, place)
            self.signatures[place] = signature
        elif isinstance(message, Masked):
            self._take_vector(message, place)
        elif isinstance(message, Confirm):
            self._take_confirmation(message, place)
        else:
            self._take_unmasking(message, place)

    def _take_shares(self, message: Shares, place: int) -> None:
        lists = dealt_lists(message, self.layout.plan)
        for name, pieces in lists.items():
            getattr(self, name)[place] = pieces
        self.nonces[place] = np.frombuffer(message.nonce, dtype=np.uint8)
        nothing: dict[str, Any] = dict.fromkeys(lists, b"")
        self.heads[place] = replace(message, **nothing)
        self.shared[place] = True

    def _take_vector(self, message: Masked, place: int) -> None:
        plan, device = self.layout.plan, message.device
        if not self.shared[place]:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        size = plan.dimension * (plan.bits // 8)
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        chosen = self._tagged(self.partners[place])
        tags = _cut(message.tags, self.upload_tags, chosen, "Masked.tags")
        if len(message.statement) != STATEMENT_BYTES * self.confirms:
            raise Malformed(f"Masked.statement: {len(message.statement)} bytes")
        if self.confirms:
            stated = self.layout.statement(device, self.sharers)
            if not signed(self.identities[device], message.statement, stated):
                raise Forged(f"device {device} masked for other sharers")
            self.statements[place] = message.statement
        np.add(self.total, np.frombuffer(message.vector, self.total.dtype), out=self.total)
        self.upload_tags[place, chosen] = tags
        self.uploaded[place] = True

    def _take_confirmation(self, message: Confirm, place: int) -> None:
        device = message.device
        if not self.uploaded[place]:
            raise OutOfTurn(f"device {device} is lost in this round")
        self._check_list(device, message.survivors)
        alive = self.partners[place] & self.uploaded[self.neighbours[place]]
        tags = _cut(message.tags, self.confirm_tags, alive, "Confirm.tags")
        self.confirm_tags[place, alive] = tags
        self.confirmed[place] = True

    def _check_list(self, device: int, survivors: bytes) -> None:
        if survivors != self.layout.survivors_digest(self.sharers, self.survivors):
            raise Forged(f"device {device} acts on other survivors")

    def _tagged(self, chosen: Flags) -> Flags:
        """Those of them for whom a device makes tags."""
        return chosen if self.confirms else chosen[:0]

    def _take_unmasking(self, message: Unmask, place: int) -> None:
        device = message.device
        if not self.confirmed[place]:
            raise OutOfTurn(f"device {device} has not confirmed")
        self._check_list(device, message.survivors)
        partners = self.partners[place]
        bad = np.zeros(self.layout.plan.degree, dtype=np.bool_)
        bad[partners] = unpacked(message.bad, int(partners.sum()), "Unmask.bad")
        if message.accepted != self.layout.accepted(*self.accepted(place, bad)):
            raise Forged(f"device {device} has accepted other shares than it was sent")
        held = partners & ~bad
        answers = _cut(message.answers, self.answers, held, "Unmask.answers")
        if not valid_elements(answers).all():
            raise Malformed("Unmask.answers: a share's elements must be below the prime")
        self.answers[place, held] = answers
        self.bad[place] = bad
        self.given[place] = message.signature
        self.answered[place] = True


def _cut(joined: bytes, like: Bytes, chosen: Flags, name: str) -> Bytes:
    """A list as one row for each chosen neighbour, in rows as long as those of `like`."""
    return rows(joined, like.shape[2], int(np.count_nonzero(chosen)), name)
