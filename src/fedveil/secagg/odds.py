"""Pairs that say different things about their common keys: whom to leave out, and what.

One of the two lies, and nobody can tell which. A liar that is at odds with many is left out of the
round; otherwise only the mask between the two is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fedveil.secagg.layout import piece
from fedveil.secagg.pairs import CHECK_BYTES


class Odds:
    """Compares the checks of both ends of each pair as they come."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], bytes] = {}  # of pairs with one check so far
        self._between: dict[int, set[int]] = defaultdict(set)

    def note(self, device: int, neighbours: Sequence[int], checks: bytes) -> None:
        """Take what a device says about its pairs."""
        for place, other in enumerate(neighbours):
            pair = (device, other) if device < other else (other, device)
            own = piece(checks, CHECK_BYTES, place)
            if self._first.setdefault(pair, own) != own:
                self._between[device].add(other)
                self._between[other].add(device)

    def resolve(self, droppable: int) -> tuple[set[int], set[int]]:
        """Who must go so that nobody leaves out more than `droppable` masks, and who of them is at
        odds with more devices than any of those are: only that one is suspect."""
        self._first.clear()
        gone: set[int] = set()
        suspects: set[int] = set()
        while True:
            count = {device: len(others) for device, others in self._between.items()}
            worst = max(count, key=lambda device: count[device], default=None)
            if worst is None or count[worst] <= droppable:
                return gone, suspects
            others = self._between.pop(worst)
            gone.add(worst)
            if all(count[other] < count[worst] for other in others):
                suspects.add(worst)
            for other in others:
                self._between[other].discard(worst)

    def left_out(self) -> dict[int, frozenset[int]]:
        """By device, the neighbours it does not mask with."""
        return {device: frozenset(o) for device, o in self._between.items() if o}
