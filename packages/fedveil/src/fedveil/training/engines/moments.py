"""Linear regression on all records in every step: a client's second moments stand for its data.

With H = X'X / n (bias column included), m = X'y / n and s = mean(y^2), the mean loss at w is
(w'Hw - 2 m'w + s) / 2 and its gradient Hw - m: a step costs features^2, however many records.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedveil.data.federation import Federation
from fedveil.privacy.elementwise import matrix_times
from fedveil.training.client.local_training import GradientClip
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.batched import chunks_of, noise_streams
from fedveil.training.engines.contract import Cohort, CohortTask
from fedveil.training.engines.records import Batch, model_rows
from fedveil.training.engines.steps import local_updates
from fedveil.training.models.tensors import as_tensor


class Moments:
    """Moments of clients, each computed when first needed and kept if `keep`.

    One row holds H (rows of H one after the other, in the order of the flat weights), m and s.
    """

    def __init__(self, federation: Federation, layer: Affine, keep: bool) -> None:
        self._federation, self._layer = federation, layer
        self.size = size = layer.inputs + (layer.bias is not None)
        self.width = size * size + size + 1
        self._kept = self._known = None
        if keep:
            # Pages of clients that never come are never touched.
            self._kept = torch.from_numpy(np.zeros((federation.clients, self.width), np.float32))
            self._known = np.zeros(federation.clients, dtype=np.bool_)

    @property
    def kept(self) -> bool:
        return self._kept is not None

    @staticmethod
    def fit(federation: Federation, layer: Affine) -> bool:
        """Whether the moments of all clients take at most half the memory of their data."""
        size = layer.inputs + (layer.bias is not None)
        needed = 4 * federation.clients * (size * size + size + 1)
        return 2 * needed <= federation.train.inputs.nbytes

    def of(self, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor]:
        """H `[clients, size, size]`, and m with s `[clients, size + 1]`."""
        if self._kept is None or self._known is None:
            rows = torch.empty(len(clients), self.width)
            self._compute(rows, np.arange(len(clients)), clients, sizes)
        else:
            known = self._known[clients]
            if not known.all():
                missing = np.flatnonzero(~known)
                self._compute(self._kept, clients[missing], clients[missing], sizes[missing])
                self._known[clients[missing]] = True
            rows = self._kept
            if len(clients) != len(rows) or not np.array_equal(clients, np.arange(len(rows))):
                rows = rows.index_select(0, torch.from_numpy(clients))
        square = self.size * self.size
        return rows[:, :square].view(-1, self.size, self.size), rows[:, square:]

    def _compute(self, into: Tensor, places: Cohort, clients: Cohort, sizes: Cohort) -> None:
        federation, layer = self._federation, self._layer
        for chunk in chunks_of(sizes, layer.inputs, 10_000):
            held = sizes[chunk]
            ranks = np.arange(int(held.max()))
            rows = federation.offsets[clients[chunk]][:, None] + np.minimum(
                ranks, held[:, None] - 1
            )
            inputs, targets = map(as_tensor, model_rows(federation, rows))
            columns, targets = columns_of(layer, inputs.flatten(2)), targets.double()
            share = torch.from_numpy((ranks < held[:, None]) / held[:, None])
            weighted = columns * share[:, :, None]
            where = torch.from_numpy(places[chunk])
            square = self.size * self.size
            second = torch.bmm(weighted.transpose(1, 2), columns).flatten(1)
            first = torch.bmm(weighted.transpose(1, 2), targets[:, :, None])[:, :, 0]
            into[where, :square] = second.float()
            into[where, square:-1] = first.float()
            into[where, -1] = (targets.square() * share).sum(dim=1).float()


def columns_of(layer: Affine, inputs: Tensor) -> Tensor:
    """Inputs `[..., features]` in double precision, with a column of ones for the bias, in the
    order of the flat weights."""
    columns, bias = inputs.double(), layer.bias
    if bias is None:
        return columns
    ones = columns.new_ones(*columns.shape[:-1], 1)
    parts = [columns, ones] if bias.start > layer.weight.start else [ones, columns]
    return torch.cat(parts, dim=-1)


class MomentGradients:
    """Gradients and plain descent from moments, which come in the place of inputs and targets."""

    def __init__(self) -> None:
        self._weights = torch.empty(0)

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        inputs, targets, _ = batch
        first = targets[:, :-1]
        gradient = self._times(inputs, weights).sub_(first)
        # w'Hw - 2 m'w + s, as w'(gradient - m) + s
        loss = (weights * (gradient - first)).sum(dim=1).add_(targets[:, -1]).mul_(0.5)
        return gradient, loss.clamp_(min=0)

    def begin(self, start: Tensor, clients: int) -> None:
        self._weights = start.expand(clients, -1).clone()

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        weights = self._weights[: len(batch[1])]
        gradient, loss = self(weights, batch, None, 0.0)
        if keep != 1:
            weights *= keep
        weights.sub_(gradient.mul_(rate))
        return loss

    def finish(self) -> Tensor:
        return self._weights

    def _times(self, second: Tensor, weights: Tensor) -> Tensor:
        return torch.bmm(second, weights[:, :, None])[:, :, 0]


class LaneGradients(MomentGradients):
    """The same with H as `[size, clients, size]`, and no client's rounding depending on another."""

    def _times(self, second: Tensor, weights: Tensor) -> Tensor:
        return matrix_times(second, weights)


class MomentSupply:
    """The same moments in every step."""

    def __init__(self, moments: tuple[Tensor, Tensor], steps: Cohort) -> None:
        self._moments = moments
        self.steps = steps  # all alike: every step takes all records
        self.active = [len(steps)] * int(steps.max(initial=0))

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> Batch:
        return (*self._moments, None)


def train_by_moments(
    task: CohortTask,
    where: Cohort,
    start: Tensor,
    supply: MomentSupply,
    gradients: MomentGradients,
) -> Block:
    """Train the clients at these positions of the cohort from `start`, in its precision."""
    job, number = task.job, task.round_number
    rates = job.rule.learning_rate.of_round(number, len(supply.active))
    streams = noise_streams(job, task.clients[where], number)
    updates, losses = local_updates(start, supply, job.rule, rates, gradients, streams)
    final = None
    if job.pipeline.sparsity:
        final = gradients(start + updates, supply.batch(0), None, 0.0)[0].float()
    return task.block(where, updates.float(), losses.float(), final)
