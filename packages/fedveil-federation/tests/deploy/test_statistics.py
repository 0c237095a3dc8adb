"""Statistics across machines: right but for their noise, paid for, refused where not allowed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.hospitals import POLICY, Hospitals, hospitals

from fedveil.core.errors import PrivacyRefusal
from fedveil.data.federation import Federation
from fedveil_federation.deploy.hub import Hub
from fedveil_federation.deploy.hub_service import STATISTICS, HubJob
from fedveil_federation.deploy.plan_document import PlanDocument
from fedveil_federation.deploy.statistics import BINS, Statistics

ALLOWED = POLICY.replace(
    'units = ["record", "client"]',
    'units = ["record", "client"]\nstatistics = true\n[cohort]\ncolluders = 1',
)


def counted(made: Hospitals, epsilon: float, colluders: int = 1) -> dict[str, str]:
    made.meet()
    service = made.service()
    service.queue.put(HubJob("spread", {}, statistics=epsilon, colluders=colluders))
    service.step()
    ended = service.queue.ended("spread")
    assert ended is not None
    return ended


def asked_of(made: Hospitals, data: Federation, noise: float = 1.0) -> Statistics:
    facts = made.hub.agreement.facts((len(data.train),) * 3)
    return Statistics.about(facts, noise, 1e-6, 1, data.encoder)


def test_each_column_is_near_the_truth_and_in_every_ledger(tmp_path: Path) -> None:
    made = hospitals(tmp_path, ALLOWED, rows=600)
    try:
        assert counted(made, 2.0) == {"outcome": "done", "reason": ""}
        found: dict[str, Any] = json.loads((made.hub.runs / "spread" / STATISTICS).read_text())
        parts = [made.hub.agreement.rows(home.data) for home in made.homes.values()]
        truth = sum(asked_of(made, part).table(part) for part in parts)
        noise = found["noise"]
        told = np.concatenate(
            [np.array(one["by_class"]) for one in found["columns"].values()], axis=1
        )
        assert np.abs(told - truth).max() < 6 * noise
        assert 0 < np.abs(told - truth).mean() < 2 * noise
        assert abs(found["rows"] - 1830) < 6 * noise * np.sqrt(truth.size)
        age = np.concatenate([part.train.inputs[:, 0] for part in parts]) * 50 + 50
        assert abs(found["columns"]["age"]["mean"] - age.mean()) < 3
        assert abs(found["columns"]["age"]["quantiles"]["50%"] - np.median(age)) < 5
        guarantee = found["guarantee"]
        assert guarantee["certified"]
        assert 1.9 < guarantee["epsilon"] <= 2.0
        for home in made.homes.values():
            assert list(home.store().ledger.runs().values()) == [1]
            assert home.store().ledger.spent() <= 2.0 * 1.01
    finally:
        made.close()


@pytest.mark.parametrize(
    ("policy", "epsilon", "colluders", "reason"),
    [
        (POLICY, 1.0, 1, "no statistics of this site"),
        (ALLOWED, 30.0, 1, "at most 20 a run"),
        (ALLOWED, 1.0, 0, "it allows for 0 colluding sites, need 1"),
    ],
)
def test_they_are_refused_with_the_reason(
    policy: str, epsilon: float, colluders: int, reason: str, tmp_path: Path
) -> None:
    made = hospitals(tmp_path, policy)
    try:
        ended = counted(made, epsilon, colluders)
        assert ended["outcome"] == "refused"
        assert reason in ended["reason"]
        assert all(home.store().ledger.spent() == 0 for home in made.homes.values())
    finally:
        made.close()


def test_a_record_moves_no_more_than_what_is_paid_for(tmp_path: Path) -> None:
    """Any row at all adds one to one cell of each column, so replacing one moves two of each."""
    made = hospitals(tmp_path, ALLOWED)
    data = made.hub.agreement.rows(made.homes["north"].data)
    asked = asked_of(made, data)
    for strange in (np.nan, np.inf, -np.inf, 5.0, -5.0, 0.0, 1.0):
        inputs = data.train.inputs.copy()
        inputs[3] = strange
        other = replace(data, train=replace(data.train, inputs=inputs))
        moved = asked.table(other) - asked.table(data)
        assert moved.sum() == 0
        assert np.abs(moved).sum() <= 2 * asked.parts
        assert np.linalg.norm(moved) <= np.sqrt(2) * np.sqrt(asked.parts)


def test_less_may_be_spent_for_more_noise(tmp_path: Path) -> None:
    made = hospitals(tmp_path, ALLOWED)
    asked = asked_of(made, made.hub.agreement.rows(made.homes["north"].data))
    low, high = asked.within(0.5), asked.within(2.0)
    assert low.noise > 3 * high.noise
    assert 0.48 < low.guarantee().epsilon <= 0.5
    assert len(asked.columns[0].names) == BINS + 1


def test_a_table_that_no_honest_sites_make_is_refused(tmp_path: Path) -> None:
    made = hospitals(tmp_path, ALLOWED)
    data = made.hub.agreement.rows(made.homes["north"].data)
    asked = asked_of(made, data, noise=3.0)
    table = 3.0 * asked.table(data)
    assert asked.described(table, ("false", "true"))["rows"] == 3 * len(data.train)
    table[0, 0] += 10_000
    with pytest.raises(PrivacyRefusal, match="something else than counts"):
        asked.described(table, ("false", "true"))


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "no noise": ({"scoring": {"noise": 0.0, "colluders": 1, "columns": True}}, "noise must be"),
    "noise without a number": ({"scoring": {"colluders": 1, "columns": True}}, "scoring needs"),
    "fewer colluders": ({"scoring": {"noise": 9.0, "colluders": 0, "columns": True}}, "need 1"),
    "colluders below zero": (
        {"scoring": {"noise": 9.0, "colluders": -1, "columns": True}},
        "whole",
    ),
    "nobody honest": ({"scoring": {"noise": 9.0, "colluders": 3, "columns": True}}, "impossible"),
    "an understated epsilon": ({"epsilon": 0.1}, "this site computes"),
    "a smaller delta": ({"delta": 1e-9}, "this site computes"),
    "a delta that hides nothing": ({"delta": 0.3}, "delta 0.3, at most"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_hub_that_lies_about_them_is_refused(lie: str, tmp_path: Path, monkeypatch: Any) -> None:
    made = hospitals(tmp_path, ALLOWED)
    change, reason = LIES[lie]
    honest = Hub._document

    def lying(*args: Any) -> PlanDocument:
        return replace(honest(*args), **change)

    monkeypatch.setattr(Hub, "_document", lying)
    try:
        ended = counted(made, 3.0)
        assert ended["outcome"] == "refused"
        assert reason in ended["reason"], ended["reason"]
        assert all(home.store().ledger.spent() == 0 for home in made.homes.values())
    finally:
        made.close()
