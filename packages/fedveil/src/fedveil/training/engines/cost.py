"""How long a round will take, roughly: enough to decide whether more processes pay."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.training.client.batches import step_counts, unit_sizes
from fedveil.training.engines.contract import Job
from fedveil.training.models.tensors import as_tensor

_RATE = 35e9  # multiplications and additions a second that training reaches on one core
_START = 4.0  # seconds until worker processes are ready
_ALONE = 0.5e-3  # seconds of a client's step beside its arithmetic, if it trains alone


@dataclass(frozen=True)
class Workload:
    """How much there is to do: expected clients in a round, and rounds."""

    cohort: float
    rounds: int


@dataclass(frozen=True)
class Prediction:
    """Seconds on one core, of a round and of one client's local step, and how many rounds."""

    seconds: float
    step_seconds: float
    rounds: int

    def saved(self, processes: int) -> float:
        """Seconds that a run gains from this many processes, their start-up taken off."""
        return self.rounds * self.seconds * (1 - 1 / processes) - _START


def predict(job: Job, workload: Workload) -> Prediction:
    """How long rounds take, from the model's arithmetic alone."""
    sizes = unit_sizes(job.federation, job.rule)
    batch = sizes if job.rule.batch_size is None else np.minimum(sizes, job.rule.batch_size)
    steps = step_counts(sizes, job.rule)
    # The backward pass takes about twice the forward pass.
    record = 3 * operations(job) / _RATE * len(job.federation.train) / max(1, int(sizes.sum()))
    client = float((steps * batch).mean()) * record
    if job.isolated:
        client += float(steps.mean()) * _ALONE
    return Prediction(workload.cohort * client, float(batch.mean()) * record, workload.rounds)


def operations(job: Job) -> float:
    """Multiplications in the forward pass of one example."""
    federation, module = job.federation, job.module
    example = as_tensor(federation.model_inputs(np.zeros_like(federation.train.inputs[:1])))
    counted: list[float] = []
    handles = [
        child.register_forward_hook(_counter(counted))
        for child in module.modules()
        if not any(True for _ in child.children())
    ]
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(example)
    except Exception:  # a module that wants more than one example: its parameters have to do
        counted.clear()
    finally:
        module.train(training)
        for handle in handles:
            handle.remove()
    return max(sum(counted), float(job.layout.size))


def _counter(counted: list[float]) -> Any:
    def count(module: nn.Module, inputs: Any, outputs: Any) -> None:
        held = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        if not isinstance(first, Tensor) or not held:
            return
        if isinstance(module, nn.RNNBase):
            counted.append(held * first.numel() / first.shape[-1])  # once for each position
        elif isinstance(module, nn.modules.conv._ConvNd):
            counted.append(held * first[0, 0].numel())
        elif isinstance(module, nn.Linear):
            counted.append(held * first.numel() / first.shape[-1])
        else:
            counted.append(float(first.numel()))

    return count


def cores() -> int:
    """Cores this process may use: its affinity, or fewer if OMP_NUM_THREADS says so."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    available = available or os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, int(wanted)) if wanted.isdigit() and int(wanted) else available
