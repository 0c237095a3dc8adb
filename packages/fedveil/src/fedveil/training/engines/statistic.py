"""Clients that send a statistic of their records instead of an update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import Job, RoundRequest, task_of


class StatisticEngine:
    """Computes `UpdatePipeline.statistic` for each client of a cohort.

    Clients are isolated by arithmetic: a client's vector is a sum of whole numbers that follow from
    its own records, one by one, and such sums do not depend on their order.
    """

    name = "statistic"

    def __init__(self, job: Job) -> None:
        self.job = job

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        federation, statistic = task.job.federation, task.job.pipeline.statistic
        if statistic is None:
            raise ValueError("this job has no statistic")
        train, none = federation.train, torch.zeros(1)
        for place, client in enumerate(task.clients):
            own = np.arange(federation.offsets[client], federation.offsets[client + 1])
            if train.usable is not None:
                own = own[train.usable[own]]
            inputs = federation.model_inputs(train.inputs[own])
            whole = torch.from_numpy(statistic(inputs, train.targets[own]))
            if task.job.pipeline.granularity is None:
                whole = whole.double() * statistic.granularity
            yield Block(np.array([place]), whole[None], none, none, none)

    def close(self) -> None:
        """Nothing to release."""
