"""Sites and hubs that end at any leg: the run goes on or resumes, and nothing is paid twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedveil.deploy.envelope import unseal
from fedveil.deploy.guard import Guard
from fedveil.run.directory import RunDirectory
from tests.deploy.world import World, facts_of, recipe_of, world

FOUR = {"aggregation__max_dropout": 0.25, "evaluation__every": 1}


@pytest.fixture
def four(tmp_path: Path) -> Iterator[World]:
    made = world(tmp_path, sites=4)
    yield made
    made.close()


class Dying:
    """A site that ends when a request of some kind reaches it, before it answers or after."""

    def __init__(self, made: World, site: str, kind: str, *, after: bool) -> None:
        self.made, self.site, self.kind, self.after = made, site, kind, after
        self.deaths = 0
        made.courier.detach(site)
        made.courier.attach(site, self.answer)

    @property
    def guard(self) -> Guard:
        return self.made.guards[self.site]

    def answer(self, frame: bytes) -> bytes:
        kind = unseal(frame, [self.made.members.hub]).header["kind"]
        if kind == self.kind and not self.deaths:
            self.deaths += 1
            if self.after:
                self.guard.answer(frame)
            self.restart()
        return self.guard.answer(frame)

    def restart(self) -> None:
        """What is in memory is lost, what is in the store stays."""
        self.made.guards[self.site].close()
        fresh = World(**{**vars(self.made), "courier": type(self.made.courier)(), "guards": {}})
        self.made.guards[self.site] = fresh.guard(self.site)
        fresh.courier.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["open", "train", "confirm", "unmask"])
def test_a_site_killed_at_any_leg_comes_back(
    kind: str, after: bool, four: World, tmp_path: Path
) -> None:
    dying = Dying(four, "site-3", kind, after=after)
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    first, second = list(run)
    assert dying.deaths == 1
    assert first.dropouts is not None
    assert not first.dropouts.not_released
    # Killed before it was asked to join, it is told the plan again and misses nothing.
    lost = (kind, after) in (("open", True), ("train", False), ("train", True))
    assert first.dropouts.survivors == (3 if lost else 4)
    assert second.dropouts is not None
    assert second.dropouts.survivors == 4
    for guard in four.guards.values():
        assert list(guard.store.ledger.runs().values()) == [2]


def test_too_few_sites_release_nothing_and_are_not_charged(tmp_path: Path) -> None:
    made = world(tmp_path)  # three of three are needed
    try:
        dying = Dying(made, "site-1", "open", after=True)
        run = made.hub().start(recipe_of(), facts_of(made.data), tmp_path / "run")
        rounds = iter(run)
        refused = next(rounds)
        assert refused.dropouts is not None
        assert "need 3" in refused.dropouts.not_released
        assert torch.equal(run.state.weights, run.plan.start)
        # The others gave nothing away: what they had reserved is theirs again.
        assert made.guards["site-0"].store.ledger.runs() == {}
        assert list(dying.guard.store.ledger.runs().values()) == [1]  # it cannot tell any more
        last = next(rounds)
        assert last.dropouts is not None
        assert not last.dropouts.not_released
        assert not torch.equal(run.state.weights, run.plan.start)
    finally:
        made.close()


def test_a_killed_hub_resumes_and_draws_no_round_again(four: World, tmp_path: Path) -> None:
    recipe = recipe_of(**FOUR, training__rounds=4)
    run = four.hub().start(recipe, facts_of(four.data), tmp_path / "run")
    rounds = iter(run)
    next(rounds)
    run.reserve(1)  # the second round is begun, and the hub ends
    assert isinstance(run.directory, RunDirectory)
    run.directory.close()

    again = four.hub().resume(tmp_path / "run")
    assert again.state.rounds == 1
    assert torch.equal(again.state.weights, run.state.weights)
    assert again.next_round == 2
    assert [report.round_number for report in again] == [3, 4]
    for guard in four.guards.values():
        assert list(guard.store.ledger.runs().values()) == [3]
    assert again.guarantee is not None
    assert again.guarantee.certified


def test_a_second_run_of_the_same_federation_goes_on_with_the_numbers(
    four: World, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / name)
        assert all(report.dropouts and not report.dropouts.not_released for report in run)
        assert isinstance(run.directory, RunDirectory)
        run.directory.close()
    assert sorted(four.guards["site-0"].store.ledger.runs().values()) == [2, 2]


def test_training_longer_than_a_request_is_asked_for_again(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked = threading.Event(), []
    trained = Guard._trained

    def slow(self: Guard, *args: object) -> object:
        assert gate.wait(60)
        return trained(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Guard, "_trained", slow)
    guard = four.guards["site-2"]
    guard._patience = 0.01
    four.courier.detach("site-2")

    def answer(frame: bytes) -> bytes:
        asked.append(unseal(frame, [four.members.hub]).header["kind"])
        if asked.count("train") == 3:
            gate.set()
        return guard.answer(frame)

    four.courier.attach("site-2", answer)
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    report = next(iter(run))
    assert report.dropouts is not None
    assert report.dropouts.survivors == 4
    assert asked.count("train") >= 3
