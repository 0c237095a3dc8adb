"""From shares back to secrets, and from secrets to the masks that the total must lose.

For every survivor its own mask is removed; for every device that shared but sent no vector, the
pair masks that its surviving neighbours applied. Each recovered secret is compared with what its
owner committed to before any vector was sent. If it does not fit, single shares are compared with
the owner's marks: wrong ones are left out, and who gave them is named; only if too few right ones
remain, or the owner had dealt nonsense, the round ends in `NotReleased`, which names the owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import KEY_BYTES
from fedveil.privacy.secure_sums.errors import NotReleased
from fedveil.privacy.secure_sums.masks import Words, apply_masks
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.layout import Flags, piece
from fedveil_federation.secagg.relay import Kept
from fedveil_federation.secagg.shares import combine

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
        """What a neighbour answered about a device."""
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
