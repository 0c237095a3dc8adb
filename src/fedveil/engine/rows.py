"""Engines that keep their clients' weights as rows: gather, train, shape and sum, chunk by chunk.

They differ in how they compute gradients and in how many clients go into a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.data.columns import Array
from fedveil.data.federation import Federation
from fedveil.engine.contract import Cohort, Job, RoundSum
from fedveil.local.batches import draw_batches
from fedveil.local.shaping import shape_rows
from fedveil.local.steps import Chunk, Gradients, local_updates


@dataclass(frozen=True)
class RowEngine:
    """Runs a job with the given gradients, at most `chunk` clients at a time."""

    name: str
    job: Job
    gradients: Gradients
    chunk: int

    def round_sum(self, weights: Tensor, cohort: Cohort, round: int) -> RoundSum:
        shaping = self.job.shaping
        sizes = client_sizes(self.job.federation, cohort)
        # Equal sizes side by side waste no padding; falling step counts keep active rows in front.
        order = np.argsort(-sizes, kind="stable")
        integer = shaping.granularity is not None
        total = torch.zeros(len(weights), dtype=torch.int64 if integer else torch.float64)
        norms, shaped_norms, losses = (torch.zeros(len(cohort)) for _ in range(3))
        rejected = 0
        for begin in range(0, len(cohort), self.chunk):
            where = order[begin : begin + self.chunk]
            chunk = self._gather(cohort[where], sizes[where], round)
            updates, batch_losses = self._train(weights, cohort[where], chunk, round)
            gradient = self._final_gradient(weights, updates, chunk) if shaping.sparsity else None
            shaped = shape_rows(updates, shaping, self.job.layout, sizes[where], gradient)
            total += shaped.rows.sum(dim=0)
            norms[where], shaped_norms[where] = shaped.norms, shaped.shaped_norms
            losses[where] = batch_losses
            rejected += shaped.rejected
        return RoundSum(total, norms, shaped_norms, losses, rejected)

    def _gather(self, clients: Cohort, sizes: Cohort, round: int) -> Chunk:
        job = self.job
        batches = draw_batches(clients, sizes, job.rule, round, job.randomness)
        inputs, targets = gather(job.federation, clients, sizes)
        return Chunk(inputs, targets, torch.from_numpy(sizes), batches)

    def _train(
        self, weights: Tensor, clients: Cohort, chunk: Chunk, round: int
    ) -> tuple[Tensor, Tensor]:
        job = self.job
        rates = job.rule.learning_rate.of_round(round, chunk.batches.most_steps)
        noisy = job.rule.gradient_noise > 0
        streams = [
            job.randomness.stream("gradient-noise", round, int(client))
            for client in (clients if noisy else ())
        ]
        return local_updates(weights, chunk, job.rule, rates, self.gradients, streams)

    def _final_gradient(self, weights: Tensor, updates: Tensor, chunk: Chunk) -> Tensor:
        inputs, targets, mask = chunk.everything()
        return self.gradients(weights + updates, inputs, targets, mask, None, 0.0)[0]

    def close(self) -> None:
        """Nothing to release."""


def client_sizes(federation: Federation, cohort: Cohort) -> Cohort:
    """Examples of each client of a cohort, without touching the rest of the population."""
    return federation.offsets[cohort + 1] - federation.offsets[cohort]


def gather(federation: Federation, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor]:
    """Inputs `[clients, most, ...]` and targets of clients, padded with each one's first row."""
    train, starts = federation.train, federation.offsets[clients]
    if len(clients) == 1:
        rows: slice | Cohort = slice(int(starts[0]), int(starts[0] + sizes[0]))
        inputs, targets = train.inputs[rows][None], train.targets[rows][None]
    else:
        places = np.arange(int(sizes.max()))
        rows = starts[:, None] + np.where(places < sizes[:, None], places, 0)
        inputs, targets = train.inputs[rows], train.targets[rows]
    return as_tensor(federation.model_inputs(inputs)), as_tensor(targets)


def as_tensor(array: Array) -> Tensor:
    """A tensor over the array's memory; training never writes to it, so a read-only map will do."""
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.ascontiguousarray(array))
