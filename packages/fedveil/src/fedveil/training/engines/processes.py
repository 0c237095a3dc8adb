"""Several processes share a cohort: each trains its part with an engine of its own; sums add up."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from fedveil.data.assignment import client_words
from fedveil.data.federation import Federation
from fedveil.training.client.batches import client_sizes, step_counts
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import (
    Cohort,
    Engine,
    Job,
    RoundRequest,
    computed_in,
    summed,
    threads_at,
)
from fedveil.training.engines.distributed_env import under_torchrun
from fedveil.training.engines.process_group import Group, Workers, torchrun_group
from fedveil.training.engines.registry import OUTSIDE
from fedveil.training.engines.shared_memory import SharedFederation, share

_MANY = 2_000  # clients above which dealing in turn is as even as choosing the least loaded


@dataclass(frozen=True)
class Setup:
    """What a worker needs once: a job whose columns are shared, and how to run it."""

    federation: SharedFederation
    job: dict[str, Any]  # the other fields of the job
    engine: str
    engine_module: str | None  # of an engine from outside the package
    chunk: int | None
    threads: int

    def build(self) -> tuple[Engine, Job]:
        from fedveil.training.engines.choose import build_engine

        if self.engine_module is not None:
            import_module(self.engine_module)
        job = Job(self.federation.open(), **self.job)
        return build_engine(job, self.engine, self.chunk), job


class ProcessEngine:
    """Leads a team: `own` trains this process's part of every cohort.

    If a round fails or is interrupted the team is dissolved, and the next round starts a new one.
    """

    name = "processes"

    def __init__(
        self, job: Job, own: Engine, count: int, chunk: int | None = None, threads: int = 1
    ) -> None:
        self.job, self.own, self.count = job, own, count
        self._chunk, self._threads = chunk, threads
        self._shared: SharedFederation | None = None
        self._workers: Workers | None = None
        self._group: Group | None = None
        self._homes: dict[int, Cohort] = {}  # of isolated clients, by the number of parts
        if not under_torchrun():
            self._start()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the local workers."""
        return [] if self._workers is None else self._workers.pids

    def _start(self) -> None:
        """Start local workers; they import what they need while this process goes on."""
        self._shared = share(self.job.federation)
        self._workers = Workers(self.count - 1, self._shared.descriptors)

    def _team(self) -> Group:
        if self._group is None and under_torchrun():
            self._group = torchrun_group(_device_of(self.own))
        elif self._group is None:
            if self._workers is None:
                self._start()
            if self._workers is None or self._shared is None:
                raise RuntimeError("no workers")
            self._group = self._workers.join(self._setup(self._shared))
        return self._group

    def _setup(self, shared: SharedFederation) -> Setup:
        from fedveil.training.engines.choose import ENGINES

        job = {name: value for name, value in vars(self.job).items() if name != "federation"}
        name = self.own.name
        module = None if name in ENGINES else OUTSIDE[name].module
        return Setup(shared, job, name, module, self._chunk, self._threads)

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        if request.rows:
            yield from self._one_by_one(request)
        else:
            yield self._together(request)

    def _together(self, request: RoundRequest) -> Block:
        """Train the cohort in all processes; only sums pass between them."""
        try:
            group = self._team()
            owners = self._split(request.cohort, group.size)
            heard = request.cohort, owners, request.round_number, request.pipeline
            group.tell(heard, request.weights)
            with threads_at(self._threads):
                return _take_part(group, self.own, self.job, request, owners)
        except BaseException:
            self.close()  # the others may wait for a message that will never come
            raise

    def _split(self, cohort: Cohort, parts: int) -> Cohort:
        """Which part trains each client of the cohort."""
        if not self.job.isolated:
            return split(self.job, cohort, parts)
        if parts not in self._homes:
            self._homes[parts] = home_parts(self.job.federation, parts)
        return self._homes[parts][cohort]

    def _one_by_one(self, request: RoundRequest) -> Iterator[Block]:
        """Train every part of the cohort in this process, where single updates are asked for.

        The parts are those of the team, so that each client's update is the same, bit for bit.
        """
        owners = self._split(request.cohort, self.count)
        for part in range(self.count):
            mine = np.flatnonzero(owners == part)
            own = self.own.updates(request.part(mine))
            for block in computed_in(lambda: threads_at(self._threads), own):
                yield block.at(mine)

    def close(self) -> None:
        group, workers, shared = self._group, self._workers, self._shared
        self._group = self._workers = self._shared = None
        if workers is not None:
            workers.close()
        elif group is not None and under_torchrun():
            group.dismiss()
        if shared is not None:
            shared.close()
        self.own.close()


def follow(group: Group, engine: Engine, job: Job) -> None:
    """Do a follower's part of every round until the leader has no more work."""
    while (heard := group.hear()) is not None:
        (cohort, owners, round_number, pipeline), weights = heard
        request = RoundRequest(weights, cohort, round_number, pipeline)
        _take_part(group, engine, job, request, owners)


def _take_part(
    group: Group, engine: Engine, job: Job, request: RoundRequest, owners: Cohort
) -> Block:
    mine = np.flatnonzero(owners == group.rank)
    part = summed(engine, job, request.part(mine))
    total = group.add(part.total)
    # One row each for norms, norms after shaping, losses; the last column counts rejections.
    statistics = torch.zeros(3, len(owners) + 1, dtype=torch.float64)
    rows = torch.stack([part.norms, part.shaped_norms, part.losses]).double()
    statistics[:, torch.from_numpy(mine)] = rows
    statistics[0, -1] = part.rejected
    statistics = group.add(statistics)
    norms, shaped, losses = statistics[:, :-1].float()
    everybody = np.arange(len(owners))
    return Block(everybody, total, norms, shaped, losses, int(statistics[0, -1]))


def split(job: Job, cohort: Cohort, parts: int) -> Cohort:
    """Which part trains each client: even by predicted cost, the same on every machine.

    Depends on nothing but the cohort and the number of parts, so that a resumed run adds the same
    numbers in the same order.
    """
    sizes = client_sizes(job.federation, cohort)
    batch = sizes if job.rule.batch_size is None else np.minimum(sizes, job.rule.batch_size)
    costs = step_counts(sizes, job.rule) * batch + 1
    order = np.argsort(-costs, kind="stable")
    owners = np.empty(len(cohort), dtype=np.int64)
    if len(cohort) > _MANY:
        turn = np.arange(len(cohort)) % (2 * parts)  # there and back again
        owners[order] = np.where(turn < parts, turn, 2 * parts - 1 - turn)
        return owners
    loads = [(0, part) for part in range(parts)]
    for place in order:
        load, part = loads[0]
        heapq.heapreplace(loads, (load + int(costs[place]), part))
        owners[place] = part
    return owners


def home_parts(federation: Federation, parts: int) -> Cohort:
    """The part that trains each isolated client, `[clients]`, whenever it takes part.

    Machines may round differently, so nobody may decide where another client is trained: neither by
    its size nor by being there. A client's part follows from its name alone; where clients have no
    names, from its number.
    """
    words = client_words(federation.owners, federation.clients)
    return (words % np.uint64(parts)).astype(np.int64)


def _device_of(engine: Engine) -> torch.device:
    device = getattr(engine, "device", None)
    return device if isinstance(device, torch.device) else torch.device("cpu")
