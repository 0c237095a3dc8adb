"""The round as both sides compute it: what follows from a plan, and how lists are packed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.secagg import derive
from fedveil.secagg.errors import Malformed
from fedveil.secagg.graph import Graph, round_graph
from fedveil.secagg.messages import RoundPlan


@dataclass(frozen=True)
class Layout:
    """A plan with its digest (the SHA-256 of its body) and its graph."""

    plan: RoundPlan
    digest: bytes
    graph: Graph

    def rank(self, device: int, neighbour: int) -> int:
        """Where `neighbour` stands in the list of `device`'s neighbours."""
        return bisect_left(self.graph.neighbours(device), neighbour)

    def bitmap(self, present: Collection[int]) -> bytes:
        """One bit per member."""
        return packed(np.isin(self.plan.members, list(present)))

    def present(self, bitmap: bytes) -> frozenset[int]:
        """The members whose bit is set; `Malformed` unless exactly one bit per member is given."""
        return flagged(bitmap, self.plan.members, "present")

    def sharers_digest(self, bitmap: bytes) -> bytes:
        return derive.digest(b"sharers", self.digest, bitmap)

    def statement(self, device: int, sharers: bytes) -> bytes:
        """What a device signs of its upload: for which sharers it masked."""
        return derive.digest(b"statement", self.digest, derive.id_bytes(device), sharers)

    def survivors_digest(self, sharers: bytes, survivors: bytes) -> bytes:
        """Binds both bitmaps: devices that agree on it agree on everything so far."""
        return derive.digest(b"survivors", self.digest, sharers, survivors)


def lay_out(plan: RoundPlan, digest: bytes, seed: bytes) -> Layout:
    """The layout of a plan whose degree is possible for its cohort; `seed` is its graph's."""
    return Layout(plan, digest, round_graph(plan.members, plan.degree, seed))


def packed(flags: npt.NDArray[np.bool_]) -> bytes:
    """Flags as a bitmap."""
    return np.packbits(flags, bitorder="little").tobytes()


def pack_flags(places: Collection[int], count: int) -> bytes:
    """A bitmap of `count` places, of which those given are set."""
    flags = np.zeros(count, dtype=np.bool_)
    flags[list(places)] = True
    return packed(flags)


def flagged(bitmap: bytes, owners: Sequence[int], name: str) -> frozenset[int]:
    """Those of the owners whose bit is set."""
    return frozenset(owners[place] for place in flagged_places(bitmap, len(owners), name))


def flagged_places(bitmap: bytes, count: int, name: str) -> list[int]:
    """The places whose bit is set, of a bitmap of `count` places."""
    if len(bitmap) != (count + 7) // 8:
        raise Malformed(f"{name}: {len(bitmap)} bytes for {count} flags")
    if not any(bitmap):
        return []
    flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if flags[count:].any():
        raise Malformed(f"{name}: a bit beyond the last one is set")
    return np.flatnonzero(flags).tolist()


def piece(joined: bytes, size: int, place: int) -> bytes:
    """The piece at a place of a packed list."""
    return joined[place * size : (place + 1) * size]


def check_pieces(joined: bytes, size: int, count: int, name: str) -> None:
    """`Malformed` unless a packed list has `count` pieces of `size` bytes."""
    if len(joined) != size * count:
        raise Malformed(f"{name}: {len(joined)} bytes, need {size} for each of {count}")


def pieces(joined: bytes, size: int, owners: Sequence[int], name: str) -> dict[int, bytes]:
    """Cut a packed list into one piece of `size` bytes for each owner."""
    check_pieces(joined, size, len(owners), name)
    return {owner: piece(joined, size, place) for place, owner in enumerate(owners)}
