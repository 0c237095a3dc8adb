"""The engine for linear models under plain SGD: each client goes the way of the fewest operations.

A way follows from a client's own size, in protected runs and in simulations alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.contract import Cohort, CohortTask, Job, RoundRequest, task_of
from fedveil.training.engines.dual import DualClients, costs
from fedveil.training.engines.moments import MomentClients, moments_apply

# Trains the clients at some positions of a task's cohort and yields their updates.
Train = Callable[[CohortTask, Cohort], Iterator[Block]]


class AlgebraEngine:
    """Trains clients by their moments, through the dual, or as rows of weights.

    Args:
        job: A job of plain SGD whose model is one affine layer.
        layer: This layer.
        rows: Trains the clients that neither the moments nor the dual make faster.
    """

    name = "algebra"

    def __init__(self, job: Job, layer: Affine, rows: RowEngine) -> None:
        self.job, self._layer, self._rows = job, layer, rows
        self._dual = DualClients(job, layer, rows)
        self._moments = MomentClients(job, layer) if moments_apply(job) else None
        self._ways: dict[int, Train] = {}  # by the size of clients

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        sizes = task.sizes
        if not len(sizes):
            return
        alike = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
        if alike is not None and alike in self._ways:  # the common case, once and for all
            yield from self._ways[alike](task, np.arange(len(sizes)))
            return
        ways = self.divide(sizes)
        trains = (None if self._moments is None else self._moments.train, self._dual.train)
        for way, train in enumerate((*trains, self._rows.train)):
            places = np.flatnonzero(ways == way)
            if len(places) and train is not None:
                if alike is not None:
                    self._ways[alike] = train
                yield from train(task, places)

    def close(self) -> None:
        """Nothing to release."""

    def divide(self, sizes: Cohort) -> Cohort:
        """Return how each client is trained: 0 by moments, 1 through the dual, 2 as rows."""
        by_rows, by_dual = costs(self.job.rule, self._layer, sizes)
        ways = np.where(by_dual < by_rows, 1, 2)
        return ways if self._moments is None else np.where(self._moments.takes(sizes), 0, ways)
