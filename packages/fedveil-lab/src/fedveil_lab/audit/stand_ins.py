"""A run some of whose clients train nothing: what they send is said by somebody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.run.run import Run
from fedveil.training.client.update_pipeline import (
    Block,
    TrainedClients,
    UpdatePipeline,
    shape_rows,
)
from fedveil.training.engines.contract import BlockSum, Cohort, RoundRequest

# What these clients would send in this round, before it is shaped so: updates `[clients,
# parameters]`, and gradients of the same shape if it takes any.
Send = Callable[[Cohort, int, UpdatePipeline], tuple[Tensor, Tensor | None]]


class StandIns:
    """Stands between a run and its engine, which trains the clients that `train` and no others.
    Without a `send` these are silent."""

    def __init__(self, run: Run, train: npt.NDArray[np.bool_], send: Send | None = None) -> None:
        self._engine, self._run, self._train, self._send = run.engine, run, train, send
        self.others: Tensor | None = None  # what the clients that train sent in the last round

    @property
    def name(self) -> str:
        return self._engine.name

    def close(self) -> None:
        self._engine.close()

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        """Yield the engine's updates of real clients, and what the others send."""
        cohort, shape = request.cohort, request.pipeline or self._run.plan.pipeline
        real = np.flatnonzero(self._train[cohort])
        others = np.flatnonzero(~self._train[cohort])
        sums = BlockSum(
            shape.granularity is not None, shape.width(self._run.plan.layout), len(real)
        )
        for block in self._engine.updates(request.part(real)):
            sums.add(block)
            yield block.at(real)
        self.others = sums.result().total
        if len(others):
            sent = self._sent(cohort[others], request, shape)
            yield replace(sent.at(others), rejected=0)

    def _sent(self, clients: Cohort, request: RoundRequest, shape: UpdatePipeline) -> Block:
        """Return the program's answer, or zeros."""
        plan, number = self._run.plan, request.round_number
        if self._send is None:
            kind = torch.float32 if shape.granularity is None else torch.int64
            none = torch.zeros(len(clients))
            rows = torch.zeros((len(clients), shape.width(plan.layout)), dtype=kind)
            return Block(np.arange(len(clients)), rows, none, none, none)
        updates, gradients = self._send(clients, number, shape)
        sizes = np.asarray(plan.federation.sizes)[clients]
        senders = TrainedClients(clients, sizes, request.weights, number, self._run.randomness)
        return shape_rows(updates, shape, plan.layout, senders, gradients)


def on_release(run: Run, see: Callable[[Tensor], Tensor]) -> None:
    """Pass every sum that leaves the noise through `see`, before the round works with it."""
    opened = run.aggregator.open

    def seen(*args: Any) -> Any:
        one: Any = opened(*args)
        release = one.release
        one.release = lambda: see(release())
        return one

    run.aggregator.open = seen  # type: ignore[method-assign, assignment]
