"""Several processes share a cohort: each trains its part with an engine of its own; sums add up.

The leader sends every round to the others and adds up their sums. Local workers are started here;
each lives on a pipe from its leader, and when that closes, for whatever reason, the worker is gone.
A worker that ends in the middle of a round is reported in one line. Across machines, `torchrun`
starts the processes, and messages go through `torch.distributed`.
"""

from __future__ import annotations

import heapq
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any, Protocol

import numpy as np
import torch.distributed as dist

from fedveil.core.errors import FedveilError
from fedveil.data.assignment import client_words
from fedveil.data.federation import Federation
from fedveil.training.client.batches import client_sizes, step_counts
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines.contract import (
    BlockSum,
    Cohort,
    Engine,
    Job,
    RoundRequest,
    computed_in,
    summed,
    threads_at,
)
from fedveil.training.engines.distributed_env import under_torchrun
from fedveil.training.engines.registry import OUTSIDE
from fedveil.training.engines.shared_memory import SharedFederation, share

_MANY = 2_000  # clients above which dealing in turn is as even as choosing the least loaded
_LONG = timedelta(days=7)  # a round may take as long as it takes
_PATIENCE = 2.0  # seconds that a worker has to end by itself


class WorkerFailed(FedveilError):
    """A worker process ended in the middle of a run."""


class Leading(Protocol):
    """The leader's side of a team."""

    def tell(self, message: object) -> None:
        """Send a message to all others; None: there is no more work."""
        ...

    def answers(self, own: Block) -> list[Block]:
        """Return everybody's part of a round, in the order of their ranks; `own` is the first."""
        ...


class Following(Protocol):
    """A follower's side of a team."""

    rank: int

    def hear(self) -> Any:
        """Return the leader's next message; None: there is no more work."""
        ...

    def answer(self, part: Block) -> None: ...


@dataclass(frozen=True)
class Setup:
    """The setup of a worker: a job whose columns are shared, and how to run it."""

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


class Workers:
    """Worker processes on this machine, each a follower of the process that started them."""

    def __init__(self, count: int, descriptors: list[int]) -> None:
        self._pipes: list[Connection] = []
        self._logs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for rank in range(1, count + 1):
            own, theirs = Pipe()
            log = tempfile.TemporaryFile()  # noqa: SIM115
            worker = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", str(theirs.fileno()), str(rank)],
                stdin=subprocess.PIPE,  # its end is the leader's
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno(), *descriptors],
                env=environment,
            )
            theirs.close()
            self._pipes.append(own)
            self._logs.append(log)
            self._processes.append(worker)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def tell(self, message: object) -> None:
        blob = pickle.dumps(message)
        for place, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(blob)
            except OSError:
                raise self._failure(place) from None

    def answers(self, own: Block) -> list[Block]:
        parts = [own]
        for place, pipe in enumerate(self._pipes):
            try:
                parts.append(pickle.loads(pipe.recv_bytes()))
            except (EOFError, OSError):
                raise self._failure(place) from None
        return parts

    def _failure(self, place: int) -> WorkerFailed:
        """Return why a worker can no longer be reached."""
        process, log = self._processes[place], self._logs[place]
        code = process.wait()
        if code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            reason = f"was killed by {signal.Signals(-code).name}{hint}"
        else:
            log.seek(0)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            said = next((line for line in reversed(lines) if line), "without a word")
            reason = f"ended with code {code}: {said}"
        return WorkerFailed(
            f"worker process {place + 1} (pid {process.pid}) {reason}; the run can be resumed"
        )

    def close(self) -> None:
        """End all workers, at once if need be."""
        for process in self._processes:
            if process.stdin is not None:
                with suppress(OSError):  # it may be gone already
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe, log in zip(self._pipes, self._logs, strict=True):
            pipe.close()
            log.close()


class Follower:
    """A local worker's side."""

    def __init__(self, pipe: Connection, rank: int) -> None:
        self._pipe, self.rank = pipe, rank

    def hear(self) -> Any:
        return pickle.loads(self._pipe.recv_bytes())

    def answer(self, part: Block) -> None:
        self._pipe.send_bytes(pickle.dumps(part))


class Torchrun:
    """Both sides of a team of all processes that `torchrun` started, on all machines."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=_LONG)
        self.rank = dist.get_rank()

    def tell(self, message: object) -> None:
        dist.broadcast_object_list([message])

    def hear(self) -> Any:
        heard = [None]
        dist.broadcast_object_list(heard)
        return heard[0]

    def answers(self, own: Block) -> list[Block]:
        parts: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own, parts)
        return parts

    def answer(self, part: Block) -> None:
        dist.gather_object(part)


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
        self._team: Leading | None = None
        self._told = False  # whether workers know what to do
        self._homes: dict[int, Cohort] = {}  # of isolated clients, by the number of parts
        if not under_torchrun():  # there the first round meets the others
            self._start()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the local workers."""
        return self._team.pids if isinstance(self._team, Workers) else []

    def _start(self) -> Leading:
        """Start local workers; they import what they need while this process goes on."""
        if under_torchrun():
            self._team, self._told = Torchrun(), True
        else:
            self._shared = share(self.job.federation)
            self._team, self._told = Workers(self.count - 1, self._shared.descriptors), False
        return self._team

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
            team = self._team or self._start()
            if not self._told and self._shared is not None:
                team.tell(self._setup(self._shared))
                self._told = True
            owners = self._split(request.cohort, self.count)
            team.tell((request, owners))
            with threads_at(self._threads):
                parts = team.answers(_part(self.own, self.job, request, owners, 0))
        except BaseException:
            self.close()  # the others may wait for a message that will never come
            raise
        pipeline = self.job.shaped_by(request.pipeline).pipeline
        width = pipeline.width(self.job.layout)
        total = BlockSum(pipeline.granularity is not None, width, len(owners))
        for part in parts:
            total.add(part)
        return total.result()

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
        team, shared, self._team, self._shared = self._team, self._shared, None, None
        if isinstance(team, Workers):
            team.close()
        elif team is not None:
            team.tell(None)
        if shared is not None:
            shared.close()
        self.own.close()


def follow(team: Following, engine: Engine, job: Job) -> None:
    """Do a follower's part of every round until the leader has no more work."""
    while (heard := team.hear()) is not None:
        request, owners = heard
        team.answer(_part(engine, job, request, owners, team.rank))


def _part(engine: Engine, job: Job, request: RoundRequest, owners: Cohort, rank: int) -> Block:
    """Train one part of a cohort and return its sum."""
    mine = np.flatnonzero(owners == rank)
    part = summed(engine, job, request.part(mine))
    return replace(part, places=mine)


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
