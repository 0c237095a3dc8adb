"""Fully connected networks: each client's first layer as weights, or through the dual."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedveil.training.engines.affine import Stack
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.contract import Cohort, GroupedEngine, Job, Train
from fedveil.training.engines.dual_clients import DualClients, costs


class MlpEngine(GroupedEngine):
    """Runs a job by plain SGD. `rows` trains the clients that the dual does not make faster.

    Where inputs are wide and clients have few examples, most of a network's weights are in its
    first layer, and a step through the dual neither reads nor writes them.
    """

    name = "mlp"

    def __init__(self, job: Job, stack: Stack, rows: RowEngine) -> None:
        self.job, self._stack, self._rows = job, stack, rows
        self._dual = DualClients(job, stack, rows)

    @property
    def device(self) -> torch.device:
        return self._rows.device

    def groups(self, sizes: Cohort) -> Iterator[tuple[Cohort, Train]]:
        by_rows, by_dual = costs(self.job.rule, self._stack[0], sizes)
        for group, add in (
            (by_dual < by_rows, self._dual.train),
            (by_dual >= by_rows, self._rows.train),
        ):
            places = np.flatnonzero(group)
            if len(places):
                yield places, add
