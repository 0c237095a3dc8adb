"""Isolated clients: each trains alone, in its own shape, whoever else is in the federation.

A client's contribution is a function of public settings, its own records in their order and its own
randomness, bit for bit. It is what an engine makes of a federation that holds this client alone
(`lone`), on one thread, with modules and buffers that nobody used before. Small linear models train
side by side in arithmetic that keeps them apart (`lone_moments`, `lone_dual`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.engine.contract import Cohort, Engine, Job, RoundSum, RunningSum, Take
from fedveil.engine.lone import lone_job
from fedveil.engine.threads import threads_at
from fedveil.local.records import client_sizes
from fedveil.local.shaping import Shaping

Make = Callable[[Job], Engine]  # an engine of its own for a job of one client


class Apart(Protocol):
    """Trains clients side by side such that none shows in another."""

    def takes(self, job: Job, sizes: Cohort) -> npt.NDArray[np.bool_]:
        """Which clients of these sizes go this way, each by its own."""
        ...

    def add_to(
        self,
        total: RunningSum,
        weights: Tensor,
        cohort: Cohort,
        sizes: Cohort,
        places: Cohort,
        round: int,
    ) -> Cohort:
        """Train the clients at these places of the cohort and add their updates to the sum; returns
        the places of those that cannot go this way, each by its own records."""
        ...


_ONLY = np.zeros(1, dtype=np.int64)


def contribution(job: Job, make: Make, weights: Tensor, client: int, round: int) -> RoundSum:
    """What one client contributes: `total` is its shaped update.

    `weights` lie in memory of torch's own, as everything else that a kernel reads.
    """
    return make(lone_job(job, client)).round_sum(weights, _ONLY, round)


class Alone:
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

    def round_sum(
        self,
        weights: Tensor,
        cohort: Cohort,
        round: int,
        shaping: Shaping | None = None,
        take: Take | None = None,
    ) -> RoundSum:
        job, start = self.job.shaped_by(shaping), weights.clone()
        total = RunningSum(job, len(cohort), take)
        with threads_at(1), torch.inference_mode(self._by_hand):
            for place in self._side_by_side(total, start, cohort, round):
                own = contribution(job, self._make, start, int(cohort[place]), round)
                total.add_one(place, own)
        return total.result()

    def _side_by_side(
        self, total: RunningSum, start: Tensor, cohort: Cohort, round: int
    ) -> list[int]:
        """Train the clients that can go side by side; returns the places of the others."""
        if self._apart is None:
            return list(range(len(cohort)))
        sizes = client_sizes(total.job.federation, cohort)
        together = self._apart.takes(total.job, sizes)
        alone, places = np.flatnonzero(~together), np.flatnonzero(together)
        if not len(places):
            return alone.tolist()
        left = self._apart.add_to(total, start, cohort, sizes, places, round)
        return np.concatenate([alone, left]).tolist()

    def close(self) -> None:
        """Nothing to release."""
