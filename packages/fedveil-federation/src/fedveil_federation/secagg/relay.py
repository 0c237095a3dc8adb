"""What the server keeps of a round besides the total, and what follows from it.

Everything that is about a pair lies in arrays [member, neighbour, bytes]: members by their place in
the plan, neighbours by their place in the member's list. So a device's mail is one gather, and no
step of the server walks over pairs in Python.

`Recovery` goes from shares back to secrets, and from secrets to the masks that the total must lose:
for every survivor its own mask, and for every device that shared but sent no vector the pair masks
that its surviving neighbours applied. Each recovered secret is compared with what its owner
committed to before any vector was sent. If it does not fit, single shares are compared with the
owner's marks: wrong ones are left out, and who gave them is named; only if too few right ones
remain, or the owner had dealt nonsense, the round ends in `NotReleased`, which names the owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import KEY_BYTES, TAG_BYTES
from fedveil.privacy.secure_sums.errors import Forged, Malformed, NotReleased, OutOfTurn
from fedveil.privacy.secure_sums.masks import Words, apply_masks, word_type
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.dealing import dealt_lists
from fedveil_federation.secagg.keys import signed
from fedveil_federation.secagg.layout import (
    STATEMENT_BYTES,
    Bytes,
    Flags,
    RoundLayout,
    packed,
    piece,
    rows,
    unpacked,
)
from fedveil_federation.secagg.messages import Confirm, Masked, Shares, Unmask
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, PRINT_BYTES, SEALED_BYTES
from fedveil_federation.secagg.shares import SHARE_BYTES, combine, valid_elements

_BLOCK = 256  # members whose checks are compared at a time


class Kept:
    """By member: what it dealt, its statement, its tags for each neighbour, and its answers.

    `confirms`: whether members show each other on which lists they act.
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
        self.bad = flags(members, degree)  # could not open the shares of
        self.sealed, self.marks = pieces(SEALED_BYTES), pieces(MARK_BYTES)
        self.wrapped = pieces(derive.KEY_BYTES, plan.masks)
        self.roots = pieces(PRINT_BYTES, plan.masks)
        self.tags = pieces(TAG_BYTES, degree if confirms else 0)
        self.answers = pieces(SHARE_BYTES)
        self.nonces = np.zeros((members, NONCE_BYTES), dtype=np.uint8)
        size = STATEMENT_BYTES if confirms else 0
        self.statements = np.zeros((members, size), dtype=np.uint8)
        self.commitments: dict[int, bytes] = {}  # by place

    def ids(self, flags: Flags) -> list[int]:
        """The members that are flagged."""
        members = self.layout.plan.members
        return [members[place] for place in np.flatnonzero(flags).tolist()]

    def has(self, flags: Flags, device: int) -> bool:
        place = self.places.get(device)
        return place is not None and bool(flags[place])

    def close_sharing(self) -> dict[int, list[int]]:
        """Settle who masks with whom: all sharers that do not contradict each other about keys.

        The masks of two whose fingerprints of their common root differ would not cancel. One of the
        two lies, and nobody can tell which; so whoever contradicts most sits the round out, until
        nobody is contradicted any more. Among equals a lot decides that no sharer could foresee,
        and that falls alike after a restart.

        Returns:
            The devices that sit out, and whom each of them contradicts.
        """
        odds, left_out = self._at_odds(), dict[int, list[int]]()
        drawn = derive.digest(b"lot", *(self.commitments[at] for at in sorted(self.commitments)))
        while (count := odds.sum(axis=1)).any():
            worst = np.flatnonzero(count == count.max()).tolist()
            place = min(worst, key=lambda at: derive.digest(b"lot", drawn, derive.id_bytes(at)))
            others = self.neighbours[place][odds[place]]
            left_out[int(self.members[place])] = self.members[others].tolist()
            odds[others, self.ranks[place][odds[place]]] = False
            odds[place], self.shared[place] = False, False
        self.partners = self.shared[:, None] & self.shared[self.neighbours]
        self.sharers = packed(self.shared)
        return left_out

    def _at_odds(self) -> Flags:
        """By place and neighbour, whether two sharers fingerprint different roots."""
        odds = np.zeros_like(self.partners)
        for start in range(0, len(self.shared), _BLOCK):
            block = slice(start, start + _BLOCK)
            columns = self.columns[block]
            masked = np.take_along_axis(self.neighbours[block], columns, axis=1)
            differ = (self.roots[block] != self.roots[masked, self.mask_ranks[block]]).any(axis=2)
            differ &= self.shared[block, None] & self.shared[masked]
            np.put_along_axis(odds[block], columns, differ, axis=1)
        return odds

    def disputes(self) -> dict[int, list[int]]:
        """By device, those of its neighbours that could not open what it dealt to them."""
        found: dict[int, list[int]] = {}
        for holder, column in np.argwhere(self.bad).tolist():
            dealer = int(self.members[self.neighbours[holder, column]])
            found.setdefault(dealer, []).append(int(self.members[holder]))
        return found

    def relayed(self, device: int) -> tuple[bytes, bytes, bytes]:
        """The nonces, sealed shares and marks that a device's partners left for it."""
        place = self.places[device]
        chosen = self.partners[place]
        return (
            self.nonces[self.neighbours[place][chosen]].tobytes(),
            self._from(place, chosen, self.sealed),
            self._from(place, chosen, self.marks),
        )

    def statements_for(self, device: int) -> bytes:
        """Return the statements that a device's surviving partners signed about their uploads."""
        near = self.neighbours[self.places[device]]
        found: bytes = self.statements[near[self.uploaded[near]]].tobytes()
        return found

    def tags_for(self, device: int) -> bytes:
        """The tags that a device's partners made for it when they confirmed."""
        place = self.places[device]
        return self._from(place, self.confirmed[self.neighbours[place]], self.tags)

    def _from(self, place: int, chosen: Flags, pieces: Bytes) -> bytes:
        """Return the messages that some neighbours of a device left for it."""
        found: bytes = pieces[self.neighbours[place][chosen], self.ranks[place][chosen]].tobytes()
        return found

    # --- what comes in ----------------------------------------------------------------------------

    def take(self, message: Shares | Masked | Confirm | Unmask) -> None:
        """Keep what a device says in its turn, or raise and change nothing."""
        place = self.places[message.device]
        if isinstance(message, Shares):
            self._take_shares(message, place)
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
        self.commitments[place] = message.commitments
        self.shared[place] = True

    def _take_vector(self, message: Masked, place: int) -> None:
        plan, device = self.layout.plan, message.device
        if not self.shared[place]:
            raise OutOfTurn(f"device {device} did not share in time and is out of this round")
        size = plan.dimension * (plan.bits // 8)
        if len(message.vector) != size:
            raise Malformed(f"Masked.vector: {len(message.vector)} bytes, need {size}")
        statement = rows(message.statement, self.statements.shape[1], 1, "Masked.statement")
        if self.confirms:
            stated = self.layout.statement(device, self.sharers)
            if not signed(self.identities[device], message.statement, stated):
                raise Forged(f"device {device} masked for other sharers")
        self.statements[place] = statement
        np.add(self.total, np.frombuffer(message.vector, self.total.dtype), out=self.total)
        self.uploaded[place] = True

    def _take_confirmation(self, message: Confirm, place: int) -> None:
        device = message.device
        if not self.uploaded[place]:
            raise OutOfTurn(f"device {device} is lost in this round")
        self._check_list(device, message.survivors)
        alive = self.partners[place] & self.uploaded[self.neighbours[place]]
        self.tags[place, alive] = _cut(message.tags, self.tags, alive, "Confirm.tags")
        self.confirmed[place] = True

    def _check_list(self, device: int, survivors: bytes) -> None:
        if survivors != self.layout.survivors_digest(self.sharers, self.survivors):
            raise Forged(f"device {device} acts on other survivors")

    def _take_unmasking(self, message: Unmask, place: int) -> None:
        device = message.device
        if not self.confirmed[place]:
            raise OutOfTurn(f"device {device} has not confirmed")
        self._check_list(device, message.survivors)
        partners = self.partners[place]
        bad = np.zeros(self.layout.plan.degree, dtype=np.bool_)
        bad[partners] = unpacked(message.bad, int(partners.sum()), "Unmask.bad")
        held = partners & ~bad
        answers = _cut(message.answers, self.answers, held, "Unmask.answers")
        if not valid_elements(answers).all():
            raise Malformed("Unmask.answers: a share's elements must be below the prime")
        self.answers[place, held] = answers
        self.bad[place] = bad
        self.answered[place] = True


def _cut(joined: bytes, like: Bytes, chosen: Flags, name: str) -> Bytes:
    """A list as one row for each chosen neighbour, in rows as long as those of `like`."""
    return rows(joined, like.shape[2], int(np.count_nonzero(chosen)), name)


Places = npt.NDArray[np.intp]


@dataclass
class Recovery:
    """Takes the masks off what a server has kept; all devices by their places."""

    kept: Kept
    survived: Flags
    wrong: set[int] = field(default_factory=set)  # devices that gave other shares than they got

    def remove_masks(self, total: Words) -> None:
        """Turn the sum of masked vectors into the sum of vectors, in place, or leave it alone."""
        added: list[bytes] = []
        subtracted: list[bytes] = []
        kept, members = self.kept, self.kept.layout.plan.members
        for place in np.flatnonzero(kept.shared).tolist():
            secret = self.secret(place)
            if self.survived[place]:
                subtracted.append(pairs.self_mask_key(secret))
                continue
            columns = kept.columns[place]
            near = kept.neighbours[place, columns]
            masked = kept.partners[near, kept.ranks[place, columns]] & self.survived[near]
            roots = pairs.wrap(kept.wrapped[place].tobytes(), secret)
            for column in np.flatnonzero(masked).tolist():
                other, root = int(near[column]), piece(roots, KEY_BYTES, column)
                if not derive.same(pairs.root_print(root), kept.roots[place, column].tobytes()):
                    raise NotReleased(
                        f"device {members[place]} left a wrong key for device {members[other]}"
                    )
                # The lower id had added the pair's mask, the higher had subtracted it.
                (subtracted if other < place else added).append(pairs.mask_key(root))
        apply_masks(total, added, subtracted)

    def secret(self, place: int) -> bytes:
        """The self secret of a survivor, or the pair secret of a lost device."""
        kept, threshold = self.kept, self.kept.layout.plan.threshold
        device, digest = kept.layout.plan.members[place], kept.layout.digest
        near, ranks = kept.neighbours[place], kept.ranks[place]
        survived = bool(self.survived[place])
        gave = kept.partners[near, ranks] & ~kept.bad[near, ranks] & kept.answered[near]
        came = np.flatnonzero(gave)
        secret = self._combined(place, came)
        if secret is not None and self._committed(place, secret):
            return secret
        right = []
        for column in came.tolist():
            holder = int(near[column])
            mark, answer = kept.marks[place, column].tobytes(), self._answer(place, column)
            name = kept.layout.plan.members[holder]
            if pairs.fits_mark(answer, survived, mark, digest, device, name):
                right.append(column)
            else:
                self.wrong.add(name)
        secret = self._combined(place, np.array(right, dtype=np.intp))
        if secret is None:
            raise NotReleased(f"device {device}: {len(right)} shares came, need {threshold}")
        if not self._committed(place, secret):
            raise NotReleased(f"device {device} dealt shares that do not fit its commitment")
        return secret

    def _answer(self, place: int, column: int) -> bytes:
        """Return a neighbour's answer about a device."""
        near, ranks = self.kept.neighbours, self.kept.ranks
        found: bytes = self.kept.answers[near[place, column], ranks[place, column]].tobytes()
        return found

    def _committed(self, place: int, secret: bytes) -> bool:
        layout, committed = self.kept.layout, self.kept.commitments[place]
        device, survived = layout.plan.members[place], bool(self.survived[place])
        return pairs.fits_commitment(committed, secret, layout.digest, device, survived)

    def _combined(self, place: int, columns: Places) -> bytes | None:
        """The secret by the shares of the first holders; None if they are too few."""
        kept, threshold = self.kept, self.kept.layout.plan.threshold
        if len(columns) < threshold:
            return None
        chosen = columns[:threshold]
        near, ranks = kept.neighbours[place, chosen], kept.ranks[place, chosen]
        return combine(chosen + 1, kept.answers[near, ranks])
