"""What a device deals to its neighbours, and how one of them shows that it got nonsense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedveil.secagg import pairs
from fedveil.secagg.errors import Forged, Malformed, OutOfTurn, RuleBroken
from fedveil.secagg.layout import Layout, piece
from fedveil.secagg.messages import Disclosure, Shares
from fedveil.secagg.pairs import CHECK_BYTES, MARK_BYTES, SEALED_BYTES, PairKeys
from fedveil.secagg.shares import SHARE_BYTES, as_elements, draw_secret, split


def deal(
    layout: Layout, device: int, self_secret: bytes, pair_keys: Mapping[int, PairKeys]
) -> Shares:
    """What lets the others finish without this device."""
    digest, neighbours = layout.digest, layout.graph.neighbours(device)
    pair_secret = draw_secret()  # not kept: only its shares and what it wraps remain
    both = split([self_secret, pair_secret], layout.plan.threshold, len(neighbours))
    sealed, wrapped, checks, marks = [], [], [], []
    for row, neighbour in zip(both, neighbours, strict=True):
        keys, shares = pair_keys[neighbour], row.tobytes()
        sealed.append(pairs.seal_shares(keys.seal(device, neighbour), shares))
        wrapped.append(pairs.wrap(keys.root, pair_secret, neighbour))
        checks.append(pairs.check(keys))
        marks.append(pairs.mark(shares, digest, device, neighbour))
    commitments = pairs.commitment(b"self", self_secret, digest, device)
    commitments += pairs.commitment(b"pair", pair_secret, digest, device)
    lists = (b"".join(part) for part in (sealed, wrapped, checks, marks))
    return Shares(digest, device, commitments, *lists)


@dataclass(frozen=True)
class Held:
    """Both shares that a dealer sealed to a holder, with their fingerprints."""

    self_share: bytes = field(repr=False)
    pair_share: bytes = field(repr=False)
    self_print: bytes
    pair_print: bytes

    def answer(self, survived: bool) -> bytes:
        """The share that is owed about the dealer, and the fingerprint of the other kind."""
        if survived:
            return self.self_share + self.pair_print
        return self.pair_share + self.self_print


def fitting_shares(
    key: bytes, sealed: bytes, mark: bytes, plan: bytes, dealer: int, holder: int
) -> Held | None:
    """What was sealed, if it opens and is what the mark says."""
    try:
        both = pairs.open_shares(key, sealed)
        as_elements(both)
    except (Forged, Malformed):
        return None
    prints = pairs.share_prints(both, plan, dealer, holder)
    if len(both) != 2 * SHARE_BYTES or pairs.join_prints(*prints) != mark:
        return None
    return Held(both[:SHARE_BYTES], both[SHARE_BYTES:], *prints)


def disclosure(layout: Layout, dealt: Shares, keys: PairKeys, holder: int) -> Disclosure:
    """The key that shows nonsense in what a dealer signed; `RuleBroken` if there is none in it."""
    dealer = dealt.device
    if dealt.plan != layout.digest:
        raise OutOfTurn("Shares of another round")
    place = layout.rank(dealer, holder)
    if piece(dealt.checks, CHECK_BYTES, place) != pairs.check(keys):
        raise RuleBroken(f"devices {dealer} and {holder} hold different keys")
    sealed, mark = piece(dealt.sealed, SEALED_BYTES, place), piece(dealt.marks, MARK_BYTES, place)
    key = keys.seal(dealer, holder)
    if fitting_shares(key, sealed, mark, layout.digest, dealer, holder) is not None:
        raise RuleBroken(f"device {dealer} had sealed proper shares")
    other = pairs.seal_print(keys.seal(holder, dealer))
    return Disclosure(layout.digest, holder, dealer, key, other)
