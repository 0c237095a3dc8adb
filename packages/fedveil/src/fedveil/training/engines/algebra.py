"""The engine for stacks of affine layers: each client goes the way of the fewest operations.

A way follows from a client's own size, in protected runs and in simulations alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedveil.training.engines.affine import Stack
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.contract import Cohort, GroupedEngine, Job, Train
from fedveil.training.engines.dual import DualClients, costs, dual_applies
from fedveil.training.engines.moments import MomentClients, moments_apply

Mask = npt.NDArray[np.bool_]


class AlgebraEngine(GroupedEngine):
    """Trains clients by their moments, through the dual, or as rows of weights.

    Moments stand for the data of linear models alone. Of a network, the first layer goes through
    the dual: where inputs are wide and clients have few examples, most weights are there, and a
    step through the dual neither reads nor writes them.

    Args:
        name: The engine's name: "algebra" for linear models, "mlp" for networks.
        job: A job whose model is a stack of affine layers.
        stack: These layers.
        rows: Trains the clients that neither the moments nor the dual make faster.
    """

    def __init__(self, name: str, job: Job, stack: Stack, rows: RowEngine) -> None:
        self.name, self.job, self._first, self._rows = name, job, stack[0], rows
        self.dual = DualClients(job, stack, rows) if dual_applies(job, stack) else None
        linear = name == "algebra" and moments_apply(job)
        self.moments = MomentClients(job, self._first) if linear else None
        self._ways: dict[int, Train] = {}  # by the size of clients

    def groups(self, sizes: Cohort) -> Iterator[tuple[Cohort, Train]]:
        if not len(sizes):
            return
        alike = int(sizes[0]) if bool((sizes == sizes[0]).all()) else None
        if alike is not None and alike in self._ways:  # the common case, once and for all
            yield np.arange(len(sizes)), self._ways[alike]
            return
        for group, train in self._divided(sizes):
            places = np.flatnonzero(group)
            if len(places):
                if alike is not None:
                    self._ways[alike] = train
                yield places, train

    def _divided(self, sizes: Cohort) -> Iterator[tuple[Mask, Train]]:
        by_moments, by_dual = self.divide(sizes)
        if self.moments is not None:
            at_once = by_moments & self.moments.unrolls(sizes)
            yield at_once, self.moments.train_at_once
            yield by_moments & ~at_once, self.moments.train
        if self.dual is not None:
            yield by_dual, self.dual.train
        yield ~(by_moments | by_dual), self._rows.train

    def divide(self, sizes: Cohort) -> tuple[Mask, Mask]:
        """Return which clients are cheapest by moments, and which through the dual."""
        rule = self.job.rule
        by_rows, by_dual = costs(rule, self._first, sizes)
        dual = (by_dual < by_rows) & (self.dual is not None)
        if self.moments is None:
            return np.zeros(len(sizes), dtype=np.bool_), dual
        moments = self.moments.costs(rule, sizes) < np.where(dual, by_dual, by_rows)
        if rule.batch_size is not None:
            moments &= sizes <= rule.batch_size
        return moments, dual & ~moments
