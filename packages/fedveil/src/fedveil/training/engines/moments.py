"""Linear regression on all records in every step: all steps of a round as one affine map.

With H = X'X / n (bias column included), m = X'y / n and s = mean(y^2), the mean loss at w is
(w'Hw - 2 m'w + s) / 2 and its gradient Hw - m. A step with a fixed rate is affine in the weights,
so all steps of a round are too: the update is Dw + d, and the mean loss over the steps
w'Qw + q'w + r, with numbers that depend on the client's moments alone. They are worked out in
double precision when a client first comes, and kept: for clients where that takes at most half the
memory of their records.

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
from fedveil.privacy.elementwise import tree_sum
from fedveil.training.client.local_training import Schedule
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.isolated_arithmetic import aligned_stack, products
from fedveil.training.engines.records import model_rows
from fedveil.training.models.tensors import as_tensor

_TOGETHER = 2_000_000  # numbers in the maps of clients that train together
_GATHERED = 4_000_000  # numbers of the records that moments are computed from at once


def moments_apply(job: Job) -> bool:
    """Return whether steps are affine and alike in all rounds, and only updates are needed."""
    rule = job.rule
    squared = job.federation.task is Task.REGRESSION and rule.loss is None
    constant = rule.learning_rate.schedule is Schedule.CONSTANT and rule.batch_rate is None
    return squared and constant and rule.plain and job.pipeline.sparsity == 0


class MomentClients:
    """Trains clients of a job whose model is one affine layer, by their maps."""

    def __init__(self, job: Job, layer: Affine) -> None:
        self._job, self._layer = job, layer
        self._steps = job.rule.steps or job.rule.epochs or 0  # a step takes all records
        size, clients = layer.inputs + (layer.bias is not None), job.federation.clients
        self._size = size
        # Pages of clients that never come are never touched.
        # Columns one after the other: a tall product by columns takes a third of the time.
        self._slopes = torch.from_numpy(np.zeros((size, clients, 2, size), np.float32))
        self._levels = torch.from_numpy(np.zeros((clients, 2, size), np.float32))
        self._constants = torch.from_numpy(np.zeros(clients, np.float32))
        self._known = np.zeros(clients, dtype=np.bool_)
        self._everybody = np.arange(clients).tobytes()
        self._all_known = False

    def takes(self, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Return for clients of these sizes whether they train by their maps, `[clients]`."""
        rule, numbers = self._job.rule, 2 * self._size * (self._size + 1) + 1
        record = self._job.federation.train.inputs[:1].nbytes
        takes: npt.NDArray[np.bool_] = 2 * 4 * numbers <= sizes * record
        return takes if rule.batch_size is None else takes & (sizes <= rule.batch_size)

    def train(self, task: CohortTask, places: Cohort) -> Iterator[Block]:
        """Train the clients at these positions of the cohort."""
        most = max(1, _TOGETHER // self._size**2)
        for begin in range(0, len(places), most):
            where, clients, sizes = places, task.clients, task.sizes  # the usual case: all at once
            if len(where) < len(clients) or len(where) > most:
                where = places[begin : begin + most]
                clients, sizes = clients[where], sizes[where]
            yield task.block(where, *self._round(task.weights, clients, sizes))

    def _round(self, start: Tensor, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor]:
        """Return updates `[clients, size]` and mean losses `[clients]` of a round from `start`."""
        if not self._all_known:
            self._learn(clients, sizes)
        slopes, levels, constants = self._slopes, self._levels, self._constants
        if clients.tobytes() != self._everybody:  # the quickest way to tell
            where = torch.from_numpy(clients)
            slopes, levels = slopes.index_select(1, where), levels.index_select(0, where)
            constants = constants.index_select(0, where)
        if self._job.isolated:
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
        size, rule = self._size, self._job.rule
        # Rounded to single precision, as the records are.
        moments = moments_of(self._job.federation, self._layer, clients, sizes).float().double()
        curve, first = moments[:, :size, :size], moments[:, :size, size:]
        square = moments[:, -1, -1]
        rate, decay = rule.learning_rate.rate, rule.weight_decay
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


def moments_of(federation: Federation, layer: Affine, clients: Cohort, sizes: Cohort) -> Tensor:
    """Return `[[H, m], [m', s]]` of each client's records in double precision, `[clients, ...]`.

    The columns of H are in the order of the flat weights.
    """
    wide = layer.inputs + (layer.bias is not None) + 1
    whole = aligned_stack(len(clients), wide, wide, dtype=torch.float64)
    for size in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == size)
        most = max(1, _GATHERED // (max(1, size) * wide))
        for begin in range(0, len(alike), most):
            part = alike[begin : begin + most]
            rows = federation.offsets[clients[part]][:, None] + np.arange(size)
            inputs, targets = map(as_tensor, model_rows(federation, rows))
            columns = aligned_stack(len(part), size, wide, dtype=torch.float64)
            weight = columns[:, :, :-1]
            if layer.bias is not None:
                columns[:, :, layer.bias.start] = 1
                first = int(layer.weight.start > layer.bias.start)
                weight = columns[:, :, first : first + layer.inputs]
            weight.copy_(inputs.flatten(2))
            columns[:, :, -1] = targets
            shares = aligned_stack(len(part), wide, size, dtype=torch.float64)
            shares.copy_(columns.mT).div_(size)
            whole[torch.from_numpy(part)] = products(shares, columns)
    return whole
