"""From shares back to secrets, and from secrets to the masks that the total must lose.

For every survivor its own mask is removed; for every device that shared but sent no vector, the
pair masks that its surviving neighbours applied. Each recovered secret is compared with what its
owner committed to before any vector was sent. If it does not fit, single shares are compared with
the owner's marks: wrong ones are left out, and who gave them is named; only if too few right ones
remain, or the owner had dealt nonsense, the round ends in `NotReleased`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fedveil.secagg import derive, pairs, wire
from fedveil.secagg.blame import Fault, Wrong, answer_fits, fits_commitment, unwrapped
from fedveil.secagg.errors import NotReleased
from fedveil.secagg.layout import Layout, piece
from fedveil.secagg.masks import Words, apply_masks
from fedveil.secagg.messages import Shares
from fedveil.secagg.pairs import MARK_BYTES
from fedveil.secagg.shares import SHARE_BYTES, combine


@dataclass(frozen=True)
class Dealt:
    """What a device left with the server, and the signature under it."""

    message: Shares
    signature: bytes

    @property
    def frame(self) -> bytes:
        """The frame as it came."""
        return wire.rebuilt(self.message, self.signature)


@dataclass
class Recovery:
    """What the server knows when it takes the masks off.

    `answers[j][i]` is the share of device i that its neighbour j gave, of i's own mask if i
    survived, of its pair masks if not, with the other kind's fingerprint.
    """

    layout: Layout
    dealt: Mapping[int, Dealt]
    survivors: Collection[int]
    off: Mapping[int, frozenset[int]]  # neighbours that a device did not mask with
    answers: Mapping[int, Mapping[int, bytes]]
    wrong: list[tuple[int, int]] = field(default_factory=list)  # holder, dealer
    faults: list[Fault] = field(default_factory=list)

    def remove_masks(self, total: Words) -> None:
        """Turn the sum of masked vectors into the sum of vectors, in place, or leave it alone."""
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for device, left in self.dealt.items():
            secret = self.secret(device)
            if device in self.survivors:
                subtracted.append(pairs.self_mask_key(secret))
                continue
            for place, neighbour in enumerate(self.layout.graph.neighbours(device)):
                if neighbour not in self.survivors or device in self.off.get(neighbour, ()):
                    continue
                root = unwrapped(left.message, place, secret, neighbour)
                if root is None:
                    self._blame(device, neighbour, Wrong.WRAP, secret)
                    raise NotReleased(f"device {device} left a wrong key for device {neighbour}")
                # The lower id had added the pair's mask, the higher had subtracted it.
                (subtracted if neighbour < device else added).append(pairs.mask_key(root))
        apply_masks(total, added, subtracted)

    def secret(self, device: int) -> bytes:
        """The self secret of a survivor, or the pair secret of a lost device."""
        left, threshold = self.dealt[device].message, self.layout.plan.threshold
        survived = device in self.survivors
        came = {
            place: holder
            for place, holder in enumerate(self.layout.graph.neighbours(device))
            if device in self.answers.get(holder, ())
        }
        secret = self._combined(device, came)
        if secret is not None and fits_commitment(secret, left, survived):
            return secret
        right = {}
        for place, holder in came.items():
            mark = piece(left.marks, MARK_BYTES, place)
            answer = self.answers[holder][device]
            if answer_fits(answer, survived, mark, self.layout.digest, device, holder):
                right[place] = holder
            elif (holder, device) not in self.wrong:
                self.wrong.append((holder, device))
        secret = self._combined(device, right)
        if secret is None:
            raise NotReleased(f"device {device}: {len(right)} shares came, need {threshold}")
        if not fits_commitment(secret, left, survived):
            given = (
                derive.id_bytes(holder) + self.answers[holder][device]
                for holder in list(right.values())[:threshold]
            )
            self._blame(device, device, Wrong.SPLIT, b"self" if survived else b"pair", *given)
            raise NotReleased(f"device {device} dealt shares that do not fit its commitment")
        return secret

    def _combined(self, device: int, holders: Mapping[int, int]) -> bytes | None:
        """The secret by the shares of the first holders, by place; None if they are too few."""
        threshold = self.layout.plan.threshold
        if len(holders) < threshold:
            return None
        chosen = list(holders.items())[:threshold]
        shares = [self.answers[holder][device][:SHARE_BYTES] for _, holder in chosen]
        return combine([place + 1 for place, _ in chosen], shares)

    def _blame(self, device: int, about: int, wrong: Wrong, *values: bytes) -> None:
        frames = (self.dealt[device].frame,)
        self.faults.append(Fault(device, about, wrong, self.layout.digest, frames, values))
