"""The workloads are what the tables say, and the same arithmetic in every system."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch.utils.flop_counter import FlopCounterMode

import fedveil as fv
from benchmarks import models
from benchmarks.suite import SUITE, systems
from benchmarks.systems import SYSTEMS
from benchmarks.systems import fedveil as ours
from benchmarks.systems.floor import operations
from benchmarks.workloads import WORKLOADS, Workload, draw
from fedveil.training.engines.contract import RoundRequest

pytestmark = pytest.mark.slow  # of the benchmarks, which no user runs

SMALL = [replace(workload, clients=2, cohort=2) for workload in WORKLOADS.values()]


@pytest.mark.parametrize(
    ("name", "steps", "parameters"),
    [
        ("W1", 25, 7_850),
        ("W2", 1, 11),
        ("W2x12", 12, 11),
        ("W3", 10, 105 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
        ("W4", 30, 832 + 51_264 + 3136 * 512 + 512 + 512 * 62 + 62),
        ("W5", 10, 2_432 + 51_264 + 4096 * 512 + 512 + 512 * 10 + 10),
        ("W7", 1, 11_173_962),  # as published for ResNet-18 on CIFAR-10
    ],
)
def test_steps_and_parameters_are_those_of_the_table(
    name: str, steps: int, parameters: int
) -> None:
    workload = WORKLOADS[name]
    assert workload.steps == steps
    assert sum(p.numel() for p in models.build(workload).parameters()) == parameters


@pytest.mark.parametrize("workload", SMALL, ids=lambda w: w.name)
def test_fedveil_trains_the_same_function_as_the_peers(workload: Workload) -> None:
    own = ours.module(workload, ours.federation(workload))
    plain = models.build(workload)
    with torch.no_grad():
        for theirs, mine in zip(plain.parameters(), own.parameters(), strict=True):
            theirs.copy_(mine.normal_(std=0.05))
        inputs = torch.from_numpy(draw(workload).inputs[:4])
        torch.testing.assert_close(own(inputs), plain(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("workload", SMALL, ids=lambda w: w.name)
def test_every_process_draws_the_same_data(workload: Workload) -> None:
    there = Workload.from_json(workload.to_json())
    assert there == workload
    assert np.array_equal(draw(workload).inputs, draw(there).inputs)
    assert np.array_equal(draw(workload).targets, draw(there).targets)


@pytest.mark.parametrize("name", ["W1", "W2x12"])
def test_a_round_of_fedveil_is_the_peers_sgd_and_clipping(name: str) -> None:
    """Full batches, so that the order of records does not matter."""
    workload = replace(WORKLOADS[name], clients=4, cohort=4, batch_size=WORKLOADS[name].records)
    data = ours.federation(workload)
    plan = fv.plan(
        ours.method(workload, 1),
        data,
        models.build(workload),
        budget=fv.Budget(noise_multiplier=1.0),
        seed=0,
    )
    total = sum_of(fv.Run(plan).engine, RoundRequest(plan.start, np.arange(4), 0)).total

    expected = torch.zeros_like(plan.start)
    for batches in models.client_batches(workload, draw(workload)):
        module = models.build(workload)
        optimizer = torch.optim.SGD(module.parameters(), lr=workload.learning_rate)
        for inputs, targets in batches * workload.epochs:
            optimizer.zero_grad()
            models.loss(workload, module(inputs), targets).backward()
            optimizer.step()
        update = torch.nn.utils.parameters_to_vector(module.parameters()).detach() - plan.start
        expected += update * min(1.0, workload.clip_norm / float(update.norm()))
    torch.testing.assert_close(total.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["W1", "W3", "W4", "W5", "W7"])
def test_the_floor_counts_what_torch_counts(name: str) -> None:
    workload = replace(WORKLOADS[name], clients=1, cohort=1, epochs=1)
    workload = replace(workload, records=workload.batch_size)
    (batches,) = models.client_batches(workload, draw(workload))
    module = models.build(workload)
    with FlopCounterMode(display=False) as counter:
        models.loss(workload, module(batches[0][0]), batches[0][1]).backward()
    assert operations(workload) == counter.get_total_flops()


def test_the_floor_of_the_lstm_is_its_matrix_products() -> None:
    workload = replace(WORKLOADS["W6"], clients=1, cohort=1, epochs=1, records=50)
    positions = 50 * 80
    forward = positions * (1024 * (8 + 256) + 1024 * (256 + 256) + 256 * 80)
    assert operations(workload) == 2 * 3 * forward


def test_every_workload_is_measured_with_known_systems() -> None:
    assert set(SUITE) == set(WORKLOADS)
    for name in SUITE:
        assert set(SUITE[name]) <= set(SYSTEMS)
        assert "fedveil" in systems(name, quick=True)
