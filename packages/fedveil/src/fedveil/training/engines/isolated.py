"""Isolated clients: each trains alone, in its own shape, whoever else is in the federation.

A client's contribution is a function of public settings, its own records in their order and its own
randomness, bit for bit. It is what an engine makes of a federation that holds this client alone
(`lone`), on one thread, with modules and buffers that nobody used before. Small linear models
and fully connected networks train side by side in arithmetic that keeps them apart
(`isolated_moments`, `isolated_dual`, `isolated_mlp`).

A client at whose records the module or the loss raises takes no step there (`gradients`); if
anything else raises, it contributes zero. No round ends by what somebody's records are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.containment import contained, silence
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import (
    Cohort,
    CohortTask,
    Engine,
    Job,
    RoundRequest,
    summed,
    task_of,
)
from fedveil.training.engines.one_client import lone_job
from fedveil.training.engines.threads import computed_in, threads_at
from fedveil.training.models.structure import drawing_from

Make = Callable[[Job], Engine]  # an engine of its own for a job of one client


class Apart(Protocol):
    """Trains clients side by side such that none shows in another."""

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Which clients of these sizes go this way, each by its own."""
        ...

    def train(self, task: CohortTask, places: Cohort) -> Generator[Block, None, Cohort]:
        """Train the clients at these positions of the cohort; returns the positions of those that
        cannot go this way, each by its own records."""
        ...


_ONLY = np.zeros(1, dtype=np.int64)


def contribution(job: Job, make: Make, weights: Tensor, client: int, round_number: int) -> Block:
    """Return what one client contributes, as a block of its own.

    `weights` lie in memory of torch's own, as everything else that a kernel reads.
    """
    own = lone_job(job, client)
    return summed(make(own), own, RoundRequest(weights, _ONLY, round_number))


def drawn_apart(
    job: Job, make: Make, weights: Tensor, client: int, round_number: int, device: torch.device
) -> Block:
    """The same for a module that may draw: whatever it draws, and whenever (in a step, in its last
    gradient, in a vote), comes from a generator that no other client has touched."""
    word = job.randomness.stream("module draws", round_number, client).words(1)[0]
    with drawing_from(int(word >> np.uint64(1)), device):
        return contribution(job, make, weights, client, round_number)


def _nothing(job: Job) -> Block:
    """Return the contribution of a client that contributes nothing."""
    kind = torch.float64 if job.pipeline.granularity is None else torch.int64
    none, update = torch.zeros(1), torch.zeros(job.pipeline.width(job.layout), dtype=kind)
    return Block(_ONLY, update, none, none, none, 1)


class Isolated:
    """An engine that trains isolated clients one after the other, or apart from each other."""

    def __init__(
        self,
        job: Job,
        name: str,
        make: Make,
        device: torch.device,
        apart: Apart | None = None,
    ) -> None:
        self.job, self.name, self.device = job, name, device
        self._make, self._apart = make, apart
        # No autograd in these engines: a step is many small operations, which are quicker without.
        self._by_hand = name in ("mlp", "algebra")

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        return computed_in(self._setting, self._updates(request))

    @contextmanager
    def _setting(self) -> Iterator[None]:
        with silence(), threads_at(1), torch.inference_mode(self._by_hand):
            yield

    def _updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, replace(request, weights=request.weights.clone()))
        for place in (yield from self._side_by_side(task)):
            client, number = int(task.clients[place]), task.round_number
            own = self._contained(task.job, task.weights, client, number)
            yield replace(own, places=np.array([place]), updates=own.total[None])

    def _contained(self, job: Job, start: Tensor, client: int, number: int) -> Block:
        """What a client contributes: zero if it cannot be computed.

        Not where noise belongs into the client's own steps, for a zero would have none of it. What
        raises there is no part of somebody else's: gradients are contained by themselves.
        """
        own = None
        with nullcontext() if job.rule.gradient_noise else contained():
            if self._by_hand:
                own = contribution(job, self._make, start, client, number)
            else:
                own = drawn_apart(job, self._make, start, client, number, self.device)
        return _nothing(job) if own is None else own

    def _side_by_side(self, task: CohortTask) -> Generator[Block, None, list[int]]:
        """Train the clients that can go side by side; returns the positions of the others."""
        everybody = list(range(len(task.clients)))
        if self._apart is None:
            return everybody
        together = self._apart.takes(task.job, task.sizes)
        alone, places = np.flatnonzero(~together), np.flatnonzero(together)
        if not len(places):
            return everybody
        left = yield from self._apart.train(task, places)
        others: list[int] = np.concatenate([alone, left]).tolist()
        return others

    def close(self) -> None:
        """Nothing to release."""
