"""Fully connected networks of isolated clients, side by side (see `isolated_gradients`).

Clients of one size walk in step, so that many small operations become few.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from fedveil.training.client.batches import draw_batches
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Stack
from fedveil.training.engines.batched import noise_streams
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.dual_clients import costs, dual_applies
from fedveil.training.engines.isolated_gradients import ApartGradients
from fedveil.training.engines.records import Records
from fedveil.training.engines.steps import local_updates

_TOGETHER = 4_000_000  # numbers that clients of one group hold at once


class LoneStack:
    """Trains isolated clients of a job whose model is this stack of layers."""

    def __init__(self, job: Job, stack: Stack) -> None:
        self._stack, self._size = stack, job.layout.size
        self._gradients = ApartGradients(stack, job.federation.task)

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Those whose first layer is not faster through the dual; by its own size each."""
        if job.rule.batch_rate is not None:  # pieces of a batch, one client after the other
            return np.zeros(len(sizes), np.bool_)
        if not dual_applies(job, self._stack):
            return np.ones(len(sizes), np.bool_)
        by_rows, by_dual = costs(job.rule, self._stack[0], sizes)
        return by_rows <= by_dual

    def train(self, task: CohortTask, places: Cohort) -> Generator[Block, None, Cohort]:
        """Train the clients at these positions of the cohort; nobody is left over."""
        values = math.prod(task.job.federation.input_shape)
        for size in np.unique(sizes := task.sizes[places]).tolist():
            alike = places[sizes == size]
            most = max(1, _TOGETHER // (8 * self._size + 3 * size * values))
            for begin in range(0, len(alike), most):
                yield self._group(task, alike[begin : begin + most])
        return places[:0]

    def _group(self, task: CohortTask, where: Cohort) -> Block:
        """Clients of one size: their batches have the same shapes."""
        job, weights, gradients = task.job, task.weights, self._gradients
        clients, held = task.clients[where], task.sizes[where]
        batches = draw_batches(clients, held, job.rule, task.round_number, job.randomness)
        records = Records(job.federation, clients, held, batches)
        rates = job.rule.learning_rate.of_round(task.round_number, records.most_steps)
        streams = noise_streams(job, clients, task.round_number)
        updates, losses = local_updates(weights, records, job.rule, rates, gradients, streams)
        final = None
        if job.pipeline.sparsity:
            final = gradients(updates + weights, records.everything(), None, 0.0)[0]
        return task.block(where, updates, losses, final)
