"""The engine interface: train a cohort and hand on its shaped updates, block by block.

An engine is built for a `Job` and answers a `RoundRequest` with a stream of `Block`s. It never sums
over the cohort; whoever asked adds the blocks up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.core.arguments import settle
from fedveil.core.randomness import Randomness
from fedveil.data.federation import Federation
from fedveil.data.unusable import without_unusable
from fedveil.training.client.batches import client_sizes
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import (
    Block,
    TrainedClients,
    UpdatePipeline,
    shape_rows,
)
from fedveil.training.models.check import with_readable
from fedveil.training.models.flat import Layout

Cohort = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Everything an engine needs to know besides the weights, the cohort and the round.

    A protected run is `isolated`: what a client contributes depends on public settings, its own
    records and its own randomness alone, bit for bit, and one record moves a mean of clipped
    gradients by no more than is accounted for it, whatever the values. A simulation is not: clients
    that train together are faster, and share rounding errors.
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
    """One round's work for an engine.

    Attributes:
        weights: The shared weights, float32 `[parameters]`.
        cohort: The clients to train, distinct numbers `[cohort]`.
        round_number: The round, from 0.
        pipeline: The pipeline of this round, if it differs from the job's: clip and grid may change
            from round to round.
        rows: Whether every block must hold its clients' single updates, as a masked sum needs.
    """

    weights: Tensor
    cohort: Cohort
    round_number: int
    pipeline: UpdatePipeline | None = None
    rows: bool = False

    def part(self, places: Cohort) -> RoundRequest:
        """Return a request restricted to the given positions in the cohort."""
        return replace(self, cohort=self.cohort[places])


class Engine(Protocol):
    """Trains cohorts. Implementations differ in speed only: one test suite compares them all."""

    @property
    def name(self) -> str: ...

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        """Yield the shaped updates of the cohort's clients, each client in one block."""
        ...

    def close(self) -> None:
        """Release worker processes and memory. Safe to call twice."""
        ...


@dataclass(frozen=True)
class CohortTask(TrainedClients):
    """A request as an engine carries it out: with the engine's job, in the round's pipeline."""

    job: Job

    def part(self, where: Cohort) -> CohortTask:
        """Return the task of the clients at the given positions."""
        return replace(self, clients=self.clients[where], sizes=self.sizes[where])

    def block(
        self, where: Cohort, updates: Tensor, losses: Tensor, gradient: Tensor | None = None
    ) -> Block:
        """Shape the updates of the clients at the positions `where`.

        Args:
            where: Positions in the cohort, `[clients]`.
            updates: Updates `[clients, parameters]`; they may be overwritten.
            losses: Mean losses `[clients]`.
            gradient: As in `shape_rows`.
        """
        pipeline, together = self.job.pipeline, not self.job.isolated and len(where) > 1
        scaled = None
        if together and pipeline.only_clips:
            scaled = self._scaled(where, updates, losses)
        if scaled is not None:
            return scaled
        shaped = shape_rows(updates, pipeline, self.job.layout, self.part(where), gradient)
        return replace(shaped, places=where, losses=losses)

    def _scaled(self, where: Cohort, updates: Tensor, losses: Tensor) -> Block | None:
        """Sum updates times one number each in one product; None if any is not finite."""
        clip = self.job.pipeline.clip
        norms = torch.linalg.vector_norm(updates, ord=2 if clip is None else clip.order, dim=1)
        if not math.isfinite(float(norms.sum())):
            return None
        factors = self.job.pipeline.factors(norms, self.sizes[where])
        return Block(where, torch.mv(updates.t(), factors), norms, norms * factors, losses)


def task_of(job: Job, request: RoundRequest) -> CohortTask:
    """Return a request as the engine of a job carries it out.

    Raises:
        ValueError: Single updates are asked for, and the pipeline has no grid: without one, engines
            may form nothing but sums.
    """
    job = job.shaped_by(request.pipeline)
    if request.rows and job.pipeline.granularity is None:
        raise ValueError("single updates are formed on a grid only")
    return CohortTask(
        request.cohort,
        client_sizes(job.federation, request.cohort),
        request.weights,
        request.round_number,
        job.randomness,
        job,
    )


class BlockSum:
    """Adds blocks up: integers exactly, floating-point numbers in double precision.

    Args:
        integer: Whether the updates are integers on a grid.
        width: How many numbers a shaped update has.
        count: How many clients the cohort has.
    """

    def __init__(self, integer: bool, width: int, count: int) -> None:
        self._total = torch.zeros(width, dtype=torch.int64 if integer else torch.float64)
        self._count, self._blocks = count, list[Block]()

    def add(self, block: Block) -> None:
        """Add a block; its rows are not kept."""
        self._total += block.total.cpu()
        statistics = block.norms.cpu(), block.shaped_norms.cpu(), block.losses.cpu()
        self._blocks.append(Block(block.places, self._total, *statistics, block.rejected))

    def result(self) -> Block:
        """Return the whole cohort as one block, its statistics in the order of the cohort."""
        everybody, blocks = np.arange(self._count), self._blocks
        rejected = sum(block.rejected for block in blocks)
        if len(blocks) == 1 and _in_order(blocks[0].places, self._count):
            return replace(blocks[0], places=everybody, rejected=rejected)
        ordered = [torch.zeros(self._count) for _ in range(3)]
        if blocks:
            places = torch.from_numpy(np.concatenate([block.places for block in blocks]))
            parts = [(block.norms, block.shaped_norms, block.losses) for block in blocks]
            for into, own in zip(ordered, zip(*parts, strict=True), strict=True):
                into[places] = torch.cat(own)
        return Block(everybody, self._total, ordered[0], ordered[1], ordered[2], rejected)


def summed(engine: Engine, job: Job, request: RoundRequest) -> Block:
    """Run an engine on a request and return the cohort as one block."""
    pipeline = job.shaped_by(request.pipeline).pipeline
    integer, width = pipeline.granularity is not None, pipeline.width(job.layout)
    total = BlockSum(integer, width, len(request.cohort))
    for block in engine.updates(request):
        total.add(block)
    return total.result()


def _in_order(places: Cohort, count: int) -> bool:
    """Whether distinct places are all of so many, one after the other."""
    return len(places) == count and bool((places[1:] > places[:-1]).all())


# Trains the clients at some positions of a task's cohort and yields their updates.
Train = Callable[[CohortTask, Cohort], Iterator[Block]]


class GroupedEngine(ABC):
    """An engine that trains groups of a cohort, each its own way."""

    job: Job

    @abstractmethod
    def groups(self, sizes: Cohort) -> Iterable[tuple[Cohort, Train]]:
        """Yield the positions of the clients that go each way, and the way."""

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        task = task_of(self.job, request)
        for places, train in self.groups(task.sizes):
            yield from train(task, places)

    def close(self) -> None:  # noqa: B027, for most hold nothing
        """Nothing to release."""
