"""Imports without the garbage collector, which would look through new modules again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the block; what it makes counts as old afterwards."""
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            if not gc.get_freeze_count():  # somebody else's are none of ours
                gc.freeze()  # out of the young generations without looking at anything,
                gc.unfreeze()  # and into the oldest
            gc.enable()
