"""A case with a planted bug, for processes that are told what to run."""

from __future__ import annotations

from contextlib import ExitStack

from ..search import Found, examine
from .registry import PLANTED


def examine_with(work: tuple[int, tuple[int, ...], str | None]) -> Found:
    """A case by its number, with the bug of this name in the program if there is a name."""
    seed, values, plant = work
    with ExitStack() as stack:
        if plant is not None:
            stack.enter_context(PLANTED[plant]())
        return examine(seed, values)
