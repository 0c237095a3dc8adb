"""Pairs that say different things about their common keys: whom to leave out, and what.

One of the two lies, and nobody can tell which. A liar that is at odds with many is left out of the
round; otherwise only the mask between the two is.
"""

from __future__ import annotations


def resolve(between: dict[int, set[int]], droppable: int) -> tuple[set[int], set[int]]:
    """Who must go so that nobody leaves out more than `droppable` masks, and who of them is at odds
    with more devices than any of those are: only that one is suspect.

    `between`: by device, those it is at odds with; what remains in it leaves out masks.
    """
    gone: set[int] = set()
    suspects: set[int] = set()
    while True:
        count = {device: len(others) for device, others in between.items()}
        worst = max(count, key=lambda device: count[device], default=None)
        if worst is None or count[worst] <= droppable:
            return gone, suspects
        others = between.pop(worst)
        gone.add(worst)
        if all(count[other] < count[worst] for other in others):
            suspects.add(worst)
        for other in others:
            between[other].discard(worst)
