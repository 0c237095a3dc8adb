"""The round as both sides compute it: what follows from a plan, and how lists are packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import Malformed
from fedveil.privacy.secure_sums.graph import Graph, round_graph
from fedveil_federation.secagg.messages import RoundPlan

Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RoundLayout:
    """A plan with its digest and its graph."""

    plan: RoundPlan
    digest: bytes
    graph: Graph

    def rank(self, device: int, neighbour: int) -> int:
        """Where `neighbour` stands among `device`'s neighbours; `ValueError` if it is none."""
        return self.graph.neighbours(device).index(neighbour)

    def mask_rank(self, device: int, neighbour: int) -> int:
        """Where it stands among those that `device` masks with."""
        masked = self.graph.masked(self.graph.place(device))
        rank = self.rank(device, neighbour)
        if not masked[rank]:
            raise ValueError(f"devices {device} and {neighbour} do not mask with each other")
        return int(np.count_nonzero(masked[:rank]))

    def present(self, bitmap: bytes) -> Flags:
        """By member, whether its bit is set; `Malformed` unless there is one for each member."""
        return unpacked(bitmap, len(self.plan.members), "present")

    def sharers_digest(self, bitmap: bytes) -> bytes:
        return derive.digest(b"sharers", self.digest, bitmap)

    def statement(self, device: int, sharers: bytes) -> bytes:
        """What a device signs of its upload: for which sharers it masked."""
        return derive.digest(b"statement", self.digest, derive.id_bytes(device), sharers)

    def survivors_digest(self, sharers: bytes, survivors: bytes) -> bytes:
        """Binds both bitmaps: devices that agree on it agree on everything so far."""
        return derive.digest(b"survivors", self.digest, sharers, survivors)

    def accepted(self, dealers: bytes, marks: bytes) -> bytes:
        """Stands for all shares that a device holds: ids of who dealt them, and their marks."""
        return derive.digest(b"accepted", self.digest, dealers, marks)


def lay_out(plan: RoundPlan, digest: bytes, seed: bytes) -> RoundLayout:
    """The layout of a plan whose degree is possible for its cohort; `seed` is its graph's."""
    return RoundLayout(plan, digest, round_graph(plan.members, plan.degree, seed, plan.masks))


def needed_places(layout: RoundLayout, device: int) -> list[int]:
    """Whose cards a device needs: its own, its neighbours', and those of who drew the graph."""
    graph = layout.graph
    own = graph.place(device)
    drew = (graph.place(drawer) for drawer in layout.plan.drawers)
    return sorted({own, *graph.near(own).tolist(), *drew})


def packed(flags: Flags) -> bytes:
    """Flags as a bitmap."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpacked(bitmap: bytes, count: int, name: str) -> Flags:
    """A bitmap of `count` places as flags."""
    if len(bitmap) != (count + 7) // 8:
        raise Malformed(f"{name}: {len(bitmap)} bytes for {count} flags")
    flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if flags[count:].any():
        raise Malformed(f"{name}: a bit beyond the last one is set")
    return flags[:count].view(np.bool_)


def piece(joined: bytes, size: int, place: int) -> bytes:
    """The piece at a place of a packed list."""
    return joined[place * size : (place + 1) * size]


def rows(joined: bytes, size: int, count: int, name: str) -> Bytes:
    """A packed list as `count` rows of `size` bytes; `Malformed` if it has another length."""
    if len(joined) != size * count:
        raise Malformed(f"{name}: {len(joined)} bytes, need {size} for each of {count}")
    return np.frombuffer(joined, dtype=np.uint8).reshape(count, size)
