"""What two devices share: a seed for many rounds, and from it the keys of one round.

    seed   = HKDF(X25519(own, other), both key cards)            once per pair of key versions
    root, seal to the higher id, seal to the lower id, tag key
           = HKDF-Expand(seed, plan)                              once per round

The plan's digest holds round number, purpose, cohort and everybody's keys, so devices that were
told different things share no masks at all. Only `root` may ever be shown to the server (when one
of the two is lost): it gives that round's mask between the two, and nothing else: not the seal or
tag keys, not the seed, not another round.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedveil.secagg import derive
from fedveil.secagg.errors import ForeignKey, Forged
from fedveil.secagg.roster import Enrolled
from fedveil.secagg.shares import SHARE_BYTES

CHECK_BYTES = 16
SEALED_BYTES = 2 * SHARE_BYTES + 16
_NONCE = bytes(12)  # every seal key encrypts one message


class PairKeys(NamedTuple):
    """The keys of one pair in one round."""

    root: bytes
    seal_up: bytes  # from the lower to the higher id
    seal_down: bytes
    tag: bytes


def pair_seed(own: Enrolled, private: X25519PrivateKey, other: Enrolled) -> bytes:
    """The 32-byte seed of two devices, the same from either side."""
    try:
        shared = private.exchange(other.agreement)
    except ValueError:  # a point of small order: the result would be known to everybody
        raise ForeignKey(f"device {other.device}: a weak X25519 key") from None
    low, high = sorted((own, other), key=lambda entry: entry.device)
    return derive.extract(shared, b"pair", low.fingerprint + high.fingerprint)


def pair_keys(seed: bytes, plan: bytes) -> PairKeys:
    """The keys of the round whose plan has this digest."""
    material = derive.expand(seed, b"round", plan, 4 * derive.KEY_BYTES)
    return PairKeys(material[:32], material[32:64], material[64:96], material[96:])


def mask_key(root: bytes) -> bytes:
    """The AES-256 key of the pair's mask; the lower id adds it, the higher subtracts it."""
    return derive.expand(root, b"mask")


def self_mask_key(self_secret: bytes) -> bytes:
    """The AES-256 key of a device's own mask, which it adds."""
    return derive.expand(self_secret, b"self-mask")


def check(root: bytes) -> bytes:
    """A fingerprint that shows two devices, or a recovery, hold the same root."""
    return derive.expand(root, b"check", length=CHECK_BYTES)


def wrap(root: bytes, pair_secret: bytes, neighbour: int) -> bytes:
    """Hide or recover the root shared with `neighbour` under a device's pair secret."""
    pad = derive.expand(pair_secret, b"wrap", derive.id_bytes(neighbour))
    return (int.from_bytes(root, "little") ^ int.from_bytes(pad, "little")).to_bytes(32, "little")


def commitment(kind: bytes, secret: bytes, plan: bytes, device: int) -> bytes:
    """A hash that fixes a secret; `kind` is b"self" or b"pair"."""
    return derive.digest(b"commit-" + kind, plan, derive.id_bytes(device), secret)


def seal_shares(keys: PairKeys, sender: int, receiver: int, both: bytes) -> bytes:
    """Encrypt a self share and a pair share (32 bytes each) to a neighbour."""
    key = keys.seal_up if sender < receiver else keys.seal_down
    return AESGCM(key).encrypt(_NONCE, both, None)


def open_shares(keys: PairKeys, sender: int, receiver: int, sealed: bytes) -> bytes:
    """Decrypt them; `Forged` if anybody else wrote or changed them."""
    key = keys.seal_up if sender < receiver else keys.seal_down
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise Forged(f"device {receiver}: the share from device {sender} is not its own") from None
