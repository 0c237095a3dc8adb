"""Moments: what one unit can do to the release, what it costs, and what comes out."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

import fedveil as fv
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.federation import Task
from fedveil.methods.moments import SecondMoments, moments
from fedveil.run.run import job_of
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest, summed

TASKS = [Task.REGRESSION, Task.CLASSIFICATION, Task.MULTI_LABEL]
NASTY = (0.0, -0.0, 1e-38, 3e38, -3e38, 1.0, 1e4)


def statistic(task: Task, *, unit: Unit = Unit.RECORD, inputs: int = 4, outputs: int = 3) -> Any:
    width = 1 if task is Task.REGRESSION else outputs
    return SecondMoments(inputs, task, width, math.sqrt(1 + inputs), 3.0, unit)


def sent(compute: SecondMoments, inputs: Any, targets: Any) -> Any:
    """What a client with these records, all of one person, sends in grid steps."""
    return compute(compute.prepare(inputs, targets), np.array([0, len(inputs)]))


def records(task: Task, draw: np.random.Generator, count: int, inputs: int = 4) -> Any:
    """Random records, some of them nasty: one-hot, huge, tiny, opposite to each other."""
    rows = draw.normal(size=(count, inputs)) * 10.0 ** draw.integers(-3, 4, (count, 1))
    odd = draw.random(rows.shape) < 0.2
    rows[odd] = draw.choice(NASTY, odd.sum())
    if draw.random() < 0.5:
        rows = np.eye(inputs)[draw.integers(0, inputs, count)] * draw.choice([-1.0, 1.0])
    if task is Task.REGRESSION:
        targets = draw.choice([-1e30, -3.0, 0.1, 3.0, 50.0], count).astype(np.float32)
    elif task is Task.CLASSIFICATION:
        targets = draw.integers(0, 3, count)
    else:
        targets = draw.integers(0, 2, (count, 3))
    return rows.astype(np.float32), targets


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("seed", range(6))
def test_no_unit_moves_the_release_further_than_is_accounted(
    task: Task, unit: Unit, seed: int
) -> None:
    """Records, or persons and clients with means of theirs, against the docstring's closed form."""
    draw = np.random.default_rng(seed)
    compute, target = statistic(task, unit=unit), 0.75
    most = 2 if unit is Unit.RECORD else 9
    longest = 5 * (1 + target**2 / 2) + 2.0**-12
    for _ in range(60):
        one, two = (records(task, draw, int(draw.integers(1, most))) for _ in "ab")
        first, second = (sent(compute, *each) * compute.granularity for each in (one, two))
        assert np.linalg.norm(first) <= longest
        assert np.linalg.norm(first - second) <= math.sqrt(2) * longest


def test_the_bound_is_reached() -> None:
    """Two records that are as far apart as the bound allows: it cannot be made smaller."""
    compute = SecondMoments(64, Task.REGRESSION, 1, 1e-6, 1.0, Unit.RECORD)
    cosine = 0.75**2 / 2  # where the distance is largest
    base, other = np.zeros(64), np.zeros(64)
    base[:32], other[32:] = 1.0, 1.0
    far = cosine * base + math.sqrt(1 - cosine**2) * other
    rows = np.stack([base, far]).astype(np.float32)
    first, second = (
        sent(compute, rows[i : i + 1], np.array([sign])) * compute.granularity
        for i, sign in ((0, 1.0), (1, -1.0))
    )
    reached = np.linalg.norm(first - second) / (math.sqrt(2) * 5 * (1 + 0.75**2 / 2))
    assert 0.98 < reached <= 1


@pytest.mark.parametrize("task", TASKS)
def test_a_client_adds_up_the_means_of_its_persons(task: Task) -> None:
    draw = np.random.default_rng(2)
    rows, targets = records(task, draw, 40)
    compute, spans = statistic(task, unit=Unit.PERSON), np.array([0, 1, 4, 5, 25, 40])
    expected = sum(
        sent(compute, rows[start:stop], targets[start:stop]) for start, stop in pairwise(spans)
    )
    assert np.array_equal(compute(compute.prepare(rows, targets), spans), expected)


@pytest.mark.parametrize("task", TASKS)
def test_sums_do_not_depend_on_their_order(task: Task) -> None:
    """Bit for bit, in one piece or in many, which is what keeps clients apart."""
    draw = np.random.default_rng(1)
    rows, targets = records(task, draw, 5000)
    compute, order = statistic(task), draw.permutation(5000)
    whole = sent(compute, rows, targets)
    parts = sum(sent(compute, rows[i::7], targets[i::7]) for i in range(7))
    assert np.array_equal(whole, sent(compute, rows[order], targets[order]))
    assert np.array_equal(whole, parts)


def table(rows: int, clients: int, task: Task, unit: Unit = Unit.PERSON) -> fv.Federation:
    """A linear truth with a little noise, in inputs of length about one; three rows a person, where
    not whole clients are protected."""
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(rows, 5)).astype(np.float32)
    truth = inputs @ np.array([1.0, -2.0, 0.5, 0.0, 1.5]) / 3 + 0.3
    noisy = truth + 0.1 * draw.normal(size=rows)
    targets: npt.NDArray[Any] = noisy.astype(np.float32)
    if task is Task.CLASSIFICATION:
        targets = (noisy > 0.3).astype(np.int64)
    elif task is Task.MULTI_LABEL:
        targets = np.stack([noisy > 0, noisy > 0.5, inputs[:, 3] > 0], axis=1).astype(np.int64)
    classes = None if task is Task.REGRESSION else 2 if task is Task.CLASSIFICATION else 3
    owners = np.arange(rows) % clients
    persons = None if unit is Unit.CLIENT else np.arange(rows) // 3
    return fv.Federation.from_arrays(
        inputs, targets, owners, persons=persons, task=task, classes=classes
    )


def trained(method: fv.Method, federation: fv.Federation, epsilon: float, seed: int | None) -> Any:
    name = "linear" if federation.task is Task.REGRESSION else "logistic"
    plan = fv.plan(
        method, federation, fv.build(name, federation), budget=fv.Budget(epsilon), seed=seed
    )
    run = fv.Run(plan)
    run.finish()
    found = run.scores(), run.guarantee, run.model()
    run.close()
    return found


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("unit", "clients"), [(Unit.RECORD, 4), (Unit.PERSON, 4), (Unit.CLIENT, 2000)]
)
def test_a_linear_truth_is_found(task: Task, unit: Unit, clients: int) -> None:
    federation = table(16_000, clients, task, unit)
    scores, guarantee, _ = trained(moments(unit=unit), federation, 4.0, 0)
    assert guarantee.unit is unit
    assert guarantee.epsilon <= 4
    if task is Task.REGRESSION:
        assert scores.figures["rmse"] < 0.35 * scores.constant["rmse"]
    else:
        assert scores.figures["log_loss"] < 0.6 * scores.constant["log_loss"]


def test_without_noise_it_is_least_squares() -> None:
    """Hardly any noise: the coefficients of ordinary least squares."""
    federation = table(4000, 4, Task.REGRESSION)
    _, _, model = trained(moments(row_norm=8.0, target_bound=6.0), federation, 1e7, 0)
    inputs, targets = federation.train.inputs, federation.train.targets
    padded = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    expected = np.linalg.lstsq(padded, targets, rcond=None)[0]
    weight, bias = (parameter.detach().numpy().ravel() for parameter in model.parameters())
    assert np.concatenate([weight, bias]) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize(
    ("unit", "trust", "adjacency", "factor"),
    [
        (Unit.RECORD, Trust.CENTRAL, None, 1),
        (Unit.RECORD, Trust.CENTRAL, Adjacency.REPLACE, 2),
        (Unit.CLIENT, Trust.CENTRAL, Adjacency.ZERO_OUT, 1),
        (Unit.CLIENT, Trust.CENTRAL, Adjacency.REPLACE, 2),
        (Unit.CLIENT, Trust.DISTRIBUTED, Adjacency.REPLACE, 2),
        (Unit.RECORD, Trust.DISTRIBUTED, None, 1),
        (Unit.RECORD, Trust.DISTRIBUTED, Adjacency.REPLACE, 2),
        (Unit.PERSON, Trust.DISTRIBUTED, None, 1),
        (Unit.PERSON, Trust.CENTRAL, Adjacency.REPLACE, 2),
    ],
)
def test_it_costs_one_gaussian(
    unit: Unit, trust: Trust, adjacency: Adjacency | None, factor: int
) -> None:
    """Closed form: noise z L against a unit that moves the sum by L, or sqrt(2) L if replaced.
    Discrete shares cost what concentrated differential privacy says, which is a little more."""
    federation = table(900, 30, Task.REGRESSION, unit)
    method = moments(unit=unit, trust=trust, adjacency=adjacency)
    plan = fv.plan(
        method,
        federation,
        fv.build("linear", federation),
        budget=fv.Budget(noise_multiplier=3.0, delta=1e-5),
    )
    assert plan.guarantee is not None
    exact = get_epsilon_gaussian(3.0 / math.sqrt(factor), 1e-5)
    share = 1.2 if trust is Trust.DISTRIBUTED else 1.001
    assert exact <= plan.guarantee.epsilon <= share * exact
    assert plan.guarantee.certified, plan.guarantee.reason


@pytest.mark.parametrize(
    ("unit", "clients"),
    [(Unit.RECORD, 3), (Unit.RECORD, 1), (Unit.PERSON, 3), (Unit.PERSON, 1), (Unit.CLIENT, 9)],
)
def test_a_protected_run_is_certified_and_isolated(unit: Unit, clients: int) -> None:
    """Another client's records, however odd, leave a client's integers as they were."""
    trust = Trust.LOCAL if clients == 1 else None
    federation = table(270, clients, Task.CLASSIFICATION, unit)
    _, guarantee, _ = trained(moments(unit=unit, trust=trust), federation, 4.0, None)
    assert guarantee.certified, guarantee.reason
    if clients == 1:
        return
    inputs = np.array(federation.train.inputs)
    inputs[federation.offsets[1] :] *= 1e30
    other = fv.Federation(
        replace(federation.train, inputs=inputs),
        federation.offsets,
        federation.test,
        federation.task,
        federation.classes,
    )
    found = []
    for each in (federation, other):
        plan = fv.plan(
            moments(unit=unit), each, fv.build("logistic", each), budget=fv.Budget(epsilon=4.0)
        )
        job = job_of(plan, plan.randomness)
        request = RoundRequest(plan.start, np.array([0]), 0)
        found.append(summed(build_engine(job), job, request).total)
    assert torch.equal(*found)


def test_masked_sums_are_those_in_the_open() -> None:
    """Under masks the same integers are summed, modulo 2^64: the same model, bit for bit."""
    federation, found = table(300, 3, Task.REGRESSION), []
    for mode in ("ideal", "masked"):
        method = replace(moments(), aggregation=fv.Aggregation(mode))
        found.append(trained(method, federation, 4.0, 3)[2].state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rounds": 2}, ConfigError),
        ({"cohort": fv.CohortRule(rate=0.5)}, ConfigError),
        ({"smoothing": fv.Smoothing(1.0)}, ConfigError),
    ],
)
def test_what_no_proof_covers_cannot_be_built(change: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        replace(moments(), **change)


def test_what_is_refused() -> None:
    federation = table(300, 3, Task.REGRESSION)
    budget = fv.Budget(epsilon=4.0)
    with pytest.raises(PrivacyRefusal):
        moments(unit=Unit.RECORD, adjacency=Adjacency.ADD_REMOVE)
    for method, name in (
        (moments(unit=Unit.RECORD, trust=Trust.LOCAL), "linear"),
        (moments(unit=Unit.CLIENT, trust=Trust.LOCAL), "linear"),
        (moments(), "mlp"),
    ):
        with pytest.raises((PrivacyRefusal, ConfigError)):
            fv.plan(method, federation, fv.build(name, federation), budget=budget)
