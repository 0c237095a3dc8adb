"""What a one-run audit costs beside the run: `python -m tests.audit.cost`.

Processor time of both in turns, the least of each; the run evaluates nothing, like the audit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedveil.cli.load_guarantee import recipe_of
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil_lab.audit.one_run import one_run

CASES: dict[str, tuple[str, list[str]]] = {
    "clients, digits": ("mix", []),
    "clients, MNIST (784 x 10, 500 clients)": (
        "dp-fedavg",
        ["data.source=mnist", "data.clients=500", "data.examples_per_client=50"],
    ),
    "records, digits": ("gradient-noise", ["training.rounds=200"]),
    "records, Adult": ("gradient-noise-adult", []),
}


def spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def trained(plan: Plan) -> None:
    run = Run(replace(plan, seed=0), every=10**9)
    try:
        for _ in run:
            pass
    finally:
        run.close()


def main() -> None:
    for title, (name, changes) in CASES.items():
        recipe = recipe_of(Path(name), changes)
        plan = plan_of(recipe, federation_of(recipe.data))
        one_run(plan, seconds=0.0)  # imports and caches
        turns = [
            (spent(lambda plan=plan: trained(plan)), spent(lambda plan=plan: one_run(plan)))
            for _ in range(3)
        ]
        run, audit = (min(column) for column in zip(*turns, strict=True))
        print(f"{title:40} run {run:.2f} s, audit {audit:.2f} s: {audit / run:.2f}", flush=True)


if __name__ == "__main__":
    main()
