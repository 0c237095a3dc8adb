"""Who masks with whom: a circulant graph over the cohort in a random order.

The order sorts devices by a hash of the graph's seed and their id. The seed is a hash of the
federation, round, purpose and members, so the server has nothing to choose in it but the cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fedveil.secagg import derive


class Graph:
    """The neighbours of every member, in ascending order of id."""

    def __init__(self, members: Sequence[int], degree: int, seed: bytes) -> None:
        self.members = tuple(members)
        self.degree = degree
        self._order = sorted(
            self.members, key=lambda device: derive.digest(b"order", seed, derive.id_bytes(device))
        )
        self._place = {device: place for place, device in enumerate(self._order)}
        self._known: dict[int, tuple[int, ...]] = {}

    def neighbours(self, device: int) -> tuple[int, ...]:
        """The ids joined to `device`; holder x of its shares is number x - 1 in this list."""
        known = self._known.get(device)
        if known is None:
            size, place = len(self._order), self._place[device]
            half = size if self.degree == size - 1 else self.degree // 2
            steps = [step for step in range(1, size) if step <= half or size - step <= half]
            known = tuple(sorted(self._order[(place + step) % size] for step in steps))
            self._known[device] = known
        return known


def graph_seed(federation: str, round: int, purpose: str, members: Sequence[int]) -> bytes:
    """The public seed of a round's order."""
    return derive.digest(
        b"graph",
        federation.encode(),
        round.to_bytes(8, "little"),
        purpose.encode(),
        b"".join(derive.id_bytes(device) for device in members),
    )


@lru_cache(maxsize=8)
def round_graph(
    federation: str, round: int, purpose: str, members: tuple[int, ...], degree: int
) -> Graph:
    """The graph of a round; cached, because a simulation asks for it once per device."""
    return Graph(members, degree, graph_seed(federation, round, purpose, members))
