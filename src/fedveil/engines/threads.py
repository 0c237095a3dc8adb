"""How many threads torch uses while a round runs, and only then."""

from __future__ import annotations

import torch

from fedveil.engines.contract import Engine, RoundRequest, RoundSum


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


class Threaded:
    """An engine whose rounds run on a number of threads of their own."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self.engine, self.threads = engine, threads

    @property
    def name(self) -> str:
        return self.engine.name

    def round_sum(self, request: RoundRequest) -> RoundSum:
        with threads_at(self.threads):
            return self.engine.round_sum(request)

    def close(self) -> None:
        self.engine.close()
