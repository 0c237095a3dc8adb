"""One hash of a list, and short proofs of what stands at some of its places.

Neighbours at even and odd places are hashed together, level by level; a last one without a
neighbour moves up as it is. The root also covers how many leaves there are. A proof for several
places holds the siblings that cannot be computed from those places, level by level, left to right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import Forged

HASH_BYTES = 32
_LEAF = derive.PROTOCOL + b"leaf\0"
_NODE = derive.PROTOCOL + b"node\0"


class Tree:
    """All hashes over some leaves, of 32 bytes each."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [[_leaf(leaf) for leaf in leaves]]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            above = [_node(*below[at : at + 2]) for at in range(0, len(below) - 1, 2)]
            self._levels.append(above + below[len(below) - len(below) % 2 :])
        self.root = _top(len(leaves), self._levels[-1][0])

    def prove(self, places: Collection[int]) -> bytes:
        """What, with the leaves at these places, gives the root."""
        proof, wanted = [], sorted(set(places))
        for level in self._levels[:-1]:
            known = set(wanted)
            for place in wanted:
                sibling = place ^ 1
                if sibling not in known and sibling < len(level):
                    proof.append(level[sibling])
            wanted = sorted({place >> 1 for place in wanted})
        return b"".join(proof)


def proven_root(count: int, known: Mapping[int, bytes], proof: bytes) -> bytes:
    """The root of `count` leaves of which some are known; `Forged` if the proof does not fit."""
    if not known or not all(0 <= place < count for place in known) or len(proof) % HASH_BYTES:
        raise Forged("roster proof: it is about no place, or about none of the cohort")
    at, size = 0, count
    level = {place: _leaf(leaf) for place, leaf in known.items()}
    while size > 1:
        above: dict[int, bytes] = {}
        for place in sorted(level):
            if place >> 1 in above:
                continue
            sibling = place ^ 1
            if sibling >= size:
                above[place >> 1] = level[place]
                continue
            other = level.get(sibling)
            if other is None:
                other, at = proof[at : at + HASH_BYTES], at + HASH_BYTES
                if len(other) < HASH_BYTES:
                    raise Forged("roster proof: it is too short")
            pair = (other, level[place]) if place & 1 else (level[place], other)
            above[place >> 1] = _node(*pair)
        level, size = above, (size + 1) >> 1
    if at != len(proof):
        raise Forged("roster proof: it is too long")
    return _top(count, level[0])


def _leaf(content: bytes) -> bytes:
    return hashlib.sha256(_LEAF + content).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _top(count: int, top: bytes) -> bytes:
    return derive.digest(b"roster", count.to_bytes(8, "little"), top)
