"""The engine interface: train a cohort and hand on its shaped updates, block by block.

An engine is built for a `Job` and answers a `RoundRequest` with a stream of `Block`s. It never sums
over the cohort; whoever asked adds the blocks up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedveil.core.arguments import settle
from fedveil.core.randomness import Randomness
from fedveil.core.units import Unit
from fedveil.data.federation import Federation
from fedveil.data.unusable import without_unusable
from fedveil.training.client.batches import client_sizes
from fedveil.training.client.local_training import LocalStep, LocalTraining
from fedveil.training.client.update_pipeline import (
    Block,
    TrainedClients,
    UpdatePipeline,
    shape_rows,
)
from fedveil.training.models.check import with_readable
from fedveil.training.models.flat import Layout

Cohort = npt.NDArray[np.int64]

_BROADCAST = -1  # where client states hold what was broadcast, and in which round


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
        clip, statistic = self.rule.gradient_clip, self.pipeline.statistic
        sites = None if clip is None else clip.sites_per_person
        if statistic is not None and statistic.unit is Unit.PERSON:
            sites = 1
        if sites is not None:
            federation = federation.at_sites(sites)
        if not self.rule.per_example:
            federation = without_unusable(federation)
        settle(self, federation=federation)

    def shaped_by(self, pipeline: UpdatePipeline | None) -> Job:
        """Return the job with another update pipeline; None keeps its own."""
        if pipeline is None or pipeline is self.pipeline:
            return self
        return replace(self, pipeline=pipeline)


class ClientStates:
    """The state that a local step keeps of each client, and what it broadcast last.

    A run has one from its first round to its last. It is kept in memory alone, for the states are
    private and a run directory holds released values only.
    """

    def __init__(self, memory: dict[int, Any] | None = None, first: int = 0) -> None:
        self._memory: dict[int, Any] = {} if memory is None else memory
        self._first = first  # the number of client 0

    def broadcast(self, step: LocalStep, weights: Tensor, round_number: int) -> Tensor | None:
        """Return what the server sends beside the weights in this round, computed once."""
        sent: Tensor | None
        last, sent = self._memory.get(_BROADCAST, (None, None))
        if last != round_number:
            sent = step.broadcast(weights, sent)
            self._memory[_BROADCAST] = round_number, sent
        return sent

    def of(self, clients: Cohort, step: LocalStep, weights: Tensor) -> Tensor:
        """Return the states of some clients, `[clients, ...]`."""
        known = (self._memory.get(client) for client in (clients + self._first).tolist())
        return torch.stack([step.initial(weights) if s is None else s for s in known])

    def put(self, clients: Cohort, states: Tensor) -> None:
        """Keep the states `[clients, ...]` of some clients."""
        self._memory.update(zip((clients + self._first).tolist(), states.clone(), strict=True))

    def of_client(self, client: int) -> ClientStates:
        """Return the same states for a federation that holds this client alone, as number 0."""
        return ClientStates(self._memory, client)


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
        states: What the rule's local step remembers of clients; None lets all of them begin anew.
    """

    weights: Tensor
    cohort: Cohort
    round_number: int
    pipeline: UpdatePipeline | None = None
    rows: bool = False
    states: ClientStates | None = None

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
    states: ClientStates | None = None

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
    states = request.states
    if job.rule.step is not None and states is None:
        states = ClientStates()
    # If isolated, weights lie in memory of torch's own, as everything else that a kernel reads.
    weights = request.weights.clone() if job.isolated else request.weights
    sizes = client_sizes(job.federation, request.cohort)
    number = request.round_number
    return CohortTask(request.cohort, sizes, weights, number, job.randomness, job, states)


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


class threads_at:  # noqa: N801
    """Compute with this many torch threads inside the block.

    A class, because it is quicker than a generator, and rounds may take a quarter of a millisecond.
    """

    def __init__(self, count: int) -> None:
        self._count, self._before = count, count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != self._count:
            torch.set_num_threads(self._count)

    def __exit__(self, *error: object) -> None:
        if self._before != self._count:
            torch.set_num_threads(self._before)


Setting = Callable[[], AbstractContextManager[object]]


def computed_in(setting: Setting, blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield blocks, each computed inside a setting that whoever takes the block does not see."""
    while True:
        with setting():
            block = next(blocks, None)
        if block is None:
            return
        yield block


class Within:
    """Runs the rounds of an engine inside a setting."""

    def __init__(self, engine: Engine, setting: Setting) -> None:
        self.engine, self._setting, self.name = engine, setting, engine.name

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        return computed_in(self._setting, self.engine.updates(request))

    def close(self) -> None:
        self.engine.close()
