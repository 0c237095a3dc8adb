"""A hub that is killed at any leg goes on in the round where it stood, to the very same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.world import POLICY, World, facts_of, recipe_of, world

from benchmarks.deploy_engines import MemoryCourier
from fedveil.core.randomness import Randomness
from fedveil.core.units import Trust
from fedveil.planning.assemble import plan_of
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil_federation.deploy.courier import Answer, Courier, Unreachable
from fedveil_federation.deploy.envelope import claimed

SEED = 11
FOUR = {"aggregation__max_dropout": 0.25, "training__rounds": 3}
LOCAL = {
    "training__method": "client-noise",
    "training__batch_size": None,
    "aggregation__secure": None,
    "training__rounds": 3,
}


class Killed(BaseException):
    """As nothing in the hub catches it: the process is gone."""


class Deadly(Courier):
    """Kills the hub when it asks for something for the n-th time: before it asks, or after."""

    def __init__(self, inner: Courier) -> None:
        self.inner = inner
        self.kind, self.after, self.asked, self.at = "", False, 0, 0

    def aim(self, kind: str, after: bool, at: int = 2) -> None:
        self.kind, self.after, self.asked, self.at = kind, after, 0, at

    def attach(self, site: str, answer: Answer) -> None:
        self.inner.attach(site, answer)

    def detach(self, site: str) -> None:
        self.inner.detach(site)

    def sites(self) -> tuple[str, ...]:
        return self.inner.sites()

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        kind = claimed(next(iter(frames.values()))).header["kind"]
        self.asked += kind == self.kind
        deadly = kind == self.kind and self.asked == self.at
        if deadly and not self.after:
            raise Killed
        replies = self.inner.ask(frames, seconds)
        if deadly:
            raise Killed
        return replies

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Callable[..., tuple[World, Run, dict[str, Any]]]]:
    """A run whose hub was killed in its second round, or in the first when it was to be opened:
    sites join the others while they unmask."""
    made: list[World] = []

    def run_until(kind: str, after: bool, **changed: Any) -> tuple[World, Run, dict[str, Any]]:
        courier = Deadly(MemoryCourier())
        made.append(world(tmp_path, sites=4, seed=SEED, courier=courier))
        courier.aim(kind, after, 1 if kind == "open" else 2)
        run = made[0].hub().start(recipe_of(**changed), facts_of(made[0].data), tmp_path / "run")
        with pytest.raises(Killed):
            run.finish()
        assert run.directory is not None
        run.directory.close()
        return made[0], run, changed

    yield run_until
    for one in made:
        one.close()


def check_same(made: World, again: Run, changed: dict[str, Any], monkeypatch: Any) -> None:
    """Nothing lost, nothing paid twice, and the weights of a run that nobody has killed."""
    again.finish()
    assert again.state.rounds == 3
    for guard in made.guards.values():
        assert list(guard.store.ledger.runs().values()) == [3]
    monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(SEED)))
    alone = Run(plan_of(recipe_of(**changed), made.data))
    alone.finish()
    assert torch.equal(again.state.weights, alone.state.weights)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["open", "train", "confirm", "unmask"])
def test_a_hub_killed_at_any_leg_goes_on(
    kind: str, after: bool, killed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run, changed = killed(kind, after, **FOUR)
    again = made.hub().resume(tmp_path / "run")
    assert again.unfinished == run.state.rounds == (kind != "open")
    check_same(made, again, changed, monkeypatch)
    again.close()
    assert list((tmp_path / "run" / "rounds").iterdir()) == []
    assert all(one.not_released == "" and one.survivors == 4 for one in again.dropouts.values())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_hub_killed_while_it_collects_noisy_uploads_goes_on(
    after: bool, killed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, changed = killed("train", after, **LOCAL)
    check_same(made, made.hub().resume(tmp_path / "run"), changed, monkeypatch)


def test_a_site_restarted_while_the_hub_was_down_has_left_that_round_alone(
    killed: Any, tmp_path: Path
) -> None:
    made, _, _ = killed("train", False, **FOUR)
    made.guard("site-3")
    again = made.hub().resume(tmp_path / "run")
    second, third = list(again)
    assert second.dropouts is not None
    assert third.dropouts is not None
    assert (second.dropouts.survivors, third.dropouts.survivors) == (3, 4)
    for guard in made.guards.values():
        assert list(guard.store.ledger.runs().values()) == [3]


def test_a_hub_killed_before_its_round_was_logged_begins_it_again(
    killed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, changed = killed("open", False, **FOUR)
    for log in (tmp_path / "run" / "rounds").iterdir():
        log.unlink()
    check_same(made, made.hub().resume(tmp_path / "run"), changed, monkeypatch)


def test_a_round_whose_log_is_lost_is_not_answered_again(killed: Any, tmp_path: Path) -> None:
    made, _, _ = killed("open", True, **FOUR)
    for log in (tmp_path / "run" / "rounds").iterdir():
        log.unlink()
    for site in made.members.names:
        made.guard(site)
    first, *others = list(made.hub().resume(tmp_path / "run"))
    assert first.dropouts is not None
    assert "0 of 4 devices shared" in first.dropouts.not_released
    assert [one.dropouts and one.dropouts.survivors for one in others] == [4, 4]
    for guard in made.guards.values():
        assert list(guard.store.ledger.runs().values()) == [3]


def test_a_trusted_hub_that_is_killed_draws_no_noise_again(tmp_path: Path) -> None:
    courier = Deadly(MemoryCourier())
    allow = {**POLICY["allow"], "trust": ["central"]}
    policy = {**POLICY, "allow": allow}
    made = world(tmp_path, sites=4, courier=courier, policy=policy, trust=Trust.CENTRAL)
    try:
        courier.aim("train", True)
        central = {"training__method": "dp-fedavg", "privacy__trust": "central"}
        recipe = recipe_of(**central, aggregation__secure=None, training__rounds=3)
        run = made.hub().start(recipe, facts_of(made.data), tmp_path / "run")
        with pytest.raises(Killed):
            run.finish()
        assert run.directory is not None
        run.directory.close()
        again = made.hub().resume(tmp_path / "run")
        assert [report.round_number for report in again] == [3]  # the second is lost
    finally:
        made.close()
