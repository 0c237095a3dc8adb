"""Linear regressions of isolated clients: moments of each alone, then steps side by side.

A client's moments are computed from its own records in its own shape, in double precision, and
kept: the same bits whenever that happens. The steps then go through `privacy.lanes`, where no
client's numbers depend on those beside them, so that thousands take a step together.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.training.client.batches import step_counts
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.algebra import moments_apply
from fedveil.training.engines.contract import Cohort, CohortTask, Job
from fedveil.training.engines.moments import (
    LaneGradients,
    MomentSupply,
    columns_of,
    train_by_moments,
)
from fedveil.training.engines.one_client import lone_rows
from fedveil.training.models.tensors import as_tensor

NARROW = 64  # weights above which products alone are faster; `rotation.SHORT` is no less
_TOGETHER = 1_000_000  # numbers in the moments of clients that train together: 8 MB


def lone_moments_apply(job: Job, layer: Affine) -> bool:
    """Whether moments stand for a client's data and steps go element by element."""
    return moments_apply(job) and layer.inputs < NARROW


class LoneMoments:
    """Trains isolated clients of a job whose model is this narrow layer, with the squared loss."""

    def __init__(self, job: Job, layer: Affine) -> None:
        self._layer = layer
        self._size = size = layer.inputs + (layer.bias is not None)
        self._kept: tuple[Tensor, Tensor] | None = None
        clients = job.federation.clients
        needed = 8 * clients * (size * size + size + 1)
        self._known = np.zeros(clients, dtype=np.bool_)
        if 2 * needed <= job.federation.train.inputs.nbytes:  # how fast, not what comes out
            self._kept = _empty(size, clients)
        self._everybody = np.arange(clients)

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Which clients of these sizes use all their records in every step."""
        batch = job.rule.batch_size
        return np.ones(len(sizes), np.bool_) if batch is None else sizes <= batch

    def train(self, task: CohortTask, places: Cohort) -> Generator[Block, None, Cohort]:
        """Train the clients at these positions of the cohort; nobody is left over."""
        job, rule, start = task.job, task.job.rule, task.weights.double()
        most = max(1, _TOGETHER // (self._size * self._size))
        for begin in range(0, len(places), most):
            where = places[begin : begin + most]
            clients, held = task.clients[where], task.sizes[where]
            supply = MomentSupply(self._moments(job, clients), step_counts(held, rule))
            yield train_by_moments(task, where, start, supply, LaneGradients())
        return places[:0]

    def _moments(self, job: Job, clients: Cohort) -> tuple[Tensor, Tensor]:
        """H as `[size, clients, size]`, and m with s, `[clients, size + 1]`."""
        if self._kept is None:
            second, rest = _empty(self._size, len(clients))
            for place, client in enumerate(clients.tolist()):
                second[:, place], rest[place] = self._of(job, client)
            return second, rest
        for client in clients[~self._known[clients]].tolist():
            self._kept[0][:, client], self._kept[1][client] = self._of(job, client)
            self._known[client] = True
        if np.array_equal(clients, self._everybody):
            return self._kept
        where = torch.from_numpy(clients)
        return self._kept[0].index_select(1, where), self._kept[1].index_select(0, where)

    def _of(self, job: Job, client: int) -> tuple[Tensor, Tensor]:
        """One client's moments, from its own records alone."""
        inputs, targets = map(as_tensor, lone_rows(job.federation, client))
        columns, targets = columns_of(self._layer, inputs.flatten(1)), targets.double()
        weighted = (columns / len(targets)).t()
        rest = torch.cat([torch.mv(weighted, targets), targets.square().mean()[None]])
        return torch.mm(weighted, columns), rest


def _empty(size: int, clients: int) -> tuple[Tensor, Tensor]:
    """Pages of clients that never come are never touched."""
    shapes = (size, clients, size), (clients, size + 1)
    second, rest = (torch.from_numpy(np.empty(shape)) for shape in shapes)
    return second, rest
