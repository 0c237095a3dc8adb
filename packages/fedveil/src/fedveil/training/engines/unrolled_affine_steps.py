"""All local steps of a linear regression in one product.

A full-batch step with a fixed rate is affine in the weights, so a whole course of them is too: the
update is Dw + d, and the mean loss over the steps w'Qw + q'w + r, with numbers that depend on the
client's moments alone. They are worked out once, in double precision, and kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedveil.training.client.local_training import Schedule
from fedveil.training.engines.contract import Cohort, Job
from fedveil.training.engines.moments import Moments


class UnrolledAffineSteps:
    """D, Q, d, q and r of each client, computed from its moments when it first comes."""

    def __init__(self, job: Job, moments: Moments) -> None:
        self._moments, self._rule = moments, job.rule
        self._steps = job.rule.steps or job.rule.epochs or 0  # a step takes all records
        size, clients = moments.size, job.federation.clients
        # Pages of clients that never come are never touched.
        # Columns one after the other: a tall product by columns takes a third of the time.
        self._slopes = torch.from_numpy(np.zeros((size, clients, 2, size), np.float32))
        self._levels = torch.from_numpy(np.zeros((clients, 2, size), np.float32))
        self._constants = torch.from_numpy(np.zeros(clients, np.float32))
        self._known = np.zeros(clients, dtype=np.bool_)
        self._everybody = np.arange(clients).tobytes()
        self._all_known = False

    @staticmethod
    def fit(job: Job, moments: Moments) -> bool:
        """Whether steps are affine and alike in all rounds, nothing but the update is asked for,
        and all that is kept takes at most half of the data's memory."""
        constant = job.rule.learning_rate.schedule is Schedule.CONSTANT
        if not (moments.kept and constant and job.rule.plain and job.pipeline.sparsity == 0):
            return False
        width = moments.width + 2 * moments.size * (moments.size + 1) + 1
        return 2 * 4 * job.federation.clients * width <= job.federation.train.inputs.nbytes

    def __call__(self, start: Tensor, clients: Cohort, sizes: Cohort) -> tuple[Tensor, Tensor]:
        """Updates `[clients, size]` and mean losses `[clients]` of a course from `start`."""
        if not self._all_known:
            self._learn(clients, sizes)
        slopes, levels, constants = self._slopes, self._levels, self._constants
        if clients.tobytes() != self._everybody:  # the quickest way to tell
            where = torch.from_numpy(clients)
            slopes, levels = slopes.index_select(1, where), levels.index_select(0, where)
            constants = constants.index_select(0, where)
        tall = slopes.view(len(start), -1).t()
        reached = torch.addmv(levels.view(-1), tall, start).view_as(levels)
        losses = torch.addmv(constants, reached[:, 1], start)
        return reached[:, 0], losses.clamp_(min=0)

    def _learn(self, clients: Cohort, sizes: Cohort) -> None:
        new = ~self._known[clients]
        if new.any():
            fresh = clients[new]
            most = max(1, 1_000_000 // self._moments.width)
            for begin in range(0, len(fresh), most):
                part = fresh[begin : begin + most]
                self._work_out(part, sizes[new][begin : begin + most])
            self._known[fresh] = True
        self._all_known = bool(self._known.all())

    def _work_out(self, clients: Cohort, sizes: Cohort) -> None:
        second, rest = self._moments.of(clients, sizes)
        curve, first, square = second.double(), rest[:, :-1, None].double(), rest[:, -1].double()
        rate, decay = self._rule.learning_rate.rate, self._rule.weight_decay
        one = torch.eye(self._moments.size, dtype=torch.float64)
        step = one * (1 - rate * decay) - rate * curve
        power, shift = one.expand_as(curve), torch.zeros_like(first)  # weights: power w + shift
        quadratic, linear = torch.zeros_like(curve), torch.zeros_like(first)
        constant = torch.zeros_like(square)
        for _ in range(self._steps):
            image = torch.bmm(curve, power)
            pull = torch.bmm(curve, shift) - first
            quadratic += torch.bmm(power.mT, image) / 2
            linear += torch.bmm(power.mT, pull)
            constant += ((shift * (pull - first)).sum(dim=(1, 2)) + square) / 2
            power = torch.bmm(step, power)
            shift = torch.bmm(step, shift) + rate * first
        where = torch.from_numpy(clients)
        share = 1 / max(1, self._steps)
        slopes = torch.stack([power - one, quadratic * share], dim=1)
        self._slopes[:, where] = slopes.permute(3, 0, 1, 2).float()
        self._levels[where] = torch.cat([shift, linear * share], dim=2).mT.float()
        self._constants[where] = (constant * share).float()
