"""A round costs what its cohort costs, not what the population would."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.sums import sum_of

from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.zoo import Linear

from .jobs import RULES, SHAPINGS, make_job

CLIENTS = 1_000_000


def crowd(records: int, features: int) -> Federation:
    inputs = np.zeros((CLIENTS * records, features), np.uint8)
    examples = Examples(inputs, np.zeros(CLIENTS * records, np.int64))
    offsets = np.arange(CLIENTS + 1, dtype=np.int64) * records
    few = Examples(inputs[:1], examples.targets[:1])
    return Federation(examples, offsets, few, Task.CLASSIFICATION, 2, verified=True)


@pytest.mark.parametrize("engine", ["algebra", "mlp", "generic", "sequential"])
def test_a_round_allocates_nothing_of_the_size_of_the_population(engine: str) -> None:
    module = Linear(3, 2)
    job = make_job("softmax", RULES["two epochs, weight decay"], SHAPINGS["clip"])
    job = replace(job, federation=crowd(2, 3), module=module, layout=layout_of(module))
    running, start = build_engine(job, engine), flatten(module)
    cohort = np.random.default_rng(0).choice(CLIENTS, 50, replace=False)
    sum_of(running, RoundRequest(start, cohort, 0))
    tracemalloc.start()
    sum_of(running, RoundRequest(start, cohort, 1))
    _, peak = tracemalloc.get_traced_memory()  # numpy's arrays count
    tracemalloc.stop()
    assert peak < CLIENTS / 4


SCRIPT = """
import sys, numpy as np
from fedveil import (Budget, CohortRule, Examples, Federation, LearningRate, LocalTraining, Run,
                     Task, dp_fedavg)
from fedveil.training.models.zoo import Linear
from fedveil.planning.plan import plan
from fedveil.privacy.clipping import Clip
from tests.engines.sums import sum_of
clients, directory = 300_000, sys.argv[1]
if directory == "memory":
    inputs = np.empty((clients * 10, 105), np.float32)
    inputs[:] = np.random.default_rng(0).random(105, dtype=np.float32)
    examples = Examples(inputs, np.arange(clients * 10) % 2)
    offsets = np.arange(clients + 1, dtype=np.int64) * 10
    few = Examples(inputs[:100], examples.targets[:100])
    federation = Federation(examples, offsets, few, Task.CLASSIFICATION, 2)
    if len(sys.argv) > 2:
        federation.save(sys.argv[2])
else:
    federation = Federation.open(directory)
local = LocalTraining(LearningRate(0.1), epochs=1, batch_size=10)
method = dp_fedavg(rounds=3, cohort=CohortRule(size=10_000), local=local, clip=Clip(1.0))
run = Run(plan(method, federation, Linear(105, 2), budget=Budget(epsilon=4.0), seed=1), every=9)
run.finish()
status = open("/proc/self/status").read()
read = lambda name: int(status.split(name + ":")[1].split()[0]) * 1024
train = federation.train
print(train.inputs.nbytes + train.targets.nbytes, read("VmHWM"), read("RssAnon"))
"""


@pytest.mark.slow
def test_memory_stays_near_that_of_the_data_and_below_it_for_maps(tmp_path: Path) -> None:
    """300,000 clients with 10 records of 105 features, cohorts of 10,000."""

    def measure(*arguments: str) -> tuple[int, int, int]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
        )
        data, peak, private = (int(word) for word in done.stdout.split())
        return data, peak, private

    saved = str(tmp_path / "saved")
    data, peak, _ = measure("memory", saved)
    assert peak <= 1.5 * data
    data, _, private = measure(saved)
    assert private <= 0.5 * data
