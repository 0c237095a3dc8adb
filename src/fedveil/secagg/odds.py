"""Pairs that contradict each other: who of them must lie.

Of two at odds one lies, and a server cannot tell which: an honest device is at odds with liars
only. So who contradicts more neighbours than may lie next to an honest device lies itself.
"""

from __future__ import annotations

from collections.abc import Mapping


def exposed(odds: Mapping[int, set[int]], liars: int) -> set[int]:
    """Who contradicts more than `liars` others, not counting those who do so even more.

    `odds`: by device, with whom it is at odds; a pair stands there twice.
    """
    left = {device: set(others) for device, others in odds.items()}
    found: set[int] = set()
    while left:
        worst = max(left, key=lambda device: len(left[device]))
        if len(left[worst]) <= liars:
            break
        found.add(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
    return found
