"""From shares back to secrets, and from secrets to the masks that the total must lose.

For every survivor its own mask is removed; for every device that shared but sent no vector, the
pair masks that its surviving neighbours applied. Each recovered secret is compared with what its
owner committed to before any vector was sent, so a wrong share ends in `NotReleased`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedveil.secagg import derive, pairs
from fedveil.secagg.derive import KEY_BYTES
from fedveil.secagg.errors import NotReleased
from fedveil.secagg.layout import Layout, piece
from fedveil.secagg.masks import Words, apply_masks
from fedveil.secagg.pairs import CHECK_BYTES
from fedveil.secagg.shares import combine


@dataclass(frozen=True)
class Dealt:
    """What a device left with the server: `commitments` to both secrets, and its packed lists."""

    commitments: bytes
    sealed: bytes
    wrapped: bytes
    checks: bytes


def remove_masks(
    layout: Layout,
    total: Words,
    dealt: Mapping[int, Dealt],
    survivors: Collection[int],
    answers: Mapping[int, Mapping[int, bytes]],
) -> None:
    """Turn the sum of masked vectors into the sum of vectors, in place, or leave it untouched.

    `answers[j][i]` is the share of device i that its neighbour j gave: of i's own mask if i
    survived, of its pair masks if not.
    """
    added: list[bytes] = []
    subtracted: list[bytes] = []
    for device, left in dealt.items():
        secret = _recover(layout, device, left, device in survivors, answers)
        if device in survivors:
            subtracted.append(pairs.self_mask_key(secret))
            continue
        for place, neighbour in enumerate(layout.graph.neighbours(device)):
            if neighbour not in survivors:
                continue
            root = pairs.wrap(piece(left.wrapped, KEY_BYTES, place), secret, neighbour)
            if not derive.same(pairs.check(root), piece(left.checks, CHECK_BYTES, place)):
                raise NotReleased(f"device {device} left a wrong key for device {neighbour}")
            # The lower id had added the pair's mask, the higher had subtracted it.
            (subtracted if neighbour < device else added).append(pairs.mask_key(root))
    apply_masks(total, added, subtracted)


def _recover(
    layout: Layout,
    device: int,
    left: Dealt,
    survived: bool,
    answers: Mapping[int, Mapping[int, bytes]],
) -> bytes:
    threshold = layout.plan.threshold
    points: list[int] = []
    shares: list[bytes] = []
    for place, holder in enumerate(layout.graph.neighbours(device)):
        if holder in answers and len(points) < threshold:
            points.append(place + 1)
            shares.append(answers[holder][device])
    if len(points) < threshold:
        raise NotReleased(f"device {device}: {len(points)} shares came, need {threshold}")
    secret = combine(points, shares)
    kind, committed = (
        (b"self", left.commitments[:32]) if survived else (b"pair", left.commitments[32:])
    )
    if not derive.same(pairs.commitment(kind, secret, layout.digest, device), committed):
        raise NotReleased(f"device {device}: the shares that came do not fit its commitment")
    return secret
