"""How many threads torch uses while a round runs, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch

from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import Engine, RoundRequest


class threads_at:  # noqa: N801
    """Compute with this many threads inside the block. Short: rounds may take a quarter of a
    millisecond."""

    def __init__(self, count: int) -> None:
        self._count, self._before = count, count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != self._count:
            torch.set_num_threads(self._count)

    def __exit__(self, *error: object) -> None:
        if self._before != self._count:
            torch.set_num_threads(self._before)


def computed_in(
    setting: Callable[[], AbstractContextManager[object]], blocks: Iterator[Block]
) -> Iterator[Block]:
    """Yield blocks, each computed inside a setting that whoever takes the block does not see."""
    while True:
        with setting():
            block = next(blocks, None)
        if block is None:
            return
        yield block


class Threaded:
    """An engine whose rounds run on a number of threads of their own."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self.engine, self.threads = engine, threads

    @property
    def name(self) -> str:
        return self.engine.name

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        return computed_in(lambda: threads_at(self.threads), self.engine.updates(request))

    def close(self) -> None:
        self.engine.close()
