"""What two devices share: a seed for many rounds, and from it the keys of one round.

    seed            = HKDF(X25519(own, other), both key cards)       once per pair of key versions
    key             = ratchet(seed, round number)                    once per round
    seal key        = PRF(key, plan)                                 once per plan
    root | tag key  = PRF(key, plan), if the two mask with each other

The plan's digest holds round number, purpose, cohort and everybody's keys, so devices that were
told different things share no masks at all. Only `root` may ever be shown to the server (when one
of the two is lost): it gives that round's mask between the two, and nothing else: not the seal or
tag keys, not the seed, not another round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import ForeignKey
from fedveil.privacy.secure_sums.masks import MASK_KEY_BYTES, keystream
from fedveil_federation.secagg.roster import Enrolled
from fedveil_federation.secagg.shares import SHARE_BYTES

PRINT_BYTES = 16
MARK_BYTES = 2 * PRINT_BYTES
NONCE_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES


class PairKeys(NamedTuple):
    """The keys of one pair in one round; they never show in a log."""

    seal: bytes
    root: bytes = b""
    tag: bytes = b""

    def __repr__(self) -> str:
        return "PairKeys()"


def pair_seed(own: Enrolled, private: X25519PrivateKey, other: Enrolled) -> bytes:
    """The 32-byte seed of two devices, the same from either side."""
    try:
        shared = private.exchange(other.agreement)
    except ValueError:  # a point of small order: the result would be known to everybody
        raise ForeignKey(f"device {other.device}: a weak X25519 key") from None
    low, high = (own, other) if own.device < other.device else (other, own)
    return derive.extract(shared, b"pair", low.fingerprint + high.fingerprint)


def pair_keys(key: bytes, plan: bytes, masks: bool = True) -> PairKeys:
    """The keys of a plan with this digest, from the pair's key of the plan's round.

    `masks`: whether the two mask with each other, or only hold each other's shares.
    """
    seal = derive.expand(key, b"seal", plan)
    if not masks:
        return PairKeys(seal)
    both = derive.expand(key, b"masks", plan, 2 * derive.KEY_BYTES)
    return PairKeys(seal, both[: derive.KEY_BYTES], both[derive.KEY_BYTES :])


def tag(key: bytes, author: int, survivors: bytes) -> bytes:
    """Return a proof for a neighbour that `author` acts on this list of survivors."""
    return derive.expand(key, b"confirm", derive.id_bytes(author) + survivors, derive.TAG_BYTES)


def mask_key(root: bytes) -> bytes:
    """The key of the pair's mask; the lower id adds it, the higher subtracts it."""
    return derive.expand(root, b"mask", length=MASK_KEY_BYTES)


def self_mask_key(self_secret: bytes) -> bytes:
    """The key of a device's own mask, which it adds."""
    return derive.expand(self_secret, b"self-mask", length=MASK_KEY_BYTES)


def root_print(root: bytes) -> bytes:
    """A fingerprint that shows whether two devices, or a recovery, hold the same root."""
    return derive.expand(root, b"root-print", length=PRINT_BYTES)


def wrap(roots: bytes, pair_secret: bytes) -> bytes:
    """Hide or recover the roots shared with all neighbours under a device's pair secret."""
    return xor(roots, keystream(derive.expand(pair_secret, b"wrap"), len(roots)))


def xor(left: bytes, right: bytes) -> bytes:
    """Two strings of one length, bit by bit."""
    size = len(left)
    joined = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return joined.to_bytes(size, "little")


def commitment(kind: bytes, secret: bytes, plan: bytes, device: int) -> bytes:
    """A hash that fixes a secret; `kind` is b"self" or b"pair"."""
    return derive.digest(b"commit-" + kind, plan, derive.id_bytes(device), secret)


def fits_commitment(
    commitments: bytes, secret: bytes, plan: bytes, device: int, survived: bool
) -> bool:
    """Whether a device had committed to this secret: of its own mask or of its pair masks."""
    kind, committed = (b"self", commitments[:32]) if survived else (b"pair", commitments[32:])
    return derive.same(commitment(kind, secret, plan, device), committed)


def fits_mark(
    share: bytes, survived: bool, mark: bytes, plan: bytes, dealer: int, holder: int
) -> bool:
    """Whether a share that a holder gives is the one that its dealer marked."""
    kind, said = (b"self", mark[:PRINT_BYTES]) if survived else (b"pair", mark[PRINT_BYTES:])
    context = plan + derive.id_bytes(dealer) + derive.id_bytes(holder)
    return derive.same(derive.expand(share, b"share-" + kind, context, PRINT_BYTES), said)


def marks(shares: bytes, plan: bytes, dealers: Iterable[int], holders: Iterable[int]) -> bytes:
    """Return marks of the two shares that each dealer seals to a holder, 64 bytes a pair."""
    contexts = [
        plan + dealer.to_bytes(8, "little") + holder.to_bytes(8, "little")
        for dealer, holder in zip(dealers, holders, strict=False)
    ]
    starts = range(0, len(shares), SEALED_BYTES)
    own = [shares[at : at + SHARE_BYTES] for at in starts]
    other = [shares[at + SHARE_BYTES : at + SEALED_BYTES] for at in starts]
    prints = (
        derive.expand_all(own, b"share-self", contexts, PRINT_BYTES),
        derive.expand_all(other, b"share-pair", contexts, PRINT_BYTES),
    )
    columns = [np.frombuffer(one, dtype=np.uint8).reshape(-1, PRINT_BYTES) for one in prints]
    return np.hstack(columns).tobytes()


def pads(seals: Iterable[bytes], nonces: Iterable[bytes], dealers: Iterable[int]) -> bytes:
    """Return pads for the two shares that dealers seal to holders, 64 bytes a pair.

    Nonces are random although each key should seal once: a device that forgets that it did must not
    show the difference of two messages. Nobody else can change what is sealed unnoticed: the mark
    would have to fit shares that only dealer and holder know.
    """
    contexts = [
        nonce + dealer.to_bytes(8, "little") for nonce, dealer in zip(nonces, dealers, strict=False)
    ]
    return derive.expand_all(seals, b"pad", contexts, SEALED_BYTES)
