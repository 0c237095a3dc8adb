"""Linear regression on all records in every step: a client's second moments stand for its data.

With H = X'X / n (bias column included), m = X'y / n and s = mean(y^2), the mean loss at w is
(w'Hw - 2 m'w + s) / 2 and its gradient Hw - m: a step costs features^2, however many records. With
a constant rate, all local steps together are one affine map, worked out once for each client.

All of it is computed in arithmetic that keeps clients apart (`isolated_arithmetic`), and a client's
own size decides how it is trained. So protected runs and simulations share this code.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.data.federation import Federation, Task
from fedveil.privacy.elementwise import matrix_times, tree_sum
from fedveil.training.client.batches import step_counts
from fedveil.training.client.local_training import GradientClip, LocalTraining, Schedule
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.batched import noise_streams
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.isolated_arithmetic import aligned_stack, products
from fedveil.training.engines.local_sgd import local_updates
from fedveil.training.engines.records import model_rows
from fedveil.training.models.tensors import as_tensor

_NARROW = 64  # weights above which library products are faster than single operations
_TOGETHER = 2_000_000  # numbers in the moments of clients that train together
_GATHERED = 4_000_000  # numbers of the records that moments are computed from at once

Mask = npt.NDArray[np.bool_]


def moments_apply(job: Job) -> bool:
    """Return whether second moments can stand for the data: squared loss, no single examples."""
    rule = job.rule
    squared = job.federation.task is Task.REGRESSION and rule.loss is None
    return squared and not rule.per_example and rule.step is None and rule.batch_rate is None


class MomentClients:
    """Trains clients of a job whose model is one affine layer, from their moments."""

    def __init__(self, job: Job, layer: Affine) -> None:
        self.moments = Moments(job.federation, layer)
        self.unrolled: UnrolledSteps | None = None
        if UnrolledSteps.apply(job):
            self.unrolled = UnrolledSteps(job, self.moments)

    def costs(self, rule: LocalTraining, sizes: Cohort) -> npt.NDArray[np.int64]:
        """Return the multiplications that clients of these sizes take, `[clients]`."""
        square = self.moments.size**2
        once = np.where(self.moments.keeps(sizes), 0, sizes * square)
        costs: npt.NDArray[np.int64] = once + step_counts(sizes, rule) * square
        return costs

    def unrolls(self, sizes: Cohort) -> Mask:
        """Return for clients of these sizes whether all their steps are one map, `[clients]`."""
        if self.unrolled is None:
            return np.zeros(len(sizes), np.bool_)
        return self.unrolled.takes(sizes)

    def train_at_once(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train clients whose steps are one map, at these positions of the cohort."""
        if self.unrolled is None:
            raise ValueError("the steps of this job are not affine")
        most = max(1, _TOGETHER // self.moments.size**2)
        for begin in range(0, len(places), most):
            where, clients, sizes = places, task.clients, task.sizes  # the usual case: all at once
            if len(where) < len(clients) or len(where) > most:
                where = places[begin : begin + most]
                clients, sizes = clients[where], sizes[where]
            updates, losses = self.unrolled(task.weights, clients, sizes)
            yield task.block(where, updates, losses)

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort step by step."""
        most = max(1, _TOGETHER // self.moments.size**2)
        for begin in range(0, len(places), most):
            yield self._by_steps(task, places[begin : begin + most])

    def _by_steps(self, task: CohortTask, where: Cohort) -> Block:
        job, number, start = task.job, task.round_number, task.weights
        clients, sizes = task.clients[where], task.sizes[where]
        supply = MomentSupply(self.moments.of(clients, sizes), step_counts(sizes, job.rule))
        rates = job.rule.learning_rate.of_round(number, len(supply.active))
        streams = noise_streams(job, clients, number)
        kernel = MomentGradients(self.moments.narrow)
        updates, losses = local_updates(start, supply, job.rule, rates, kernel, streams)
        final = None
        if job.pipeline.sparsity:
            final = kernel(start + updates, supply.batch(0), None, 0.0)[0]
        return task.block(where, updates, losses, final)


class Moments:
    """Moments of clients, each computed from its own records when they are first needed.

    They are kept for clients whose moments take at most half the memory of their records.
    """

    def __init__(self, federation: Federation, layer: Affine) -> None:
        self._federation, self._layer = federation, layer
        self.size = size = layer.inputs + (layer.bias is not None)
        self.narrow = size < _NARROW
        self.record = federation.train.inputs[:1].nbytes
        # H, m and s in one matrix [[H, m], [m', s]]. Pages of clients that never come are never
        # touched. Narrow ones have the clients in the middle, as `matrix_times` reads them.
        clients = federation.clients
        wide = size + 1
        shape = (wide, clients, wide) if self.narrow else (clients, wide, wide)
        self._kept = torch.from_numpy(np.zeros(shape, np.float32))
        self._known = np.zeros(clients, dtype=np.bool_)

    def keeps(self, sizes: Cohort) -> Mask:
        """Return for clients of these sizes whether their moments are kept, `[clients]`."""
        keeps: Mask = 2 * 4 * (self.size + 1) ** 2 <= sizes * self.record
        return keeps

    def of(self, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor, Tensor]:
        """Return H `[size, clients, size]` (if not narrow `[clients, size, size]`), m
        `[clients, size]` and s `[clients]`."""
        axis, keeps = int(self.narrow), self.keeps(sizes)
        fresh = ~keeps | ~self._known[clients]
        found = self._kept.index_select(axis, torch.from_numpy(clients))
        if fresh.any():
            where = torch.from_numpy(np.flatnonzero(fresh))
            computed = self.compute(clients[fresh], sizes[fresh]).float()
            computed = computed.transpose(0, 1) if self.narrow else computed
            found.index_copy_(axis, where, computed.contiguous())
            kept = fresh & keeps
            held = found.index_select(axis, torch.from_numpy(np.flatnonzero(kept)))
            self._kept.index_copy_(axis, torch.from_numpy(clients[kept]), held)
            self._known[clients[kept]] = True
        size = self.size
        if self.narrow:
            return found[:size, :, :size], found[size, :, :size], found[size, :, size]
        return found[:, :size, :size], found[:, size, :size], found[:, size, size]

    def compute(self, clients: Cohort, sizes: Cohort) -> Tensor:
        """Return `[[H, m], [m', s]]` of each client in double precision, `[clients, ...]`."""
        federation, wide = self._federation, self.size + 1
        whole = aligned_stack(len(clients), wide, wide, dtype=torch.float64)
        for size in np.unique(sizes).tolist():
            alike = np.flatnonzero(sizes == size)
            most = max(1, _GATHERED // (max(1, size) * wide))
            for begin in range(0, len(alike), most):
                part = alike[begin : begin + most]
                rows = federation.offsets[clients[part]][:, None] + np.arange(size)
                inputs, targets = map(as_tensor, model_rows(federation, rows))
                columns = aligned_stack(len(part), size, wide, dtype=torch.float64)
                columns[:, :, :-1] = columns_of(self._layer, inputs.flatten(2))
                columns[:, :, -1] = targets
                shares = aligned_stack(len(part), wide, size, dtype=torch.float64)
                shares.copy_(columns.mT).div_(size)
                whole[torch.from_numpy(part)] = products(shares, columns)
        return whole


def columns_of(layer: Affine, inputs: Tensor) -> Tensor:
    """Return inputs `[..., features]` in double precision, with a column of ones for the bias, in
    the order of the flat weights."""
    columns, bias = inputs.double(), layer.bias
    if bias is None:
        return columns
    ones = columns.new_ones(*columns.shape[:-1], 1)
    parts = [columns, ones] if bias.start > layer.weight.start else [ones, columns]
    return torch.cat(parts, dim=-1)


Batch = tuple[Tensor, Tensor, Tensor]  # H, m and s of the clients


class MomentSupply:
    """The same moments in every step."""

    def __init__(self, moments: Batch, steps: Cohort) -> None:
        self._moments = moments
        self.steps = steps  # all alike: every step takes all records
        self.active = [len(steps)] * int(steps.max(initial=0))

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> Batch:
        return self._moments


class MomentGradients:
    """The kernel: gradients and plain descent from moments."""

    def __init__(self, narrow: bool) -> None:
        self._narrow, self._weights = narrow, torch.empty(0)

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        second, first, square = batch
        if self._narrow:
            gradient = matrix_times(second, weights).sub_(first)
        else:
            gradient = products(second, weights[:, :, None])[:, :, 0].sub_(first)
        # w'Hw - 2 m'w + s, as w'(gradient - m) + s
        loss = (weights * (gradient - first)).sum(dim=1).add_(square).mul_(0.5)
        return gradient, loss.clamp_(min=0)

    def begin(self, start: Tensor, clients: int) -> None:
        self._weights = start.expand(clients, -1).clone()

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        gradient, loss = self(self._weights, batch, None, 0.0)
        if keep != 1:
            self._weights *= keep
        self._weights.sub_(gradient.mul_(rate))
        return loss

    def finish(self) -> Tensor:
        return self._weights


class UnrolledSteps:
    """All local steps of a round as one affine map of the weights, for each client.

    A full-batch step with a fixed rate is affine in the weights, so all steps of a round are too:
    the update is Dw + d, and the mean loss over the steps w'Qw + q'w + r, with numbers that depend
    on the client's moments alone. They are worked out in double precision when a client first
    comes, and kept.
    """

    def __init__(self, job: Job, moments: Moments) -> None:
        self._moments, self._rule, self._isolated = moments, job.rule, job.isolated
        self._steps = job.rule.steps or job.rule.epochs or 0  # a step takes all records
        self._size, clients = moments.size, job.federation.clients
        size = moments.size
        # Pages of clients that never come are never touched.
        # Columns one after the other: a tall product by columns takes a third of the time.
        self._slopes = torch.from_numpy(np.zeros((size, clients, 2, size), np.float32))
        self._levels = torch.from_numpy(np.zeros((clients, 2, size), np.float32))
        self._constants = torch.from_numpy(np.zeros(clients, np.float32))
        self._known = np.zeros(clients, dtype=np.bool_)
        self._everybody = np.arange(clients).tobytes()
        self._all_known = False

    @staticmethod
    def apply(job: Job) -> bool:
        """Return whether steps are affine and alike in all rounds, and only updates are needed."""
        constant = job.rule.learning_rate.schedule is Schedule.CONSTANT
        return constant and job.rule.plain and job.pipeline.sparsity == 0

    def takes(self, sizes: Cohort) -> Mask:
        """Return for clients of these sizes whether the map takes at most half the memory of their
        records, `[clients]`."""
        width = 2 * self._size * (self._size + 1) + 1
        takes: Mask = 2 * 4 * width <= sizes * self._moments.record
        return takes

    def __call__(self, start: Tensor, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor]:
        """Return updates `[clients, size]` and mean losses `[clients]` of a round from `start`."""
        if not self._all_known:
            self._learn(clients, sizes)
        slopes, levels, constants = self._slopes, self._levels, self._constants
        if clients.tobytes() != self._everybody:  # the quickest way to tell
            where = torch.from_numpy(clients)
            slopes, levels = slopes.index_select(1, where), levels.index_select(0, where)
            constants = constants.index_select(0, where)
        if self._isolated:
            reached = tree_sum(slopes * start[:, None, None, None]).add_(levels)
        else:
            tall = slopes.view(len(start), -1).t()
            reached = torch.addmv(levels.view(-1), tall, start).view_as(levels)
        losses = torch.addmv(constants, reached[:, 1], start)
        return reached[:, 0], losses.clamp_(min=0)

    def _learn(self, clients: Cohort, sizes: Cohort) -> None:
        new = ~self._known[clients]
        fresh, held = clients[new], sizes[new]
        most = max(1, 1_000_000 // self._size**2)
        for begin in range(0, len(fresh), most):
            self._work_out(fresh[begin : begin + most], held[begin : begin + most])
        self._known[fresh] = True
        self._all_known = bool(self._known.all())

    def _work_out(self, clients: Cohort, sizes: Cohort) -> None:
        size = self._size
        # Rounded as the moments that are kept for single steps.
        moments = self._moments.compute(clients, sizes).float().double()
        curve, first, square = (
            moments[:, :size, :size],
            moments[:, :size, size:],
            moments[:, -1, -1],
        )
        rate, decay = self._rule.learning_rate.rate, self._rule.weight_decay
        one = torch.eye(size, dtype=torch.float64)
        step = one * (1 - rate * decay) - rate * curve
        power, shift = one.expand_as(curve), torch.zeros_like(first)  # weights: power w + shift
        quadratic, linear = torch.zeros_like(curve), torch.zeros_like(first)
        constant = torch.zeros_like(square)
        for _ in range(self._steps):
            image = products(curve, power)
            pull = products(curve, shift) - first
            quadratic += products(power.mT, image) / 2
            linear += products(power.mT, pull)
            constant += ((shift * (pull - first)).sum(dim=(1, 2)) + square) / 2
            power = products(step, power)
            shift = products(step, shift) + rate * first
        where = torch.from_numpy(clients)
        share = 1 / max(1, self._steps)
        slopes = torch.stack([power - one, quadratic * share], dim=1)
        self._slopes[:, where] = slopes.permute(3, 0, 1, 2).float()
        self._levels[where] = torch.cat([shift, linear * share], dim=2).mT.float()
        self._constants[where] = (constant * share).float()
