"""Which engine runs a job, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedveil.engine.algebra import AlgebraEngine, dual_applies, moments_apply, one_layer
from fedveil.engine.contract import Engine, Job
from fedveil.engine.gradients import AutogradGradients, VmapGradients, why_not_vmap
from fedveil.engine.mlp import MlpGradients
from fedveil.engine.rows import CPU, RowEngine
from fedveil.engine.stack import Stack, affine_stack
from fedveil.errors import BadInput

ENGINES = ("auto", "algebra", "mlp", "generic", "sequential")

_LARGE = 500_000  # parameters above which a chunk of clients no longer fits the cache
_CACHE = 6_000_000  # bytes of weights that stay in cache while a chunk trains


@dataclass(frozen=True)
class Choice:
    """An engine's name and the reason for it, in one sentence."""

    name: str
    reason: str


def supports(job: Job, name: str) -> str | None:
    """Why the engine of this name cannot run the job, in one clause; None if it can."""
    if name not in ENGINES:
        raise BadInput(f"engine.name: unknown engine {name!r}; there are {', '.join(ENGINES)}")
    if name == "algebra":
        layer = one_layer(_stack(job))
        if isinstance(layer, str):
            return f"the model is not one affine layer: {layer}"
        if not (dual_applies(job) or moments_apply(job)):
            kind = "gradient noise" if job.rule.gradient_noise else "clipping gradients in L1"
            return f"{kind} leaves the span of a client's data"
    if name == "mlp":
        stack = _stack(job)
        return (
            f"the model is not a stack of affine layers: {stack}"
            if isinstance(stack, str)
            else None
        )
    if name == "generic":
        return why_not_vmap(job)
    return None


def choose(job: Job, name: str = "auto") -> Choice:
    """The fastest engine that can run this job, or the one asked for."""
    if name != "auto":
        obstacle = supports(job, name)
        if obstacle is not None:
            raise BadInput(f"engine.name: {name!r} cannot run this: {obstacle}; try 'auto'")
        return Choice(name, "asked for")
    if supports(job, "algebra") is None:
        way = "moments" if moments_apply(job) else "coefficients of the examples"
        return Choice("algebra", f"a linear model: {way} stand for data and weights")
    if supports(job, "mlp") is None:
        return Choice("mlp", "affine layers: gradients of many clients by hand, as matrix products")
    heavy = (nn.modules.conv._ConvNd, nn.RNNBase, nn.modules.dropout._DropoutNd)
    for module in job.module.modules():
        if isinstance(module, heavy):
            kind = type(module).__name__
            return Choice("sequential", f"{kind} layers run best one client at a time")
    if job.layout.size > _LARGE:
        return Choice("sequential", f"{job.layout.size:,} parameters keep one client's cores busy")
    obstacle = supports(job, "generic")
    if obstacle is not None:
        return Choice("sequential", f"one client at a time, because {obstacle}")
    return Choice("generic", "a small model: many clients go through each operation together")


def build_engine(
    job: Job, name: str = "auto", chunk: int | None = None, device: torch.device = CPU
) -> Engine:
    """Make the chosen engine. `chunk` is how many clients train together at most."""
    task = job.federation.task
    chosen = choose(job, name).name
    if chosen == "sequential":
        gradients = AutogradGradients(job.module, job.layout, task, device)
        return RowEngine("sequential", job, gradients, 1, device)
    if chosen == "generic":
        # Gradients of single examples take a batch as much.
        batch = (job.rule.batch_size or 1) if job.rule.per_example else 1
        vmapped = VmapGradients(job.module, job.layout, task, device)
        return RowEngine("generic", job, vmapped, chunk or _chunk(job, batch), device)
    stack = _stack(job)
    if isinstance(stack, str):
        raise BadInput(f"engine.name: {name!r} cannot run this: {stack}")
    rows = RowEngine("mlp", job, MlpGradients(stack, task), chunk or _chunk(job, 1), device)
    return rows if chosen == "mlp" else AlgebraEngine(job, stack, rows)


def _stack(job: Job) -> Stack | str:
    return affine_stack(job.module, job.layout, job.federation)


def _chunk(job: Job, copies: int) -> int:
    return max(1, min(50, _CACHE // (4 * job.layout.size * copies)))
