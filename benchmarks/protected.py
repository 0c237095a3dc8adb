"""What a protected round costs beside a simulated one: `python -m benchmarks.protected [W1 ...]`.

Both runs are kept ready in this process and take turns, a bunch of rounds each, so that a busy
machine slows both. Printed are the shortest times of a round's parts: training, shaping (clip, and
the grid of a protected run), noise, and all else; then the ratio of their sums.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch

import fedveil as fv
from benchmarks.systems.fedveil import federation, plan
from benchmarks.workloads import WORKLOADS
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.training.engines.contract import CohortTask
from fedveil.training.engines.memory import keep_freed_memory

SECONDS, BUNCH, MOST = 15.0, 5, 200_000
spent: dict[str, float] = defaultdict(float)


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[part] += time.perf_counter() - began

    return call


def timed_blocks(updates: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def call(request: Any) -> Iterator[Any]:
        blocks = updates(request)
        step = timed("engine", lambda: next(blocks, None))
        while (block := step()) is not None:
            yield block

    return call


def rounds(workload: str, protected: bool) -> Iterator[dict[str, float]]:
    """Yield the seconds of the parts of each round of a run."""
    own = WORKLOADS[workload]
    data = federation(own)
    run = fv.Run(plan(own, data, MOST, protected), speed=fv.Speed(processes=1), every=MOST + 1)
    run.engine.updates = timed_blocks(run.engine.updates)  # type: ignore[method-assign]
    for step in timed_steps(iter(run)):
        parts = dict(spent)
        train = parts["engine"] - parts["shape"]
        rest = step - parts["engine"] - parts["noise"]
        yield {"train": train, "shape": parts["shape"], "noise": parts["noise"], "rest": rest}


def timed_steps(run: Iterator[Any]) -> Iterator[float]:
    while True:
        spent.clear()
        began = time.perf_counter()
        next(run)
        yield time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    CohortTask.block = timed("shape", CohortTask.block)  # type: ignore[method-assign]
    RoundNoise.protect = timed("noise", RoundNoise.protect)  # type: ignore[method-assign]
    for workload in sys.argv[1:] or ("W1", "W2", "W2x12"):
        runs = [rounds(workload, protected) for protected in (False, True)]
        best: list[dict[str, float]] = [defaultdict(lambda: 1e9) for _ in runs]
        ends = time.perf_counter() + SECONDS
        while time.perf_counter() < ends:
            for run, found in zip(runs, best, strict=True):
                for parts in (next(run) for _ in range(BUNCH)):
                    found.update({part: min(found[part], one) for part, one in parts.items()})
        for name, found in zip(("simulated", "protected"), best, strict=True):
            cells = " | ".join(f"{part} {1e3 * one:.3f}" for part, one in found.items())
            print(f"{workload} {name}, ms: {cells}")
        simulated, protected = (sum(found.values()) for found in best)
        print(f"{workload}: ratio {protected / simulated:.2f}", flush=True)


if __name__ == "__main__":
    main()
