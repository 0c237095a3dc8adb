"""Shares of a device's two secrets: deal them to its neighbours, and open what they deal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from fedveil.privacy.secure_sums.derive import KEY_BYTES
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.layout import Bytes, Flags, RoundLayout, piece, rows
from fedveil_federation.secagg.messages import RoundPlan, Shares
from fedveil_federation.secagg.pairs import (
    MARK_BYTES,
    NONCE_BYTES,
    PRINT_BYTES,
    SEALED_BYTES,
    PairKeys,
)
from fedveil_federation.secagg.shares import SHARE_BYTES, draw_secret, split, valid_elements

# The lists of `Shares`: bytes of a piece, one for each neighbour or for each that one masks with.
PER_NEIGHBOUR = {"sealed": SEALED_BYTES, "marks": MARK_BYTES}
PER_MASK = {"wrapped": KEY_BYTES, "roots": PRINT_BYTES}


def deal(
    layout: RoundLayout,
    device: int,
    self_secret: bytes,
    pair_keys: Mapping[int, PairKeys],
    exchange: bytes,
) -> Shares:
    """Split a device's secrets among its neighbours, so that they can finish without it.

    Args:
        layout: The round.
        device: The id of the dealer.
        self_secret: The secret of its own mask; that of its pair masks is drawn here.
        pair_keys: The keys shared with each neighbour, by ascending id.
        exchange: Its X25519 public key of this round.

    Returns:
        The message for the server, which passes on what is sealed.
    """
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
        pairs.wrap(b"".join(roots), pair_secret),
        b"".join(map(pairs.root_print, roots)),
    )


def dealt_lists(dealt: Shares, plan: RoundPlan) -> dict[str, Bytes]:
    """Return the lists of what a device dealt, in rows; `Malformed` if one has another length."""
    return {
        name: rows(getattr(dealt, name), size, count, f"Shares.{name}")
        for sizes, count in ((PER_NEIGHBOUR, plan.degree), (PER_MASK, plan.masks))
        for name, size in sizes.items()
    }


@dataclass(frozen=True)
class Holding:
    """A device's stored shares of its partners.

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
    """Open what partners sealed to a device, and keep what fits their marks.

    Args:
        plan: The digest of the round's plan.
        holder: The id of the device.
        dealers: The ids of the partners.
        seals: The seal keys that the device shares with them.
        nonces: The partners' nonces, one after the other, as are the lists below.
        sealed: What they sealed.
        marks: What they say that it is.

    Returns:
        What the device holds of its partners.
    """
    each = [piece(nonces, NONCE_BYTES, at) for at in range(len(dealers))]
    joined = pairs.xor(sealed, pairs.pads(seals, each, dealers))
    made = pairs.marks(joined, plan, dealers, repeat(holder))
    shares = rows(joined, SEALED_BYTES, len(dealers), "sealed")
    told, found = (rows(one, MARK_BYTES, len(dealers), "marks") for one in (marks, made))
    fits = valid_elements(shares) & (told == found).all(axis=1)
    return Holding(fits, shares[fits])
