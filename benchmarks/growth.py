"""How time and memory of a round grow with the cohort, the population and the model."""

from __future__ import annotations

import math
import os
from dataclasses import replace

from benchmarks.measure import Document, Effort, measure, summarise
from benchmarks.workloads import WORKLOADS, Workload

TABLE = Workload(
    "growth",
    "logistic regression, 105 features, 10 records a client, one full-batch step",
    model="logistic",
    inputs=(105,),
    outputs=2,
    clients=10_000,
    cohort=1_000,
    records=10,
    batch_size=10,
    epochs=1,
)
NETWORK = Workload(
    "growth",
    "network 100-h-10, 10 clients, 5 steps on batches of 20",
    model="mlp",
    inputs=(100,),
    outputs=10,
    clients=10,
    cohort=10,
    records=100,
    batch_size=20,
    epochs=1,
)
EFFORT = Effort(seconds=2.0, least=3, most=200, warm_up=2)

# Series, the size that grows, and the workload at that size.
Step = tuple[str, int, Workload]


def steps(quick: bool) -> list[Step]:
    cohorts = (10, 100, 1_000, 10_000)
    populations = (1_000, 10_000, 100_000, 1_000_000)[: 3 if quick else 4]
    widths = (1, 9, 90, 900, 9_000, 90_000)[: 5 if quick else 6]
    largest = populations[-1]
    return [
        *(("cohort", cohort, replace(TABLE, cohort=cohort)) for cohort in cohorts),
        *(("population", clients, replace(TABLE, clients=clients)) for clients in populations),
        ("cohort of 10,000 among", largest, replace(TABLE, clients=largest, cohort=10_000)),
        *(("parameters", 111 * h + 10, replace(NETWORK, hidden=(h,))) for h in widths),
    ]


def with_processes(growth: list[Document], rounds: list[Document]) -> list[Document]:
    """Growth, and one process against one on every core, among what was measured already."""
    processes = {"fedveil:sequential": 1, "fedveil:processes": os.cpu_count() or 1}
    return [step for step in growth if not step["series"].startswith("processes")] + [
        {"series": f"processes ({run['workload']})", "size": count, "data_mb": _data_mb(workload)}
        | run
        for name, workload in WORKLOADS.items()
        for system, count in processes.items()
        for run in rounds
        if (run["workload"], run["system"]) == (name, system)
    ]


def grow(step: Step) -> Document:
    """Measure fedveil at one step; `data_mb` is what the records themselves take."""
    series, size, workload = step
    document = summarise([measure(workload, "fedveil", EFFORT)])
    return {"series": series, "size": size, "data_mb": _data_mb(workload)} | document


def _data_mb(workload: Workload) -> float:
    of_record = math.prod(workload.inputs) * (8 if workload.sequence else 4) + 8
    return round(workload.clients * workload.records * of_record / 2**20, 1)
