"""Cheng's own network in bfloat16 and in float32, one writer a round, on one core.

`python -m benchmarks.bfloat16 [--rounds 8]`: milliseconds of a local step of 64 images with the
engine of `fedveil reproduce cheng-own-size`, and with the one that fedveil takes by itself. Rounds
alternate; the best of each counts. Processors without AVX512-BF16 or AMX are slower in bfloat16.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fedveil import load
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.run.run import Run, Speed
from fedveil.training.engines.memory import keep_freed_memory
from fedveil_lab.reproduction.bfloat16 import NAME

STEPS = 30
_SETTINGS = {
    "data.source": "femnist",
    "model.name": "cheng-cnn",
    "training.method": "fedavg",
    "training.sampling": "fixed",
    "training.cohort": 1,
    "training.local_steps": STEPS,
    "training.batch_size": 64,
    "training.learning_rate": 0.03,
    "seed": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    keep_freed_memory()
    federation, rounds = load("femnist"), {}
    for name in (NAME, "auto"):
        chosen = {**_SETTINGS, "training.rounds": given.rounds, "engine.name": name}
        recipe = recipes.with_defaults(recipes.parse({}, values=chosen))
        run = Run(plan_of(recipe, federation), speed=Speed(name, processes=1), every=given.rounds)
        rounds[name] = iter(run)
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for _ in range(given.rounds - 1):  # the last one evaluates as well
        for name, one in rounds.items():
            began = time.perf_counter()
            next(one)
            seconds[name].append(time.perf_counter() - began)
    rounded, plain = (min(seconds[name]) / STEPS * 1000 for name in (NAME, "auto"))
    print(f"a step: {rounded:.1f} ms in bfloat16, {plain:.1f} in float32: {plain / rounded:.2f}")


if __name__ == "__main__":
    main()
