"""Fully connected networks of isolated clients, side by side (see `isolated_gradients`).

Clients of one size walk in step, so that many small operations become few.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedveil.client.batches import draw_batches
from fedveil.engines.affine import Stack
from fedveil.engines.batched import noise_streams
from fedveil.engines.contract import Cohort, Job, RunningSum
from fedveil.engines.dual_clients import costs, dual_applies
from fedveil.engines.isolated_gradients import ApartGradients
from fedveil.engines.records import Records
from fedveil.engines.steps import local_updates

_TOGETHER = 4_000_000  # numbers that clients of one group hold at once


class LoneStack:
    """Trains isolated clients of a job whose model is this stack of layers."""

    def __init__(self, job: Job, stack: Stack) -> None:
        self._stack, self._size = stack, job.layout.size
        self._gradients = ApartGradients(stack, job.federation.task)

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Those whose first layer is not faster through the dual; by its own size each."""
        if not dual_applies(job, self._stack):
            return np.ones(len(sizes), np.bool_)
        by_rows, by_dual = costs(job.rule, self._stack[0], sizes)
        return by_rows <= by_dual

    def add_to(self, total: RunningSum, places: Cohort) -> Cohort:
        """Train the clients at these places of the cohort and add their updates to the sum; nobody
        is left over."""
        values = math.prod(total.job.federation.input_shape)
        for size in np.unique(sizes := total.sizes[places]).tolist():
            alike = places[sizes == size]
            most = max(1, _TOGETHER // (8 * self._size + 3 * size * values))
            for begin in range(0, len(alike), most):
                self._add_group(total, alike[begin : begin + most])
        return places[:0]

    def _add_group(self, total: RunningSum, where: Cohort) -> None:
        """Clients of one size: their batches have the same shapes."""
        job, weights, gradients = total.job, total.weights, self._gradients
        clients, held = total.cohort[where], total.sizes[where]
        batches = draw_batches(clients, held, job.rule, total.round_number, job.randomness)
        records = Records(job.federation, clients, held, batches)
        rates = job.rule.learning_rate.of_round(total.round_number, records.most_steps)
        streams = noise_streams(job, clients, total.round_number)
        updates, losses = local_updates(weights, records, job.rule, rates, gradients, streams)
        final = None
        if job.pipeline.sparsity:
            final = gradients(updates + weights, records.everything(), None, 0.0)[0]
        total.add_updates(where, updates, losses, final)
