"""Persons where whole clients are protected, and dealings that nobody has proved.

A person may be at several clients. Hold-outs and caps by person let one client's rows decide which
rows of others count, and how many clients there are: nothing is certified for clients then.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedveil as fv
from fedveil.data.assignment import Assignment, offsets_of
from fedveil.data.federation import Federation
from fedveil.tune.estimator import DPFedClassifier


def clients_with_persons(**settings: Any) -> Federation:
    draw = np.random.default_rng(0)
    owners = np.array([f"c{i:02}" for i in range(40) for _ in range(12)])
    return Federation.from_arrays(
        draw.normal(size=(480, 2)).astype(np.float32),
        draw.integers(0, 2, 480),
        owners,
        persons=np.array([f"p{i % 160}" for i in range(480)]),
        task="classification",
        classes=2,
        **settings,
    )


def planned(data: Federation) -> fv.Plan:
    local = fv.LocalTraining(fv.LearningRate(1.0), steps=1)
    method = fv.dp_fedavg(rounds=1, cohort=fv.CohortRule(rate=1.0), local=local, clip=fv.Clip(0.5))
    return fv.plan(method, data, fv.build("logistic", data), budget=fv.Budget(epsilon=4))


@pytest.mark.parametrize("settings", [{}, {"records_per_person": 2, "test_fraction": 0.0}])
def test_clients_are_not_certified_where_persons_choose_rows(settings: dict[str, Any]) -> None:
    guarantee = planned(clients_with_persons(**settings)).guarantee
    assert guarantee is not None
    assert guarantee.unit == "client"
    assert not guarantee.certified
    assert "privacy.unit" in guarantee.reason


def test_persons_given_to_an_estimator_are_protected() -> None:
    """Also where there are clients enough to hide among."""
    draw, rows = np.random.default_rng(0), 600
    inputs = draw.normal(size=(rows, 2))
    groups = np.array([f"h{i % 40}" for i in range(rows)])
    persons = np.array([f"p{i % 100}" for i in range(rows)])  # each in five groups
    number = {"type": "number", "min": -3, "max": 3}
    settings = {
        "training.rounds": 1,
        "training.local_steps": 1,
        "training.learning_rate": 0.1,
        "privacy.clip_norm": 0.5,
    }
    made = DPFedClassifier(classes=[0, 1], schema={"x0": number, "x1": number}, settings=settings)
    try:
        made.fit(inputs, (inputs[:, 0] > 0).astype(int), groups, persons=persons)
    except ValueError:
        return
    assert made.guarantee_.unit == "person"


@dataclass(frozen=True)
class ByLabel:
    """Deal rows sorted by label, as `SortedSlices` does."""

    clients: int

    def assign(self, labels: Any, owners: object, seed: int) -> Assignment:
        rows = np.argsort(labels, kind="stable")
        each = len(rows) // self.clients
        return Assignment(rows[: each * self.clients], offsets_of(np.full(self.clients, each)))


@pytest.mark.parametrize("partition", [ByLabel(4), fv.SortedSlices(clients=4)], ids=str)
def test_a_dealing_by_label_is_not_certified_whoever_wrote_it(partition: Any) -> None:
    draw = np.random.default_rng(0)
    data = Federation.from_arrays(
        draw.normal(size=(120, 3)).astype(np.float32),
        draw.integers(0, 2, 120),
        partition=partition,
        task="classification",
        classes=2,
        test_fraction=0.0,
    )
    guarantee = planned(data).guarantee
    assert guarantee is not None
    assert not guarantee.certified
