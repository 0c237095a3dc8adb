"""Progress of long computations, on stderr, where a person is looking at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_hidden: ContextVar[bool] = ContextVar("_hidden", default=False)


@contextmanager
def hidden(quiet: bool = True) -> Iterator[None]:
    """Show no progress inside this block if `quiet` is true, and restore the setting after it."""
    token = _hidden.set(quiet)
    try:
        yield
    finally:
        _hidden.reset(token)


def in_blocks(items: Sequence[T], size: int, what: str) -> Iterator[Sequence[T]]:
    """Yield blocks of at most `size` items, and show a bar on a terminal.

    The bar has neither counts nor times: how many rows there are, and how long they take, may be
    private. A computation of one block shows nothing.

    Args:
        items: Whatever is to be computed.
        size: Items in one block.
        what: Name of the items, for the person who waits.
    """
    blocks = [items[begin : begin + size] for begin in range(0, len(items), size)]
    if len(blocks) < 2 or _hidden.get() or not sys.stderr.isatty():
        yield from blocks
        return
    from rich import progress
    from rich.console import Console

    columns = progress.TextColumn("{task.description}"), progress.BarColumn()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=len(items))
        for block in blocks:
            yield block
            bar.advance(task, len(block))
