"""Who holds whose shares and who masks with whom: a circulant graph over a random order.

The order sorts the members' places by words of a keystream. The seed of a sparse graph is drawn by
a server that the terms trust; in a complete graph the order means nothing, and there is no seed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.privacy.secure_sums.masks import keystream

Places = npt.NDArray[np.intp]
Table = npt.NDArray[np.int32]


class Tables(NamedTuple):
    """Everybody's lists at once, by places in `members`.

    `near` [members, degree]: the neighbours; `ranks`: one's own place in the list of each of them.
    `columns` [members, masks]: which of the neighbours one masks with; `mask_ranks`: one's own
    place among those whom each of these masks with.
    """

    near: Table
    ranks: Table
    columns: Table
    mask_ranks: Table


class Graph:
    """The neighbours of every member, in ascending order of id; it masks with the nearest."""

    def __init__(
        self, members: Sequence[int], degree: int, seed: bytes, masks: int | None = None
    ) -> None:
        self.members = tuple(members)
        self.degree = degree
        self.masks = degree if masks is None else masks
        self._order: Places = np.arange(0)
        self._at: Places = np.arange(0)  # where each place stands in the order
        if not self.complete:
            size = len(self.members)
            words = np.frombuffer(keystream(derive.expand(seed, b"order"), 8 * size), "<u8")
            self._order = np.argsort(words, kind="stable")
            self._at = np.empty(size, dtype=np.intp)
            self._at[self._order] = np.arange(size)

    @property
    def complete(self) -> bool:
        return self.degree == len(self.members) - 1

    def place(self, device: int) -> int:
        """Where a member stands among the members."""
        place = bisect_left(self.members, device)
        if place == len(self.members) or self.members[place] != device:
            raise RuleBroken(f"device {device} is not in the cohort")
        return place

    def near(self, place: int) -> Places:
        """The places of a member's neighbours, ascending."""
        if self.complete:
            return np.delete(np.arange(len(self.members)), place)
        return np.sort(self._around(self._at[place], self.degree))

    def masked(self, place: int) -> npt.NDArray[np.bool_]:
        """Which of its neighbours a member masks with."""
        near = self.near(place)
        if self.masks == self.degree:
            return np.ones(len(near), dtype=np.bool_)
        return np.isin(near, self._around(self._at[place], self.masks))

    def _around(self, at: npt.ArrayLike, count: int) -> Places:
        """The places that stand within count/2 of one in the order."""
        half = count // 2
        steps = np.array([*range(-half, 0), *range(1, half + 1)])
        found: Places = self._order[(np.asarray(at) + steps) % len(self._order)]
        return found

    def neighbours(self, device: int) -> tuple[int, ...]:
        """The ids joined to `device`; holder x of its shares is number x - 1 in this list."""
        near = self.near(self.place(device)).tolist()
        return tuple(self.members[place] for place in near)

    @cached_property
    def tables(self) -> Tables:
        size, own = len(self.members), np.arange(len(self.members))[:, None]
        if self.complete:
            columns = np.arange(size - 1)[None, :]
            near = columns + (columns >= own)
            ranks = own - (own > near)
            all_columns = np.broadcast_to(columns, near.shape)
            return _tables(near, ranks, all_columns, ranks)
        near = np.sort(self._around(self._at[:, None], self.degree), axis=1)
        # Sorted by list and then by member, each list's members come in their order in it.
        sequence = np.argsort((near * size + own).ravel(), kind="stable")
        ranks = np.empty(near.size, dtype=np.intp)
        ranks[sequence] = np.arange(near.size) % self.degree
        ranks = ranks.reshape(near.shape)
        apart = np.abs(self._at[:, None] - self._at[near])
        masked = np.minimum(apart, size - apart) <= self.masks // 2
        columns = np.nonzero(masked)[1].reshape(size, self.masks)
        count = np.cumsum(masked, axis=1) - 1
        chosen = np.take_along_axis(near, columns, axis=1)
        mask_ranks = count[chosen, np.take_along_axis(ranks, columns, axis=1)]
        return _tables(near, ranks, columns, mask_ranks)


def _tables(*lists: npt.NDArray[np.intp]) -> Tables:
    return Tables(*(one.astype(np.int32) for one in lists))


@lru_cache(maxsize=8)
def round_graph(members: tuple[int, ...], degree: int, seed: bytes, masks: int) -> Graph:
    """The graph of a round; cached, because a simulation asks for it once per device."""
    return Graph(members, degree, seed, masks)
