"""A plan waits for its owner's yes, where the policy says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import POLICY, Hospitals, hospitals

from fedveil.cli import main
from fedveil_federation.deploy import approvals, hub_service


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hospitals]:
    monkeypatch.setattr(hub_service, "_OWNERS", 0.0)
    found = hospitals(tmp_path, POLICY + "\n[ask]\napprove = true\n")
    found.meet()
    yield found
    found.close()


def asked(made: Hospitals, capsys: Any, site: str, *words: str) -> Any:
    home = str(made.homes[site].path)
    assert main(["site", "approve", "--home", home, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_begins_when_all_owners_have_said_yes_and_each_run_asks_anew(
    made: Hospitals, capsys: Any
) -> None:
    made.queue("first")
    service = made.service()
    for site in made.homes:
        service.step()
        assert service.queue.ended("first") is None
        assert "owner" in service.queue.waiting("first")
        ((name, words),) = asked(made, capsys, site)["waiting"].items()
        assert "dp-sgd" in words["what for"]
        assert "epsilon 15" in words["cost"] or "epsilon 14.9" in words["cost"]
        asked(made, capsys, site, "--plan", name)
    made.start("east")  # a yes outlasts a restart
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    assert asked(made, capsys, "north")["waiting"] == {}
    made.queue("second")
    service.step()
    assert service.queue.ended("second") is None
    assert [sum(home.store().ledger.runs().values()) for home in made.homes.values()] == [3] * 3


def test_a_hub_that_asks_without_end_fills_no_disk(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(approvals, "_MOST", 2)
    service = made.service()
    for rounds in (1, 2, 3):
        made.queue(f"run-{rounds}", training__rounds=rounds)
        service.step()
        job = service.queue.next()
        if job is not None:
            service.queue.end(job, "stopped")
    assert len(asked(made, capsys, "north")["waiting"]) == 2
    ended = service.queue.ended("run-3")
    assert ended is not None
    assert ended["outcome"] == "refused"


def test_a_yes_is_to_a_plan_that_waits(made: Hospitals, capsys: Any) -> None:
    home = str(made.homes["north"].path)
    assert main(["site", "approve", "--home", home, "--plan", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
