"""A run pays for rounds that can be released: it waits for sites, and stops in time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.hospitals import SITES, Hospitals, hospitals

from fedveil_federation import client_events
from fedveil_federation.cli import federation as commands
from fedveil_federation.deploy import examiner, hub
from fedveil_federation.deploy.hub_service import HubService

ROUNDS = 3


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hospitals]:
    monkeypatch.setattr(hub, "_BACK_OFF", 0.001)
    found = hospitals(tmp_path)
    found.meet()
    found.queue()
    yield found
    found.close()


class Pause:
    """Stands for the clock of a hub that waits, and lets something happen meanwhile."""

    def __init__(self, after: int, then: Callable[[], object]) -> None:
        self.left, self._then = after, then

    def wait(self, seconds: float) -> None:
        self.left -= 1
        if self.left == 0:
            self._then()


def rounds_of(made: Hospitals) -> list[dict[str, Any]]:
    path = made.hub.runs / "first" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def paid(made: Hospitals) -> list[int]:
    return [sum(made.homes[site].store().ledger.runs().values()) for site in SITES]


def waiting(service: HubService, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For whom the run has waited, as it was told."""
    said, tell = list[str](), service.queue.wait

    def told(name: str, reason: str) -> None:
        said.extend(filter(None, [reason]))
        tell(name, reason)

    monkeypatch.setattr(service.queue, "wait", told)
    return said


def started(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Let something happen as soon as all sites have accepted a plan."""
    start = hub.Hub.start

    def start_and(self: hub.Hub, *words: Any) -> Any:
        run = start(self, *words)
        then()
        return run

    monkeypatch.setattr(hub.Hub, "start", start_and)


def test_a_run_waits_for_a_site_whose_disk_is_full(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is spent meanwhile, and all rounds are released once there is room."""
    full, service = {"south"}, made.service()

    def allocate(file: int, start: int, size: int) -> None:
        if any(str(made.homes[site].path) in os.readlink(f"/proc/self/fd/{file}") for site in full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    service._pause = Pause(3, full.clear)  # type: ignore[assignment]
    said = waiting(service, monkeypatch)
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    assert [one["dropouts"] for one in rounds_of(made)] == [{"cohort": 3, "survivors": 3}] * ROUNDS
    assert paid(made) == [ROUNDS] * 3
    assert said
    for reason in said:  # names the site, and no file of its owner
        assert reason.startswith("south: ")
        assert str(made.folder) not in reason
        assert "north" not in reason


def test_a_run_waits_for_a_site_that_was_restarted_with_another_version(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, known = made.service(), examiner.version
    play = hub.Hub.rounds

    def upgraded_after_one(self: hub.Hub, run: Any, *words: Any) -> Iterator[Any]:
        for report in play(self, run, *words):
            yield report
            if report.round_number == 1:
                monkeypatch.setattr(examiner, "version", lambda name: "9.9.9")
                made.start("east")

    monkeypatch.setattr(hub.Hub, "rounds", upgraded_after_one)
    mended = Pause(4, lambda: monkeypatch.setattr(examiner, "version", known))
    service._pause = mended  # type: ignore[assignment]
    said = waiting(service, monkeypatch)
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    lost = [one["round"] for one in rounds_of(made) if one["dropouts"].get("not_released")]
    assert lost in ([], [2])  # it had joined the second round when it was ended
    assert any("9.9.9" in reason for reason in said)


def test_a_run_that_a_site_can_no_longer_be_in_costs_nothing_more(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan has the key for masks that the site had before it was restored."""
    service, play = made.service(), hub.Hub.rounds

    def restored_after_one(self: hub.Hub, run: Any, *words: Any) -> Iterator[Any]:
        for report in play(self, run, *words):
            yield report
            if report.round_number == 1:
                made.end("east")
                made.homes["east"].store().renew("fedveil/hospitals")
                made.start("east")

    monkeypatch.setattr(hub.Hub, "rounds", restored_after_one)
    stop = Pause(4, lambda: service.queue.stop("first"))
    service._pause = stop  # type: ignore[assignment]
    said = waiting(service, monkeypatch)
    service.step()
    assert service.queue.ended("first") == {"outcome": "stopped", "reason": ""}
    assert any("east: the plan has a key for masks" in reason for reason in said)
    lost = [one["round"] for one in rounds_of(made) if one["dropouts"].get("not_released")]
    assert lost in ([], [2])  # it had joined the second round when it was ended


def test_a_run_stops_and_keeps_its_rounds_when_none_is_released(
    made: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A store that fails only when it is written to: the site says that it could take part."""
    append, store = client_events.Events.append, made.homes["south"].path / "store.db"

    def fails(self: Any, *args: Any) -> int:
        if self._path == store:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return append(self, *args)

    started(monkeypatch, lambda: monkeypatch.setattr(client_events.Events, "append", fails))
    service = made.service()
    service._pause = Pause(0, lambda: None)  # type: ignore[assignment]
    job = service.queue.next()
    assert job is not None
    service.queue.end(replace(job, most_lost=2), "stopped")
    service.queue.again("first")
    service.step()
    ended = service.queue.ended("first")
    assert ended is not None
    assert ended["outcome"] == "stopped"
    assert "south" in ended["reason"]
    lines = rounds_of(made)
    assert len(lines) == 2 < ROUNDS
    # Who shared is told, and not who was there.
    assert [one["dropouts"]["survivors"] for one in lines] == [2, 2]
    assert paid(made) == [0, 0, 0]  # nothing had left
    document = commands._document(service.home, service.queue, "first")
    assert (document["released_rounds"], document["rounds"], document["planned_rounds"]) == (
        0,
        2,
        3,
    )
    monkeypatch.setattr(client_events.Events, "append", append)
    service.queue.again("first")
    service.step()
    assert service.queue.ended("first") == {"outcome": "done", "reason": ""}
    document = commands._document(service.home, service.queue, "first")
    assert (document["released_rounds"], document["rounds"]) == (1, 3)
    assert paid(made) == [1, 1, 1]
    text = service.counters.text()
    assert 'fedveil_hub_rounds_shared_total{site="north"} 3' in text
    assert 'fedveil_hub_rounds_shared_total{site="south"} 1' in text
