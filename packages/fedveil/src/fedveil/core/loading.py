"""Names and modules that are imported when first used, without the garbage collector, which would
look through new modules again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


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


class Deferred:
    """A module that is imported when one of its names is first used.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def homes_of(package: str) -> dict[str, str]:
    """Public names and the modules they are from, by the typed list beside the file of a package:
    lines `from HOME import NAME as NAME`."""
    lines = Path(package).with_suffix(".pyi").read_text("utf-8").splitlines()
    words = [line.split() for line in lines if line.startswith("from ")]
    return {name: home for _, home, _, name, *_ in words}
