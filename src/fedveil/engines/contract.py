"""What every engine does: a cohort's shaped updates, summed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.client.batches import client_sizes
from fedveil.client.local_training import LocalTraining
from fedveil.client.update_pipeline import Senders, ShapedRows, UpdatePipeline, shape_rows
from fedveil.core.arguments import settle
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.data.unusable import without_unusable
from fedveil.models.check import with_readable
from fedveil.models.flat import Layout

Cohort = npt.NDArray[np.int64]

# Places in the cohort, and what the clients there send: `[clients, width]`.
Take = Callable[[Cohort, Tensor], None]


@dataclass(frozen=True)
class Job:
    """Everything an engine needs to know besides the weights, the cohort and the round.

    `isolated`, as protected runs are: what a client contributes depends on public settings, its own
    records and its own randomness alone, bit for bit (`engine.alone`), and one record moves a mean
    of clipped gradients by what is accounted for it, whatever the values. Simulations go without:
    clients that train together are faster, and share rounding errors.
    """

    federation: Federation
    module: nn.Module
    layout: Layout
    rule: LocalTraining
    pipeline: UpdatePipeline
    randomness: Randomness
    isolated: bool = False

    def __post_init__(self) -> None:
        """Drop unusable examples inside their clients. Where gradients of single examples are
        clipped they stay in their places, for their number and places are accounted for."""
        federation = self.federation
        readable = with_readable(self.module, federation, federation.train)
        if readable is not federation.train:
            federation = replace(federation, train=readable, verified=True)
        if not self.rule.per_example:
            federation = without_unusable(federation)
        settle(self, federation=federation)

    def shaped_by(self, pipeline: UpdatePipeline | None) -> Job:
        """The same job with another shaping; None keeps its own."""
        if pipeline is None or pipeline is self.pipeline:
            return self
        return replace(self, pipeline=pipeline)


@dataclass(frozen=True)
class RoundRequest:
    """One round's work: train the clients of `cohort` (distinct ids) from `weights` `[parameters]`,
    float32.

    `pipeline` stands in for the job's in this round: the same but for another clip and grid, where
    these change from round to round. `take` is shown every client's own shaped update, a few at a
    time, where their sum is not enough (on a grid, that is: see `RunningSum`).
    """

    weights: Tensor
    cohort: Cohort
    round_number: int
    pipeline: UpdatePipeline | None = None
    take: Take | None = None

    def part(self, places: Cohort) -> RoundRequest:
        """The same for the clients at these places of the cohort."""
        take = self.take
        own = None if take is None else lambda where, rows: take(places[where], rows)
        return replace(self, cohort=self.cohort[places], take=own)


@dataclass(frozen=True)
class RoundSum:
    """What an engine gives back, on the CPU. Statistics follow the order of the cohort, `[cohort]`.

    They describe single clients without noise: a protected run must not show or keep them.
    """

    total: Tensor  # [the shaping's width]; float64, or int64 in units of the grid
    norms: Tensor  # norm of each update before clipping, in the clip's order (else L2)
    shaped_norms: Tensor  # the same after shaping
    losses: Tensor  # mean batch loss over the client's local steps, each before its step
    rejected: int  # clients whose update was not finite and counted as zero


class Engine(Protocol):
    """Computes rounds. Implementations differ in speed only: one test suite holds them together."""

    @property
    def name(self) -> str: ...

    def round_sum(self, request: RoundRequest) -> RoundSum:
        """The sum of the cohort's shaped updates. An empty cohort gives zero."""
        ...

    def close(self) -> None:
        """Release worker processes and memory. Safe to call twice."""
        ...


class RunningSum:
    """A round's sum while its chunks come in.

    `take` sees the rows of each chunk. Engines form them all on a grid; without one they may
    know nothing but their sum.
    """

    def __init__(self, job: Job, request: RoundRequest) -> None:
        self.job = job = job.shaped_by(request.pipeline)
        integer = job.pipeline.granularity is not None
        width = job.pipeline.width(job.layout)
        if request.take is not None and not integer:
            raise ValueError("single updates are formed on a grid only")
        self.weights, self.cohort = request.weights, request.cohort
        self.sizes = client_sizes(job.federation, request.cohort)
        self.round_number, self._take = request.round_number, request.take
        self._total = torch.zeros(width, dtype=torch.int64 if integer else torch.float64)
        self._rejected = 0
        self._places: list[Cohort] = []
        # Norms, norms after shaping and losses of each chunk.
        self._statistics: list[tuple[Tensor, Tensor, Tensor]] = []

    def senders(self, where: Cohort) -> Senders:
        """The clients at these places of the cohort."""
        clients, sizes, randomness = self.cohort[where], self.sizes[where], self.job.randomness
        return Senders(clients, sizes, self.weights, self.round_number, randomness)

    def add_updates(
        self, where: Cohort, updates: Tensor, losses: Tensor, gradient: Tensor | None = None
    ) -> None:
        """Shape and add the updates `[clients, parameters]` of the clients at the places `where`.

        The updates may be overwritten; `gradient` is as in `shape_rows`.
        """
        pipeline, together = self.job.pipeline, not self.job.isolated and len(where) > 1
        if together and pipeline.only_clips and self._add_scaled(where, updates, losses):
            return
        shaped = shape_rows(updates, pipeline, self.job.layout, self.senders(where), gradient)
        self._add_rows(where, shaped, losses)

    def _add_scaled(self, where: Cohort, updates: Tensor, losses: Tensor) -> bool:
        """Updates times one number each, summed in one product; False if any is not finite."""
        clip = self.job.pipeline.clip
        norms = torch.linalg.vector_norm(updates, ord=2 if clip is None else clip.order, dim=1)
        if not math.isfinite(float(norms.sum())):
            return False
        factors = self.job.pipeline.factors(norms, self.sizes[where])
        self.add(where, torch.mv(updates.t(), factors), norms, norms * factors, losses, 0)
        return True

    def _add_rows(self, where: Cohort, shaped: ShapedRows, losses: Tensor) -> None:
        rows = shaped.rows
        if self._take is not None:
            self._take(where, rows)
        # Integers add exactly in any order; floats are summed in double precision across chunks.
        self.add(
            where,
            rows.sum(dim=0) if len(rows) > 1 else rows[0],
            shaped.norms,
            shaped.shaped_norms,
            losses,
            shaped.rejected,
        )

    def add_one(self, place: int, own: RoundSum) -> None:
        """The client at this place of the cohort, from a round of its own."""
        where = np.array([place])
        if self._take is not None:
            self._take(where, own.total[None])
        self.add(where, own.total, own.norms, own.shaped_norms, own.losses, own.rejected)

    def add(
        self,
        where: Cohort,
        total: Tensor,
        norms: Tensor,
        shaped_norms: Tensor,
        losses: Tensor,
        rejected: int,
    ) -> None:
        """The sum of a chunk's shaped updates, and its statistics."""
        self._total += total.cpu()
        self._places.append(where)
        self._statistics.append((norms.cpu(), shaped_norms.cpu(), losses.cpu()))
        self._rejected += rejected

    def result(self) -> RoundSum:
        """The sum of all chunks; the statistics in the order of the cohort."""
        if len(self._places) == 1 and _in_order(self._places[0], len(self.cohort)):
            return RoundSum(self._total, *self._statistics[0], self._rejected)
        ordered = [torch.zeros(len(self.cohort)) for _ in range(3)]
        if self._places:
            places = torch.from_numpy(np.concatenate(self._places))
            for into, parts in zip(ordered, zip(*self._statistics, strict=True), strict=True):
                into[places] = torch.cat(parts)
        return RoundSum(self._total, ordered[0], ordered[1], ordered[2], self._rejected)


def _in_order(places: Cohort, count: int) -> bool:
    """Whether distinct places are all of so many, one after the other."""
    return len(places) == count and bool((places[1:] > places[:-1]).all())


# Trains the clients at some places of a sum's cohort and adds their updates.
Train = Callable[[RunningSum, Cohort], None]


class GroupedEngine(ABC):
    """An engine that trains groups of a cohort, each its own way."""

    job: Job

    @abstractmethod
    def groups(self, sizes: Cohort) -> Iterable[tuple[Cohort, Train]]:
        """The places of the clients that go each way, and the way."""

    def round_sum(self, request: RoundRequest) -> RoundSum:
        total = RunningSum(self.job, request)
        for places, add in self.groups(total.sizes):
            add(total, places)
        return total.result()

    def close(self) -> None:  # noqa: B027, for most hold nothing
        """Nothing to release."""
