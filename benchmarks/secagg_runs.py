"""What secure aggregation adds to a training round: `python -m benchmarks.secagg_runs [--json]`.

The same plans with plain integer sums (nobody lost), ideal and masked secure sums, a round of each
in turn; the best of two dozen rounds, as other work may run at the same time. Noise shares are
drawn in all three.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.run.aggregator import build_aggregator
from fedveil.run.run import Run, Speed

_HU = {
    "training.method": "gradient-noise",
    "training.batch_size": 16,
    "training.local_steps": 1,
    "model.name": "logistic",
}
CASES: dict[str, dict[str, Any]] = {
    "gradient-noise, 20 clients x 650": _HU | {"data.clients": 40, "training.cohort": 20},
    "gradient-noise, 20 clients x 650, a tenth lost": _HU
    | {"data.clients": 40, "training.cohort": 20, "aggregation.dropout": 0.1},
    "ddgauss, 50 clients x 650": {
        "training.method": "ddgauss",
        "training.cohort": 50,
        "training.local_epochs": 5,
    },
    "shares, 50 clients x 83 k": {
        "training.method": "dp-fedavg",
        "privacy.trust": "distributed",
        "training.cohort": 50,
        "training.local_epochs": 5,
        "training.batch_size": 8,
        "model.name": "mlp",
        "model.hidden": [256, 256],
    },
}


@dataclass(frozen=True)
class Overhead:
    """Seconds of a round by mode, and the masked mode's phases."""

    case: str
    none: float
    ideal: float
    masked: float
    phases: dict[str, float]


def overhead(name: str, rounds: int) -> Overhead:
    values = {"seed": 1, "training.rounds": rounds, "evaluation.every": rounds} | CASES[name]
    runs: dict[str, Run] = {}
    for mode in ("none", "ideal", "masked"):
        secure = "ideal" if mode == "none" else mode
        recipe = recipes.parse({}, values=values | {"aggregation.secure": secure})
        recipe = recipes.with_defaults(recipe)
        plan = plan_of(recipe, federation_of(recipe.data))
        runs[mode] = Run(plan, speed=Speed(processes=1, threads=1), every=rounds)
    runs["none"].aggregator = build_aggregator(None)  # the same integers, added as they come
    spent: dict[str, list[float]] = {mode: [] for mode in runs}
    steps = {mode: iter(run) for mode, run in runs.items()}
    for _ in range(rounds - 1):  # the last round also evaluates
        for mode, step in steps.items():
            began = time.perf_counter()
            next(step)
            spent[mode].append(time.perf_counter() - began)
    if not torch.equal(runs["ideal"].state.weights, runs["masked"].state.weights):
        raise RuntimeError("masked and ideal sums differ")
    best = {mode: min(times) for mode, times in spent.items()}
    phases = {k: v / (rounds - 1) for k, v in runs["masked"].seconds.items()}
    return Overhead(name, best["none"], best["ideal"], best["masked"], phases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    measured = [overhead(name, arguments.rounds) for name in CASES]
    if arguments.json:
        print(json.dumps({"secagg_runs": [asdict(one) for one in measured]}))
        return
    print(f"{'ms per round':38} {'none':>8} {'ideal':>8} {'masked':>8}")
    for one in measured:
        ours = (one.none, one.ideal, one.masked)
        print(f"{one.case:38}" + "".join(f" {1e3 * value:8.1f}" for value in ours))
        print("    masked: " + ", ".join(f"{k} {1e3 * v:.1f}" for k, v in one.phases.items()))


if __name__ == "__main__":
    main()
