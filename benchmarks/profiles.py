"""Where a round's time goes: fedveil alone in one process, under Python's profiler.

    python -m benchmarks.profiles            # all workloads, into benchmarks/profiles.md
    python -m benchmarks.profiles W1 W6      # printed

A line is a function's own time, without what it calls; torch's kernels are functions like any.
The profiler itself slows short calls, so shares of small functions are too large rather than small.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import sys
import time
from pathlib import Path

import torch

import fedveil as fv
from benchmarks import machine
from benchmarks.environments import ROOT
from benchmarks.report import seconds
from benchmarks.systems.fedveil import federation, method, module
from benchmarks.workloads import WORKLOADS, Workload

PAGE = ROOT / "benchmarks" / "profiles.md"
SECONDS, LINES = 3.0, 10  # of profiled rounds; functions to show


def profile(workload: Workload) -> tuple[float, float, list[tuple[str, float, int]]]:
    """Best seconds of a round with and without the profiler, and the functions that take most:
    name, share of the profiled time, calls in a round."""
    data, most = federation(workload), 2000
    noise = fv.Budget(noise_multiplier=workload.noise_multiplier)
    budget = None if workload.per_example else noise
    plan = fv.plan(method(workload, most), data, module(workload, data), budget=budget, seed=0)
    run = fv.Run(plan, speed=fv.Speed(processes=1, threads=1), every=most + 1)
    rounds = iter(run)
    next(rounds)
    free = [timed(rounds) for _ in range(2 if workload.kernel_bound else 50)]
    profiler = cProfile.Profile()
    laps: list[float] = []
    profiler.enable()
    while sum(laps) < SECONDS and len(laps) < 300:
        laps.append(timed(rounds))
    profiler.disable()
    run.close()
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    whole = sum(entry[2] for entry in stats.values())
    found = sorted(stats.items(), key=lambda item: -item[1][2])[:LINES]
    lines = [
        (name(*where), entry[2] / whole, round(entry[1] / len(laps))) for where, entry in found
    ]
    return min(free), min(laps), lines


def timed(rounds: object) -> float:
    began = time.perf_counter()
    next(rounds)  # type: ignore[call-overload]
    return time.perf_counter() - began


def name(file: str, line: int, function: str) -> str:
    if file != "~":
        return f"{Path(file).parent.name}/{Path(file).name}: {function}"
    owned = re.fullmatch(r"<method '(.+)' of '(.+)' objects>", function)
    if owned is None:
        return function.strip("<>").replace("built-in method ", "")
    return f"{owned[2].rpartition('.')[2].replace('TensorBase', 'Tensor')}.{owned[1]}"


def section(workload: Workload) -> str:
    free, slowed, lines = profile(workload)
    rows = "".join(f"| `{what}` | {share:.1%} | {calls} |\n" for what, share, calls in lines)
    return (
        f"## {workload.name}: {workload.summary}\n\n"
        f"A round takes {seconds(free)}, under the profiler {seconds(slowed)}.\n\n"
        f"| function | its own time | calls in a round |\n|---|---|---|\n{rows}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles")
    parser.add_argument("workload", nargs="*", help=", ".join(WORKLOADS))
    names = parser.parse_args().workload
    if unknown := [each for each in names if each not in WORKLOADS]:
        parser.error(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    torch.set_num_threads(1)
    sections = []
    for each in names or WORKLOADS:
        print(f"profile: {each}", file=sys.stderr, flush=True)
        sections.append(section(WORKLOADS[each]))
    facts = ", ".join(f"{key} {value}" for key, value in machine.describe().items())
    made = f"Made by `python -m benchmarks.profiles`: {facts}; one process, one thread."
    text = "\n".join([f"# Profiles\n\n{made}\n", *sections])
    if not names:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
