"""The floor: a round's bare forward and backward products at the best kernel rate of all cores.

Nothing that trains by gradients can be faster without doing fewer operations (which the algebraic
engines do). The rate is what matrix products sustain with one thread on every core, or on one core
alone, whichever is more.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import models
from benchmarks.clock import Clock
from benchmarks.workloads import Workload, draw

_SHAPES = ((512, 512, 512), (1024, 1024, 1024), (64, 3136, 512))  # rows, inner, columns
_WINDOWS, _SECONDS = 6, 0.1  # on each shape


def forward_products(module: nn.Module, inputs: Tensor) -> list[int]:
    """Multiply-adds of each layer with weights for this batch, in order of use."""
    counts: list[int] = []

    def linear(layer: nn.Linear, args: Any, output: Tensor) -> None:
        counts.append(output.numel() * layer.in_features)

    def convolution(layer: nn.Conv2d, args: Any, output: Tensor) -> None:
        fan_in = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        counts.append(output.numel() * fan_in)

    def recurrent(layer: nn.LSTM, args: Any, output: tuple[Tensor, Any]) -> None:
        positions = output[0].shape[0] * output[0].shape[1]
        counts.append(positions * sum(p.numel() for p in layer.parameters() if p.dim() == 2))

    kinds: dict[type, Any] = {nn.Linear: linear, nn.Conv2d: convolution, nn.LSTM: recurrent}
    handles = [
        layer.register_forward_hook(kinds[type(layer)])
        for layer in module.modules()
        if type(layer) in kinds
    ]
    with torch.no_grad():
        module(inputs)
    for handle in handles:
        handle.remove()
    return counts


def operations(workload: Workload) -> float:
    """Floating-point operations of one round: each product forward, for the weights' gradient, and
    (not in a first layer that reads the data) for the inputs' gradient."""
    inputs = torch.from_numpy(draw(workload).inputs[: workload.batch_size])
    counts = forward_products(models.build(workload), inputs)
    products = 3 * sum(counts) - (0 if workload.sequence else counts[0])
    return 2.0 * products * workload.steps * workload.cohort


def _work(barrier: Barrier, rates: Any) -> None:
    """Append this core's operations per second in each window; all cores begin one together."""
    torch.set_num_threads(1)
    for rows, inner, columns in _SHAPES:
        left, right = torch.randn(rows, inner), torch.randn(inner, columns)
        out = torch.mm(left, right)
        for _ in range(_WINDOWS):
            barrier.wait()
            began, products = time.perf_counter(), 0
            while (seconds := time.perf_counter() - began) < _SECONDS:
                torch.mm(left, right, out=out)
                products += 1
            rates.append(2 * rows * inner * columns * products / seconds)


def rate(cores: int) -> float:
    """Operations per second that so many cores sustain together, in the best window."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        barrier, rates = context.Barrier(cores), [manager.list() for _ in range(cores)]
        workers = [context.Process(target=_work, args=(barrier, each)) for each in rates]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return float(max(sum(window) for window in zip(*rates, strict=True)))


def run(workload: Workload, variant: str, clock: Clock) -> None:
    best = max(rate(cores) for cores in {1, os.cpu_count() or 1})
    clock.laps.append(operations(workload) / best)
    clock.configuration = f"{best / 1e9:.0f} GFLOP/s"
