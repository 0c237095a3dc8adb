"""Processes that work on one round together: started here, or by `torchrun` across machines.

Messages and sums go through `torch.distributed` (gloo on CPU, nccl on GPU). The leader has rank 0;
the others follow it. Local workers live on a pipe from their leader: when it closes, for whatever
reason, they are gone. A worker's death is noticed at once and reported in one line.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from fedveil.core.errors import FedveilError

_LONG = timedelta(days=7)  # deaths are noticed by themselves, so no message is ever too late
_STOP, _WORK = 0, 1


class WorkerFailed(FedveilError):
    """A worker process ended in the middle of a run."""


class Group:
    """Collective operations, waiting in a way that can be interrupted."""

    def __init__(self, group: Any, device: torch.device, check: Callable[[], None]) -> None:
        self._group, self._device, self._check = group, device, check
        self.rank: int = group.rank()
        self.size: int = group.size()

    def tell(self, message: object, weights: Tensor) -> None:
        """Leader: hand a message and the weights to all followers."""
        blob = torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8)
        self._broadcast(torch.tensor([_WORK, len(blob), len(weights)]))
        self._broadcast(blob)
        self._broadcast(weights.clone())

    def dismiss(self) -> None:
        """Leader: no more work."""
        self._broadcast(torch.tensor([_STOP, 0, 0]))

    def hear(self) -> tuple[Any, Tensor] | None:
        """Follower: the leader's next message and weights; None when there is no more work."""
        order, length, parameters = self._broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
        if order == _STOP:
            return None
        blob = self._broadcast(torch.empty(length, dtype=torch.uint8))
        weights = self._broadcast(torch.empty(parameters))
        return pickle.loads(blob.numpy().tobytes()), weights

    def add(self, values: Tensor) -> Tensor:
        """The sum of everybody's `values`."""
        moved = values.to(self._device)
        self._wait(self._group.allreduce([moved]))
        return moved.cpu()

    def _broadcast(self, values: Tensor) -> Tensor:
        moved = values.to(self._device)
        self._wait(self._group.broadcast([moved]))
        return moved.cpu()

    def _wait(self, work: Any) -> None:
        pause = 2e-5
        try:
            while not work.is_completed():
                self._check()
                time.sleep(pause)
                pause = min(2 * pause, 2e-3)
            work.wait()
        except RuntimeError as error:
            time.sleep(0.05)  # a connection may break a moment before its process is gone
            self._check()
            raise WorkerFailed(f"the other processes cannot be reached: {_first(error)}") from None


class Workers:
    """Worker processes on this machine, each a follower of the process that started them."""

    def __init__(self, count: int, descriptors: list[int]) -> None:
        self._logs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
        self._store = TCPStore("127.0.0.1", 0, count + 1, is_master=True, wait_for_workers=False)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "fedveil.training.engines.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=descriptors,
                env=environment,
            )
            for log in self._logs
        ]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def join(self, setup: object) -> Group:
        """Give every worker its setup and form the group."""
        size = len(self._processes) + 1
        for rank, process in enumerate(self._processes, 1):
            blob = pickle.dumps((self._store.port, rank, size, setup))
            self._write(process, len(blob).to_bytes(8, "little") + blob)
        while int(self._store.add("ready", 0)) < size - 1:
            self.check()
            time.sleep(0.01)
        return Group(local_group(self._store, 0, size), torch.device("cpu"), self.check)

    def check(self) -> None:
        """Raise if a worker has ended."""
        for rank, (process, log) in enumerate(zip(self._processes, self._logs, strict=True), 1):
            code = process.poll()
            if code is not None:
                raise WorkerFailed(
                    f"worker process {rank} (pid {process.pid}) {_reason(code, log)}; "
                    "the run can be resumed"
                )

    def close(self) -> None:
        """End all workers, at once if need be."""
        for process in self._processes:
            if process.stdin is not None:
                with suppress(OSError):  # it may be gone already
                    process.stdin.close()
        deadline = time.monotonic() + 2.0
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()

    def _write(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        try:
            if process.stdin is not None:
                process.stdin.write(data)
                process.stdin.flush()
        except BrokenPipeError:
            process.wait()
            self.check()


def local_group(store: Any, rank: int, size: int) -> Any:
    """A gloo group over the loopback interface; the default group stays free for the user."""
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = _LONG
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(PrefixStore("group", store), rank, size, options)


def torchrun_group(device: torch.device) -> Group:
    """The group of all processes that `torchrun` started, on all machines."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_LONG)
    return Group(dist.group.WORLD, device, lambda: None)


def _reason(code: int, log: IO[bytes]) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    said = next((line for line in reversed(lines) if line), "without a word")
    return f"ended with code {code}: {said}"


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
