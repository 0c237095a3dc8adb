"""Which engine runs a job, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedveil.engine.contract import Engine, Job
from fedveil.engine.gradients import AutogradGradients, VmapGradients
from fedveil.engine.rows import RowEngine
from fedveil.errors import BadInput

ENGINES = ("auto", "sequential", "generic")

_LARGE = 500_000  # parameters above which a chunk of clients no longer fits the cache


@dataclass(frozen=True)
class Choice:
    """An engine's name and the reason for it, in one sentence."""

    name: str
    reason: str


def choose(job: Job, name: str = "auto") -> Choice:
    """The fastest engine that can run this job, or the one asked for."""
    if name not in ENGINES:
        raise BadInput(f"engine.name: unknown engine {name!r}; there are {', '.join(ENGINES)}")
    if name != "auto":
        return Choice(name, "asked for")
    heavy = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.dropout._DropoutNd)
    for module in job.module.modules():
        if isinstance(module, heavy):
            kind = type(module).__name__
            return Choice("sequential", f"{kind} layers run best one client at a time")
    if job.layout.size > _LARGE:
        return Choice("sequential", f"{job.layout.size:,} parameters keep one client's cores busy")
    return Choice("generic", "a small model: many clients go through each operation together")


def build_engine(job: Job, name: str = "auto", chunk: int | None = None) -> Engine:
    """Make the chosen engine. `chunk` is how many clients train together at most."""
    task, device = job.federation.task, torch.device("cpu")
    if choose(job, name).name == "sequential":
        gradients = AutogradGradients(job.module, job.layout, task, device)
        return RowEngine("sequential", job, gradients, 1)
    # About 6 MB of weights stay in cache; per-example gradients take a batch as much.
    batch = (job.rule.batch_size or 1) if job.rule.per_example else 1
    fits = 6_000_000 // (4 * job.layout.size * batch)
    size = chunk or max(1, min(50, fits))
    return RowEngine("generic", job, VmapGradients(job.module, job.layout, task, device), size)
