"""What a device deals to its neighbours, what it makes of what they deal, and how it complains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from fedveil.privacy.secure_sums.derive import KEY_BYTES
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.layout import Bytes, Flags, RoundLayout, piece, rows
from fedveil_federation.secagg.messages import Disclosure, RoundPlan, Shares
from fedveil_federation.secagg.pairs import (
    MARK_BYTES,
    NONCE_BYTES,
    PRINT_BYTES,
    SEALED_BYTES,
    PairKeys,
)
from fedveil_federation.secagg.shares import SHARE_BYTES, draw_secret, split, valid_elements

# The lists of `Shares`: bytes of a piece, one for each neighbour or for each that one masks with.
PER_NEIGHBOUR = {"sealed": SEALED_BYTES, "marks": MARK_BYTES, "checks": PRINT_BYTES}
PER_MASK = {"wrapped": KEY_BYTES, "roots": PRINT_BYTES}


def deal(
    layout: RoundLayout,
    device: int,
    self_secret: bytes,
    pair_keys: Mapping[int, PairKeys],
    exchange: bytes,
) -> Shares:
    """What lets the others finish without this device. `pair_keys`: by neighbour, ascending."""
    digest = layout.digest
    pair_secret = draw_secret()  # not kept: only its shares and what it wraps remain
    nonce = os.urandom(NONCE_BYTES)
    both = split([self_secret, pair_secret], layout.plan.threshold, len(pair_keys)).tobytes()
    seals = [keys.seal for keys in pair_keys.values()]
    roots = [keys.root for keys in pair_keys.values() if keys.root]
    pads = pairs.pads(seals, [nonce] * len(seals), repeat(device))
    commitments = pairs.commitment(b"self", self_secret, digest, device)
    commitments += pairs.commitment(b"pair", pair_secret, digest, device)
    return Shares(
        digest,
        device,
        exchange,
        commitments,
        nonce,
        pairs.xor(both, pads),
        pairs.marks(both, digest, repeat(device), pair_keys),
        b"".join(map(pairs.seal_print, seals)),
        pairs.wrap(b"".join(roots), pair_secret),
        b"".join(map(pairs.root_print, roots)),
    )


def dealt_lists(dealt: Shares, plan: RoundPlan) -> dict[str, Bytes]:
    """The lists of what a device dealt, in rows; `Malformed` if one has another length."""
    return {
        name: rows(getattr(dealt, name), size, count, f"Shares.{name}")
        for sizes, count in ((PER_NEIGHBOUR, plan.degree), (PER_MASK, plan.masks))
        for name, size in sizes.items()
    }


@dataclass(frozen=True)
class Holding:
    """What a device holds of its partners.

    `fits` [partners]: whether what a partner sealed is what its mark says. `shares` [fitting, 64]:
    the self share and the pair share of those that fit.
    """

    fits: Flags
    shares: Bytes

    def __repr__(self) -> str:
        return f"Holding({int(self.fits.sum())} of {len(self.fits)} fit)"

    def answers(self, survived: Flags) -> bytes:
        """Of each partner that fits the share that is owed."""
        alive = survived[self.fits, None]
        return np.where(alive, self.shares[:, :SHARE_BYTES], self.shares[:, SHARE_BYTES:]).tobytes()


def opened(
    plan: bytes,
    holder: int,
    dealers: Sequence[int],
    seals: Sequence[bytes],
    nonces: bytes,
    sealed: bytes,
    marks: bytes,
) -> Holding:
    """What partners sealed to a device: what fits their marks. Lists have the right lengths."""
    each = [piece(nonces, NONCE_BYTES, at) for at in range(len(dealers))]
    joined = pairs.xor(sealed, pairs.pads(seals, each, dealers))
    made = pairs.marks(joined, plan, dealers, repeat(holder))
    shares = rows(joined, SEALED_BYTES, len(dealers), "sealed")
    told, found = (rows(one, MARK_BYTES, len(dealers), "marks") for one in (marks, made))
    fits = valid_elements(shares) & (told == found).all(axis=1)
    return Holding(fits, shares[fits])


def nonsense(dealt: Shares, layout: RoundLayout, seal: bytes, holder: int) -> bool:
    """Whether what a dealer sealed under this key to a holder is not what it marked."""
    at = layout.rank(dealt.device, holder)
    sealed, mark = piece(dealt.sealed, SEALED_BYTES, at), piece(dealt.marks, MARK_BYTES, at)
    found = opened(dealt.plan, holder, [dealt.device], [seal], dealt.nonce, sealed, mark)
    return not found.fits[0]


def contradicts(dealt: Shares, layout: RoundLayout, keys: PairKeys, holder: int) -> bool:
    """Whether a dealer's fingerprints of the keys it shares with a holder are not the holder's."""
    said = [piece(dealt.checks, PRINT_BYTES, layout.rank(dealt.device, holder))]
    held = [pairs.seal_print(keys.seal)]
    if keys.root:
        said.append(piece(dealt.roots, PRINT_BYTES, layout.mask_rank(dealt.device, holder)))
        held.append(pairs.root_print(keys.root))
    return said != held


def disclosure(layout: RoundLayout, dealt: Shares, keys: PairKeys, holder: int) -> Disclosure:
    """The key that shows nonsense in what a dealer signed; `RuleBroken` if there is none in it."""
    dealer = dealt.device
    said = piece(dealt.checks, PRINT_BYTES, layout.rank(dealer, holder))
    if said != pairs.seal_print(keys.seal):
        raise RuleBroken(f"devices {dealer} and {holder} hold different keys")
    if not nonsense(dealt, layout, keys.seal, holder):
        raise RuleBroken(f"device {dealer} had sealed proper shares")
    return Disclosure(layout.digest, holder, dealer, keys.seal)
