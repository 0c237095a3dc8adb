"""One measurement: a system runs a workload in a process of its own, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.clock import Span
from benchmarks.environments import ROOT, python_of
from benchmarks.systems import Launch, launch
from benchmarks.workloads import Workload

Document = dict[str, Any]

_POLL_SECONDS = 0.2
# Left out of what a system inherits: they would set its threads or keep it from caching bytecode.
_NOT_INHERITED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Effort:
    """How long one measurement may take."""

    seconds: float = 4.0  # of counted rounds
    least: int = 3  # counted rounds, however slow
    most: int = 500
    warm_up: int = 2
    timeout: float = 1800.0
    processor: bool = False  # processor time of one process with one thread

    def for_workload(self, workload: Workload) -> Effort:
        """Rounds of large kernels vary little and take long: two of them, after one."""
        if not workload.kernel_bound:
            return self
        return replace(self, least=min(2, self.least), warm_up=1)


def measure(workload: Workload, system: str, effort: Effort) -> Document:
    """Run it once: `laps` (seconds of each counted round), or `skipped` or `failed` and why."""
    how = launch(system, workload)
    how = replace(how, threads=1) if effort.processor else how
    python = python_of(system)  # may take a minute to make: before the clock starts
    effort = effort.for_workload(workload)
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder) / "output.json", Path(folder) / "log"
        limits = (effort.warm_up, effort.seconds, effort.least, effort.most, effort.processor)
        span = Span(time.time(), *limits)
        command = [
            *_prefix(python, how),
            *("-m", "benchmarks.runner", system, workload.to_json()),
            *(json.dumps(asdict(span)), str(output)),
        ]
        peak = _watch(command, _environ(how), log, effort.timeout)
        document: Document = {"workload": workload.name, "system": system}
        if not output.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-12:]
            return document | {"failed": "\n".join(last) or "no output"}
        result: Document = json.loads(output.read_text(encoding="utf-8"))
    if "skipped" in result:
        return document | result
    result["configuration"] = result["configuration"] or how.configuration
    result["peak_memory_mb"] = round(max(peak, result["peak_memory_mb"]), 1)
    return document | result


def summarise(runs: Iterable[Document]) -> Document:
    """Several measurements of the same thing as one: all rounds together, the largest memory."""
    documents = list(runs)
    done = [document for document in documents if "laps" in document]
    if not done:
        return documents[0]
    laps = [lap for document in done for lap in document["laps"]]
    summary = {key: value for key, value in done[-1].items() if key != "laps"}
    starts = [document["start_seconds"] for document in done]
    middle = statistics.median(laps)
    return summary | {
        "seconds_per_round": middle,
        "best": min(laps),
        "median": middle,
        "rounds": len(laps),
        "start_seconds": round(statistics.median(starts), 3),
        "peak_memory_mb": max(document["peak_memory_mb"] for document in done),
        "runs": len(done),
    }


def _prefix(python: str, how: Launch) -> list[str]:
    if how.processes == 1:
        return [python]
    ranks = ("--standalone", "--nproc_per_node", str(how.processes))
    return [python, "-m", "torch.distributed.run", *ranks]


def _environ(how: Launch) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    if how.threads is not None:
        environ["OMP_NUM_THREADS"] = str(how.threads)
    return environ | dict(how.environ) | {"PYTHONPATH": str(ROOT)}


def _watch(command: Sequence[str], environ: Mapping[str, str], log: Path, timeout: float) -> float:
    """Run a command to its end; the largest memory of its process tree, in MB."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=sink, stderr=sink, start_new_session=True
        )
    peak, ended = 0.0, threading.Event()

    def poll() -> None:
        nonlocal peak
        while not ended.wait(_POLL_SECONDS):
            peak = max(peak, tree_memory_mb(process.pid))

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):  # no output: reported as failed
            process.wait(timeout)
    finally:
        ended.set()
        poller.join()
        _end(process)
    return peak


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing running of what was started: ranks and actors have sessions of their own."""
    if process.poll() is not None:
        return
    for child in reversed(descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.wait()


def tree_memory_mb(root: int) -> float:
    """Memory of a process and its descendants: what each has for itself, and the largest shared
    part (libraries and shared memory are there once, whoever maps them)."""
    private, shared = 0, 0
    for process in descendants(root):
        try:
            fields = Path(f"/proc/{process}/statm").read_text().split()
        except OSError:
            continue  # it ended meanwhile
        private += int(fields[1]) - int(fields[2])
        shared = max(shared, int(fields[2]))
    return (private + shared) * os.sysconf("SC_PAGE_SIZE") / 2**20


def descendants(root: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [root]
    for process in found:
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found
