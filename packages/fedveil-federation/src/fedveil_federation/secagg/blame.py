"""What a device did wrong, with evidence that convinces anybody who knows the round's plan.

Every kind of evidence consists of frames that the accused signed, and of values that those frames
fix by hashes; honest devices never sign such frames. (An `Unmask` carries a signature in its body;
the frame's own is a `Stamp`.) `proven` checks it from nothing but the plan's
layout and the members' identity keys.

Of two that contradict each other one lies, and nobody can tell which: an honest device is at odds
with liars only. So who contradicts more neighbours than may lie next to an honest device lies
itself (`exposed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import ID_BYTES, KEY_BYTES
from fedveil.privacy.secure_sums.errors import SecureAggregationError
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.dealing import dealt_lists, nonsense
from fedveil_federation.secagg.keys import signed
from fedveil_federation.secagg.layout import RoundLayout, piece
from fedveil_federation.secagg.messages import Disclosure, Shares, Unmask
from fedveil_federation.secagg.pairs import MARK_BYTES, PRINT_BYTES
from fedveil_federation.secagg.shares import SHARE_BYTES, combine


class Wrong(Enum):
    """What it is."""

    SHARE = "gave another share than the one it had accepted"
    SEAL = "sealed shares that are not those it had marked"
    SPLIT = "dealt shares that do not make the secret it had committed to"
    WRAP = "left a wrong key for a neighbour"


@dataclass(frozen=True)
class Fault:
    """A device, what it did in a round, and the evidence; `about` is the other device in it."""

    device: int
    about: int
    wrong: Wrong
    plan: bytes  # digest
    frames: tuple[bytes, ...]
    values: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        return f"device {self.device} {self.wrong.value} (device {self.about})"


def proven(fault: Fault, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey]) -> bool:
    """Whether the evidence shows that the device did it."""
    check = {
        Wrong.SHARE: _share,
        Wrong.SEAL: _seal,
        Wrong.SPLIT: _split,
        Wrong.WRAP: _wrap,
    }[fault.wrong]
    try:
        return fault.plan == layout.digest and check(fault, layout, identities)
    except (SecureAggregationError, KeyError, ValueError, IndexError):
        return False


def _frame(
    frame: bytes,
    kind: type[wire.MessageT],
    author: int,
    layout: RoundLayout,
    identities: Mapping[int, Ed25519PublicKey],
) -> wire.MessageT:
    """A frame that this device signed in this round."""
    message = wire.read(frame, kind, wire.MAX_FRAME, identities[author])
    claims = wire.head(frame)
    if claims.context != layout.digest or claims.device != author:
        raise ValueError("a frame of another round or device")
    if isinstance(message, Shares):
        dealt_lists(message, layout.plan)
    return message


def answer_fits(
    share: bytes, survived: bool, mark: bytes, plan: bytes, dealer: int, holder: int
) -> bool:
    """Whether a share is what the dealer marked."""
    kind, said = (b"self", mark[:PRINT_BYTES]) if survived else (b"pair", mark[PRINT_BYTES:])
    return derive.same(pairs.share_print(kind, share, plan, dealer, holder), said)


def given(
    plan: bytes, device: int, survivors: bytes, bad: bytes, accepted: bytes, answers: bytes
) -> bytes:
    """What a device signs of its `Unmask`."""
    return derive.digest(b"given", plan, derive.id_bytes(device), survivors, bad, accepted, answers)


def _share(fault: Fault, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey]) -> bool:
    """frames: the holder's Unmask; values: the dealers whose shares it had accepted, their marks.

    All of it is the holder's own word: nothing that a dealer signs can turn against a holder.
    """
    holder, dealer = fault.device, fault.about
    unmask = wire.parse(fault.frames[0], Unmask)
    said = (unmask.survivors, unmask.bad, unmask.accepted, unmask.answers)
    stated = given(layout.digest, holder, *said)
    if not signed(identities[holder], unmask.signature, stated):
        return False
    dealers, marks = fault.values
    if unmask.accepted != layout.accepted(dealers, marks):
        return False
    ids = [piece(dealers, ID_BYTES, at) for at in range(len(dealers) // ID_BYTES)]
    place = ids.index(derive.id_bytes(dealer))
    if len(unmask.answers) != SHARE_BYTES * len(ids):
        return True  # an honest device answers about each share that it has accepted
    mark = piece(marks, MARK_BYTES, place)
    answer = piece(unmask.answers, SHARE_BYTES, place)
    # Of either kind: which one was owed does not matter for the proof.
    return not any(
        answer_fits(answer, survived, mark, layout.digest, dealer, holder)
        for survived in (True, False)
    )


def _seal(fault: Fault, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey]) -> bool:
    """frames: the dealer's Shares and the holder's Disclosure."""
    dealer, holder = fault.device, fault.about
    dealt = _frame(fault.frames[0], Shares, dealer, layout, identities)
    shown = _frame(fault.frames[1], Disclosure, holder, layout, identities)
    said = piece(dealt.checks, PRINT_BYTES, layout.rank(dealer, holder))
    if shown.dealer != dealer or pairs.seal_print(shown.key) != said:
        return False
    return nonsense(dealt, layout, shown.key, holder)


def _split(fault: Fault, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey]) -> bool:
    """frames: the dealer's Shares; values: b"self" or b"pair", then of as many holders as the
    threshold: id and answer."""
    dealer, survived = fault.device, fault.values[0] == b"self"
    dealt = _frame(fault.frames[0], Shares, dealer, layout, identities)
    points, shares = [], []
    for value in fault.values[1:]:
        holder, answer = int.from_bytes(value[:8], "little"), value[8:]
        rank = layout.rank(dealer, holder)
        mark = piece(dealt.marks, MARK_BYTES, rank)
        if not answer_fits(answer, survived, mark, layout.digest, dealer, holder):
            return False
        points.append(rank + 1)
        shares.append(answer)
    if len(points) != layout.plan.threshold:
        return False
    return not fits_commitment(combine(points, shares), dealt, survived)


def fits_commitment(secret: bytes, dealt: Shares, survived: bool) -> bool:
    """Whether this is the secret that the dealer had committed to."""
    return commits_to(dealt.commitments, secret, dealt.plan, dealt.device, survived)


def commits_to(commitments: bytes, secret: bytes, plan: bytes, device: int, survived: bool) -> bool:
    """Whether a device's commitments fix this secret: to its own mask or to its pair masks."""
    kind, committed = (b"self", commitments[:32]) if survived else (b"pair", commitments[32:])
    return derive.same(pairs.commitment(kind, secret, plan, device), committed)


def _wrap(fault: Fault, layout: RoundLayout, identities: Mapping[int, Ed25519PublicKey]) -> bool:
    """frames: the dealer's Shares; values: its pair secret."""
    dealt = _frame(fault.frames[0], Shares, fault.device, layout, identities)
    if not fits_commitment(fault.values[0], dealt, survived=False):
        return False
    place = layout.mask_rank(fault.device, fault.about)
    root = piece(pairs.wrap(dealt.wrapped, fault.values[0]), KEY_BYTES, place)
    return not derive.same(pairs.root_print(root), piece(dealt.roots, PRINT_BYTES, place))


def exposed(odds: Mapping[int, set[int]], liars: int) -> set[int]:
    """Who contradicts more than `liars` others, not counting those who do so even more.

    `odds`: by device, with whom it is at odds; a pair stands there twice.
    """
    left = {device: set(others) for device, others in odds.items()}
    found: set[int] = set()
    while left:
        worst = max(left, key=lambda device: len(left[device]))
        if len(left[worst]) <= liars:
            break
        found.add(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
    return found
