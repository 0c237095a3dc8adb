"""Is the pilot's search any good? Another checkout's search against this one's, at equal cost.

    git worktree add /tmp/before REVISION
    python -m benchmarks.searches --before /tmp/before

Every search gets the same seconds of one processor, what it takes to think included. Then what it
chose is run again under seeds that chose nothing, the same for all. Needs FEDVEIL_DATA; about a
quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.before import sources_of

JOBS: dict[str, tuple[int, dict[str, Any]]] = {  # seeds to judge by; recipe
    "digits": (12, {"seed": 1, "training": {"rounds": 60}, "privacy": {"epsilon": 4.0}}),
    "lending-club": (
        40,
        {
            "seed": 1,
            "data": {"source": "lending-club", "clients": 5000, "examples_per_client": 6},
            "training": {
                "method": "client-noise",
                "sampling": "balanced",
                "cohort": 500,
                "rounds": 120,
                "local_steps": 1,
                "learning_rate": 0.1,
            },
            "privacy": {"epsilon": 3.0, "delta": 0.0, "noise": "laplace", "clip_norm": 50.0},
        },
    ),
    "mnist-writers": (
        4,
        {
            "seed": 1,
            "data": {"source": "mnist-writers", "cap": 32},
            "training": {"cohort": 108, "rounds": 60, "local_steps": 1, "learning_rate": 0.5},
            "privacy": {"epsilon": 8.0, "clip_norm": 0.5},
        },
    ),
}
# Neighbours on the machine slow the wall clock down, not this one.
CLOCK = SimpleNamespace(monotonic=time.process_time, process_time=time.process_time)


def choose(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """The settings that the search of this checkout finds."""
    from fedveil.planning import recipe as recipes
    from fedveil.tune import pilot

    recipe = recipes.with_defaults(recipes.parse(JOBS[name][1]))
    pilot.time = CLOCK  # type: ignore[attr-defined]
    try:
        from fedveil.tune import trials
        from fedveil.tune.recommend import prepare

        search, kept = prepare(recipe, seconds=seconds, seed=seed), "journal"
    except ImportError:  # before the search stood on Optuna
        from fedveil.tune.pilot_space import prepare  # type: ignore[import-not-found,no-redef]

        from fedveil.tune import rehearsal as trials  # type: ignore[attr-defined,no-redef]

        search, kept = prepare(recipe, seconds=seconds), "trials"
        search.seed = seed  # type: ignore[attr-defined]
    trials.time = CLOCK  # type: ignore[attr-defined]
    choice = getattr(pilot, "CHOICE", None) or pilot._CHOICE  # the rest is for expectations
    search.seconds = seconds / choice
    search._began = began = time.process_time()
    chosen = search.run()
    took = time.process_time() - began
    return {"settings": chosen.to_dict(), "trials": len(getattr(search, kept)), "seconds": took}


def errors(name: str, settings: dict[str, Any]) -> list[float]:
    """What settings reach under seeds that chose nothing."""
    from fedveil.planning import recipe as recipes
    from fedveil.tune.recommend import prepare
    from fedveil.tune.trials import Candidate, Trial

    seeds, table = JOBS[name]
    search = prepare(recipes.with_defaults(recipes.parse(table)))
    candidate = Candidate(**settings)
    runs = (Trial(candidate, search.epsilon, 1.0, 50_000 + seed) for seed in range(seeds))
    return [search.trials(trial).error for trial in runs]


def asked(name: str, seconds: float, seed: int, checkout: Path) -> dict[str, Any]:
    """`choose` in a process of its own, with that checkout's package."""
    line = [sys.executable, __file__, "--choose", name, str(seconds), str(seed)]
    sources = os.pathsep.join(map(str, sources_of(checkout)))
    paths = {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env={**os.environ, **paths}, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.searches")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--seconds", type=float, default=25.0, help="of the processor, each")
    # The search was made with seeds 0 to 2.
    parser.add_argument("--seeds", type=int, nargs="*", default=[10, 11, 12])
    parser.add_argument("--jobs", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--choose", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.choose:
        name, seconds, seed = args.choose
        print(json.dumps(choose(name, float(seconds), int(seed))))
        return
    checkouts = {"this": Path.cwd()} | ({"before": args.before} if args.before else {})
    for name in args.jobs:
        means: dict[str, list[float]] = {who: [] for who in checkouts}
        for seed in args.seeds:
            for who, checkout in checkouts.items():
                found = asked(name, args.seconds, seed, checkout)
                reached = errors(name, found["settings"])
                mean, doubt = np.mean(reached), np.std(reached) / math.sqrt(len(reached))
                means[who].append(float(mean))
                print(
                    f"{name}, seed {seed}, {who}: {mean:.4g} ± {doubt:.2g}, {found['trials']} "
                    f"trials in {found['seconds']:.1f} s, {found['settings']}",
                    flush=True,
                )
        for who, values in means.items():
            print(f"{name}, {who}: mean {np.mean(values):.4g}, worst {max(values):.4g}", flush=True)


if __name__ == "__main__":
    main()
