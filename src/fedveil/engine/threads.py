"""How many threads torch uses while a round runs, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedveil.engine.contract import Cohort, Engine, RoundSum, Take
from fedveil.local.shaping import Shaping


@contextmanager
def threads_at(count: int) -> Iterator[None]:
    """Compute with this many threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Threaded:
    """An engine whose rounds run on a number of threads of their own."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self.engine, self.threads = engine, threads

    @property
    def name(self) -> str:
        return self.engine.name

    def round_sum(
        self,
        weights: Tensor,
        cohort: Cohort,
        round: int,
        shaping: Shaping | None = None,
        take: Take | None = None,
    ) -> RoundSum:
        before = torch.get_num_threads()  # by hand: rounds may take a quarter of a millisecond
        torch.set_num_threads(self.threads)
        try:
            return self.engine.round_sum(weights, cohort, round, shaping, take)
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        self.engine.close()
