"""One module a system, each with `run(workload, variant, clock)`; here, how each is started."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import dataclass

from benchmarks.workloads import Workload

ENGINES = ("algebra", "generic", "mlp", "sequential", "processes")
SYSTEMS = (
    "fedveil",
    *(f"fedveil:{engine}" for engine in ENGINES),
    "fedveil:protected",
    "pfl",
    "pfl:threads",
    "flower",
    "opacus",
    "opacus:threads",
    "opacus:hooks",
    "floor",
)
PACKAGES = {"fedveil": "fedveil", "pfl": "pfl", "flower": "flwr", "opacus": "opacus"}


@dataclass(frozen=True)
class Launch:
    """How a system's process is started: its fastest fair configuration for a workload."""

    processes: int = 1  # above 1: as many ranks of torchrun
    threads: int | None = None  # None: as the system itself decides
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def configuration(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return processes if self.threads is None else f"{processes} x {threads}"


class Unsupported(Exception):
    """A system cannot run a workload; the message says why."""


def launch(system: str, workload: Workload) -> Launch:
    """The configuration that was fastest on two cores.

    pfl: a rank on every core, or (`pfl:threads`, for large kernels) one process on all of them.
    Opacus: one process on one thread, or (`opacus:threads`) on all of them.
    """
    cores = os.cpu_count() or 1
    cpu = (("PFL_PYTORCH_DEVICE", "cpu"),)
    if system == "pfl":
        return Launch(processes=cores, threads=1, environ=cpu)
    if system == "pfl:threads":
        return Launch(processes=1, threads=cores, environ=cpu)
    if system == "flower":
        off = ("FLWR_TELEMETRY_ENABLED", "0"), ("RAY_USAGE_STATS_ENABLED", "0")
        quiet = ("RAY_DEDUP_LOGS", "0"), ("PYTHONWARNINGS", "ignore")
        return Launch(threads=1, environ=(*off, *quiet))
    if system == "opacus:threads":
        return Launch(threads=cores)
    if system in ("opacus", "opacus:hooks", "floor"):
        return Launch(threads=1)
    return Launch()


def version(system: str) -> str:
    """The version of the system, asked inside its own environment."""
    package = PACKAGES.get(system.partition(":")[0])
    return importlib.metadata.version(package) if package else ""
