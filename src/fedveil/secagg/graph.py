"""Who masks with whom: a circulant graph over the cohort in a random order.

The order sorts devices by a hash of the graph's seed and their id. The seed of a sparse graph is
drawn by devices (`draw.py`) once everything else about the round is fixed; in a complete graph the
order means nothing, and the seed is that of no draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from fedveil.secagg import derive

Places = npt.NDArray[np.intp]


class Graph:
    """The neighbours of every member, in ascending order of id."""

    def __init__(self, members: Sequence[int], degree: int, seed: bytes) -> None:
        self.members = tuple(members)
        self.degree = degree
        self._known: dict[int, tuple[int, ...]] = {}
        self._order: list[int] = []
        self._place: dict[int, int] = {}
        if degree < len(self.members) - 1:
            self._order = sorted(
                self.members,
                key=lambda device: derive.digest(b"order", seed, derive.id_bytes(device)),
            )
            self._place = {device: place for place, device in enumerate(self._order)}

    @cached_property
    def table(self) -> tuple[Places, Places]:
        """All lists at once, [members, degree], by places in `members` (which ascend): everybody's
        neighbours, and everybody's place in the list of each neighbour."""
        size, own = len(self.members), np.arange(len(self.members))[:, None]
        if self.complete:
            columns = np.arange(size - 1)[None, :]
            near = columns + (columns >= own)
            return near, own - (own > near)
        where = {member: place for place, member in enumerate(self.members)}
        order = np.array([where[member] for member in self._order])
        at = np.empty(size, dtype=np.intp)
        at[order] = np.arange(size)
        half = self.degree // 2
        steps = np.array([*range(-half, 0), *range(1, half + 1)])
        near = np.sort(order[(at[:, None] + steps) % size], axis=1)
        # Sorted by list and then by member, each list's members come in their order in it.
        sequence = np.argsort((near * size + own).ravel(), kind="stable")
        ranks = np.empty(near.size, dtype=np.intp)
        ranks[sequence] = np.arange(near.size) % self.degree
        return near, ranks.reshape(near.shape)

    @property
    def complete(self) -> bool:
        return self.degree == len(self.members) - 1

    def neighbours(self, device: int) -> tuple[int, ...]:
        """The ids joined to `device`; holder x of its shares is number x - 1 in this list."""
        known = self._known.get(device)
        if known is None:
            if self.complete:
                known = tuple(member for member in self.members if member != device)
            else:
                size, place, half = len(self._order), self._place[device], self.degree // 2
                steps = (*range(-half, 0), *range(1, half + 1))
                known = tuple(sorted(self._order[(place + step) % size] for step in steps))
            self._known[device] = known
        return known


@lru_cache(maxsize=8)
def round_graph(members: tuple[int, ...], degree: int, seed: bytes) -> Graph:
    """The graph of a round; cached, because a simulation asks for it once per device."""
    return Graph(members, degree, seed)
