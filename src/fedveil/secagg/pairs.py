"""What two devices share: a seed for many rounds, and from it the keys of one round.

    seed   = HKDF(X25519(own, other), both key cards)            once per pair of key versions
    key    = ratchet(seed, round number)                         once per round
    root, seal to the higher id, seal to the lower id, tag key
           = HKDF-Expand(key, plan)                              once per plan

The plan's digest holds round number, purpose, cohort and everybody's keys, so devices that were
told different things share no masks at all. Only `root` may ever be shown to the server (when one
of the two is lost): it gives that round's mask between the two, and nothing else: not the seal or
tag keys, not the seed, not another round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedveil.secagg import derive
from fedveil.secagg.errors import ForeignKey, Forged
from fedveil.secagg.roster import Enrolled
from fedveil.secagg.shares import SHARE_BYTES

PRINT_BYTES = 16
CHECK_BYTES = 2 * PRINT_BYTES
MARK_BYTES = 16
NONCE_BYTES = 12
SEALED_BYTES = NONCE_BYTES + 2 * SHARE_BYTES + 16

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True)
class PairKeys:
    """The keys of one pair in one round; they never show in a log."""

    root: bytes = field(repr=False)
    seal_up: bytes = field(repr=False)  # from the lower to the higher id
    seal_down: bytes = field(repr=False)
    tag: bytes = field(repr=False)

    def seal(self, sender: int, receiver: int) -> bytes:
        """The key of one direction."""
        return self.seal_up if sender < receiver else self.seal_down


def pair_seed(own: Enrolled, private: X25519PrivateKey, other: Enrolled) -> bytes:
    """The 32-byte seed of two devices, the same from either side."""
    try:
        shared = private.exchange(other.agreement)
    except ValueError:  # a point of small order: the result would be known to everybody
        raise ForeignKey(f"device {other.device}: a weak X25519 key") from None
    low, high = sorted((own, other), key=lambda entry: entry.device)
    return derive.extract(shared, b"pair", low.fingerprint + high.fingerprint)


def pair_keys(key: bytes, plan: bytes) -> PairKeys:
    """The keys of a plan with this digest, from the pair's key of the plan's round."""
    material = derive.expand(key, b"round", plan, 4 * derive.KEY_BYTES)
    return PairKeys(material[:32], material[32:64], material[64:96], material[96:])


def mask_key(root: bytes) -> bytes:
    """The AES-256 key of the pair's mask; the lower id adds it, the higher subtracts it."""
    return derive.expand(root, b"mask")


def self_mask_key(self_secret: bytes) -> bytes:
    """The AES-256 key of a device's own mask, which it adds."""
    return derive.expand(self_secret, b"self-mask")


def root_print(root: bytes) -> bytes:
    """A fingerprint that shows two devices, or a recovery, hold the same root."""
    return derive.expand(root, b"check", length=PRINT_BYTES)


def seal_print(key: bytes) -> bytes:
    """A fingerprint of a seal key."""
    return derive.expand(key, b"check-seal", length=PRINT_BYTES)


def seals_print(up: bytes, down: bytes) -> bytes:
    """One fingerprint of both seal keys' fingerprints: either can be shown without the other."""
    return derive.digest(b"check-seals", up, down)[:PRINT_BYTES]


def check(keys: PairKeys) -> bytes:
    """What both devices of a pair must say alike about their keys."""
    seals = seals_print(seal_print(keys.seal_up), seal_print(keys.seal_down))
    return root_print(keys.root) + seals


def wrap(root: bytes, pair_secret: bytes, neighbour: int) -> bytes:
    """Hide or recover the root shared with `neighbour` under a device's pair secret."""
    pad = derive.expand(pair_secret, b"wrap", derive.id_bytes(neighbour))
    return (int.from_bytes(root, "little") ^ int.from_bytes(pad, "little")).to_bytes(32, "little")


def commitment(kind: bytes, secret: bytes, plan: bytes, device: int) -> bytes:
    """A hash that fixes a secret; `kind` is b"self" or b"pair"."""
    return derive.digest(b"commit-" + kind, plan, derive.id_bytes(device), secret)


def share_print(kind: bytes, share: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    """A fingerprint that fixes one share; `kind` is b"self" or b"pair"."""
    context = plan + derive.id_bytes(dealer) + derive.id_bytes(holder)
    return derive.expand(share, b"share-" + kind, context, PRINT_BYTES)


def join_prints(self_print: bytes, pair_print: bytes) -> bytes:
    """The mark of two shares from their fingerprints."""
    return derive.digest(b"mark", self_print, pair_print)[:MARK_BYTES]


def mark(both: bytes, plan: bytes, dealer: int, holder: int) -> bytes:
    """What a dealer says about the two shares that it seals to a holder."""
    return join_prints(*share_prints(both, plan, dealer, holder))


def share_prints(both: bytes, plan: bytes, dealer: int, holder: int) -> tuple[bytes, bytes]:
    """The fingerprints of a self share and a pair share."""
    return (
        share_print(b"self", both[:SHARE_BYTES], plan, dealer, holder),
        share_print(b"pair", both[SHARE_BYTES:], plan, dealer, holder),
    )


def seal_shares(key: bytes, both: bytes, random_bytes: RandomBytes = os.urandom) -> bytes:
    """Encrypt a self share and a pair share (32 bytes each) under a seal key.

    The nonce is random although each key should encrypt once: a device that forgets that it did
    must not show the difference of two messages.
    """
    nonce = random_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, both, None)


def open_shares(key: bytes, sealed: bytes) -> bytes:
    """Decrypt them; `Forged` if anybody else wrote or changed them."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
    except InvalidTag:
        raise Forged("a sealed share was not made with the pair's key") from None
