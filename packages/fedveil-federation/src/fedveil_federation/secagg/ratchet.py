"""A pair's seed, cut into one key per round of which the past ones cannot be computed.

Round numbers have 8 digits to the base 16. Each digit walks along a chain of hashes and the next
digit starts at a branch of it, so any later round is reached in at most 8 * 15 steps, the next one
in three, and nothing kept leads back. The seed could be made again from the X25519 key, until a
device renews it.
"""

from __future__ import annotations

from typing import NamedTuple

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import KEY_BYTES
from fedveil.privacy.secure_sums.errors import RuleBroken

DIGITS = 8
ROUNDS = 16**DIGITS


class Ratchet(NamedTuple):
    """The key of `round`, and for each digit the 32 bytes from which higher digits are reached."""

    round_number: int
    key: bytes
    ahead: bytes

    def __repr__(self) -> str:
        return f"Ratchet(round_number={self.round_number})"


def begin(seed: bytes, round_number: int) -> Ratchet:
    """The ratchet of a fresh seed, already turned to a round."""
    return _descend(round_number, seed, 0, b"")


def advance(ratchet: Ratchet, round_number: int) -> Ratchet:
    """The ratchet turned to a later round; the old one must be forgotten."""
    if round_number == ratchet.round_number:
        return ratchet
    if round_number < ratchet.round_number:
        raise RuleBroken(
            f"round {round_number} comes after round {ratchet.round_number}: numbers only rise"
        )
    # The first digit that differs, counted from the highest.
    place = DIGITS - 1 - ((round_number ^ ratchet.round_number).bit_length() - 1) // 4
    steps = _digit(round_number, place) - _digit(ratchet.round_number, place) - 1
    start = KEY_BYTES * place
    following, branch = _walk(ratchet.ahead[start : start + KEY_BYTES], steps)
    passed = ratchet.ahead[:start] + following
    if place == DIGITS - 1:
        return Ratchet(round_number, branch, passed)
    return _descend(round_number, branch, place + 1, passed)


def _descend(round_number: int, chain: bytes, place: int, ahead: bytes) -> Ratchet:
    """From the start of the chain of one digit down to the key of the round."""
    kept = [ahead]
    for at in range(place, DIGITS):
        following, chain = _walk(chain, _digit(round_number, at))
        kept.append(following)
    return Ratchet(round_number, chain, b"".join(kept))


def _walk(chain: bytes, steps: int) -> tuple[bytes, bytes]:
    """Go so far along a chain: what leads further, and the branch there."""
    for _ in range(steps):
        chain = _fork(chain)[0]
    return _fork(chain)


def _fork(key: bytes) -> tuple[bytes, bytes]:
    """Return the next key of the ratchet, and a branch."""
    both = derive.expand(key, b"ratchet", length=2 * KEY_BYTES)
    return both[:KEY_BYTES], both[KEY_BYTES:]


def _digit(round_number: int, place: int) -> int:
    """Digit number `place` of a round, the highest first."""
    return round_number >> 4 * (DIGITS - 1 - place) & 15
