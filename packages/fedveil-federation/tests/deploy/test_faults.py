"""Sites and hubs that end at any leg: the run goes on or resumes, and nothing is paid twice."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deploy.world import World, facts_of, recipe_of, world

from benchmarks.deploy_engines import MemoryCourier
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run
from fedveil_federation import client_events
from fedveil_federation.client_ledger import ClientLedger
from fedveil_federation.deploy import hub as hub_module
from fedveil_federation.deploy.courier import Unreachable
from fedveil_federation.deploy.envelope import Message, claimed, seal, unseal
from fedveil_federation.deploy.guard import Applicant, Guard
from fedveil_federation.deploy.work import Training
from fedveil_federation.secagg import round_log, wire
from fedveil_federation.secagg.journal import Claim
from fedveil_federation.secagg.messages import Shares

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
        fresh = World(**{**vars(self.made), "courier": MemoryCourier(), "guards": {}})
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
    # With its unmasking it had joined the second round, which it cannot remember.
    joined = (kind, after) == ("unmask", True)
    assert second.dropouts is not None
    assert second.dropouts.survivors == (3 if joined else 4)
    for guard in four.guards.values():
        assert list(guard.store.ledger.runs().values()) == [2]


class Answering:
    """A site that signs what it likes in reply to requests of one kind."""

    def __init__(self, made: World, site: str, kind: str, replies: list[Message]) -> None:
        self.made, self.site, self.kind, self.replies = made, site, kind, replies
        made.courier.detach(site)
        made.courier.attach(site, self.answer)

    def answer(self, frame: bytes) -> bytes:
        guard = self.made.guards[self.site]
        if unseal(frame, [self.made.members.hub]).header["kind"] != self.kind or not self.replies:
            return guard.answer(frame)
        return seal(self.replies.pop(), guard.keys.identity, frame)


def test_replies_that_are_not_what_was_asked_for_cost_their_site_its_place_and_nobody_else(
    four: World, tmp_path: Path
) -> None:
    evil: list[Any] = [None, 5, {}, [[1]], "doubted", "done", ["done"]]
    replies = [Message({"status": one}) for one in evil] + [Message({})]
    Answering(four, "site-3", "confirm", replies)
    recipe = recipe_of(**FOUR, training__rounds=10)
    for report in four.hub().start(recipe, facts_of(four.data), tmp_path / "run"):
        assert report.dropouts is not None
        assert not report.dropouts.not_released
    assert replies == []


def dealing(made: World, site: str, spoil: Callable[[Shares], Shares]) -> None:
    """Have a site sign other shares than it should when a round is opened."""

    def answer(frame: bytes) -> bytes:
        guard = made.guards[site]
        reply = unseal(guard.answer(frame), [made.members.sites[site]], frame)
        if claimed(frame).header["kind"] == "open":
            lie = wire.seal(spoil(wire.parse(reply.part(), Shares)), guard.keys.identity)
            reply = Message(reply.header, (lie,))
        return seal(reply, guard.keys.identity, frame)

    made.courier.detach(site)
    made.courier.attach(site, answer)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Leave out what is logged only if a test before has asked for it."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_site_that_seals_garbage_is_named_and_no_sum_is_released_with_it(
    four: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dealing(four, "site-3", lambda told: replace(told, sealed=bytes(len(told.sealed))))
    recipe = recipe_of(**FOUR, training__rounds=4)
    run = four.hub().start(recipe, facts_of(four.data), tmp_path / "run")
    first = next(iter(run))
    assert first.dropouts is not None
    assert "device 3: 0 shares came" in first.dropouts.not_released
    (record,) = warnings_in(caplog)
    assert "site-3" in record.getMessage()


def test_a_site_that_lies_about_its_keys_costs_nobody_the_sum(
    four: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It signs other fingerprints of the keys that it shares with two sites, and sits out; who does
    gives nothing away, and pays nothing."""
    dealing(four, "site-3", lambda told: replace(told, roots=bytes(32) + told.roots[32:]))
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    for report in run:
        assert report.dropouts is not None
        assert (report.dropouts.survivors, report.dropouts.not_released) == (3, "")
    assert {record.getMessage().split()[1] for record in warnings_in(caplog)} == {"site-3"}
    spent = [guard.store.ledger.spent() for guard in four.guards.values()]
    assert spent[3] == 0 < min(spent[:3])


class Counting(MemoryCourier):
    """Counts the legs of each kind, but not requests to a site that is still at work."""

    def __init__(self) -> None:
        super().__init__()
        self.legs: dict[bytes, str] = {}

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        for frame in frames.values():
            message = claimed(frame)
            about = f"{message.header.get('round')} {message.header.get('purpose')}"
            self.legs[frame] = f"{message.header['kind']} {about}"
        return super().ask(frames, seconds)


def test_sites_join_the_next_round_while_they_unmask_this_one(tmp_path: Path) -> None:
    courier = Counting()
    made = world(tmp_path, sites=4, courier=courier)
    try:
        refusing = made.guards["site-3"]
        claim = refusing.store.claim

        def claimed_but_once(wanted: Claim) -> int:
            if wanted.round_number == 1 and not refused:
                refused.append(wanted.round_number)
                raise RuleBroken("not now")
            return claim(wanted)

        refused: list[int] = []
        refusing.store.claim = claimed_but_once  # type: ignore[method-assign]
        hub = made.hub()
        run = hub.start(recipe_of(**FOUR, training__rounds=5), facts_of(made.data), tmp_path / "a")
        for report in run:
            assert report.dropouts is not None
            assert (report.dropouts.survivors, report.dropouts.not_released) == (4, "")
            if report.round_number == 3:
                break
            hub.stopping = lambda: run.state.rounds == 2  # in the third round
        run.close()
        legs = set(courier.legs.values())
        # The first round is opened by itself; one site had refused to join the second so early.
        assert {leg for leg in legs if leg.startswith("open")} == {"open 0 update", "open 1 update"}
        asked = [leg for leg in courier.legs.values() if leg == "open 1 update"]
        assert (len(asked), refused) == (1, [1])
        assert {f"unmask {number} update" for number in range(3)} <= legs
        # Nobody has paid for a round that a stopped run does not come to.
        assert list((tmp_path / "a" / "rounds").iterdir()) == []
        for guard in made.guards.values():
            assert list(guard.store.ledger.runs().values()) == [3]
    finally:
        made.close()


def test_training_longer_than_a_request_is_asked_for_again(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked = threading.Event(), []
    trained = Training._trained

    def slow(self: Training, *args: Any) -> object:
        assert gate.wait(60)
        return trained(self, *args)

    monkeypatch.setattr(Training, "_trained", slow)
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


def survivors(run: Run) -> list[int]:
    """Sites in each round's sum; -1 where nothing was released."""
    reports = [report.dropouts for report in run]
    assert all(reports)
    return [-1 if one.not_released else one.survivors for one in reports if one]


def rounds_paid(made: World) -> list[int]:
    return [sum(guard.store.ledger.runs().values()) for guard in made.guards.values()]


def spend_all(guard: Guard) -> None:
    """As if the owner had taken part elsewhere meanwhile: nothing is left."""
    ledger, spent = guard.store.ledger, guard.store.ledger.spent()
    terms = {name: getattr(ledger, name) for name in ("unit", "adjacency", "trust")}
    ClientLedger(ledger.path, max(spent, 1e-3), ledger.delta, **terms)


def test_without_a_site_to_spare_an_exhausted_ledger_ends_the_releases(tmp_path: Path) -> None:
    made = world(tmp_path)
    try:
        run = made.hub().start(recipe_of(training__rounds=3), facts_of(made.data), tmp_path / "run")
        next(iter(run))
        spend_all(made.guards["site-2"])
        assert next(iter(run)).round_number == 2  # which was paid for when the first was unmasked
        weights = run.state.weights
        assert survivors(run) == [-1]
        assert torch.equal(run.state.weights, weights)
        assert rounds_paid(made) == [2, 2, 2]  # what was reserved since has been given back
    finally:
        made.close()


def test_two_hubs_with_one_key_get_one_answer_a_round(four: World, tmp_path: Path) -> None:
    recipe = recipe_of(**FOUR)
    first = four.hub().start(recipe, facts_of(four.data), tmp_path / "one")
    second_hub = World(**{**vars(four), "folder": tmp_path / "copy"}).hub()
    second = second_hub.start(recipe, facts_of(four.data), tmp_path / "two")  # same round numbers
    assert survivors(first) == [4, 4]
    assert survivors(second) == [-1, -1]
    assert rounds_paid(four) == [2, 2, 2, 2]
    assert any(
        "numbers only rise" in said or "answered before" in said
        for said in second_hub.sites.refusals.values()
    )


def full(*args: object, **settings: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_site_whose_disk_is_full_takes_no_part_until_there_is_room(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, append = four.guards["site-1"], client_events.Events.append

    def no_room(self: Any, *args: Any) -> int:
        return full() if self._path == guard.store.path else append(self, *args)

    recipe = recipe_of(**FOUR, training__rounds=3)
    run = four.hub().start(recipe, facts_of(four.data), tmp_path / "run")
    rounds = iter(run)
    monkeypatch.setattr(client_events.Events, "append", no_room)
    first = next(rounds)
    monkeypatch.setattr(client_events.Events, "append", append)
    assert first.dropouts is not None
    assert first.dropouts.survivors == 3
    assert survivors(run) == [4, 4]
    assert rounds_paid(four) == [3, 2, 3, 3]


@pytest.mark.parametrize("kind", ["plan", "ready"])
@pytest.mark.parametrize("fault", ["no head", "gone", "garbage"])
def test_what_is_wrong_with_a_ledger_is_not_told(kind: str, fault: str, tmp_path: Path) -> None:
    """Neither where it lies nor how many events it has."""
    made = world(tmp_path)
    try:
        hub, path = made.hub(), tmp_path / "site-1.db"
        run = hub.start(recipe_of(), facts_of(made.data), tmp_path / "run")
        if fault == "garbage":
            path.write_bytes(bytes(range(256)) * 32)
        else:
            path.with_name(path.name + ".head" * (fault == "no head")).unlink()
        if kind == "ready":
            assert run.aggregator.ready(1) == {0, 2}  # type: ignore[attr-defined]
        else:
            with pytest.raises(PrivacyRefusal):
                hub.start(recipe_of(), facts_of(made.data), tmp_path / "other")
        assert hub.sites.refusals == {
            "site-1": "this site's store cannot be used; its owner's log says why"
        }
    finally:
        made.close()


def test_no_refusal_names_a_file_of_the_site(four: World, tmp_path: Path) -> None:
    def damaged(request: Message) -> Message:
        raise ConfigError(f"{tmp_path / 'delivered.json'}: damaged")

    keys, key = four.guards["site-0"].keys, four.key
    site = Applicant(four.members.hub, keys, {"deliver": damaged})
    reply = claimed(site.answer(seal(Message({"kind": "deliver"}), key)))
    assert reply.header["reason"] == "failed; its owner's log says why"


def test_a_hub_whose_disk_is_full_releases_nothing_that_it_cannot_keep(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    monkeypatch.setattr(round_log, "_write", full)
    with pytest.raises(ValueError, match=r"round log .* No space left"):
        next(iter(run))
    monkeypatch.undo()
    assert isinstance(run.directory, RunDirectory)
    run.directory.close()
    again = four.hub().resume(tmp_path / "run")
    assert survivors(again) == [4, 4]
    assert rounds_paid(four) == [2, 2, 2, 2]


def failing_frames(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """The hub's disk has no room for those of the sites' frames (from 1) that `fails` says."""
    write, frames = round_log._write, 0

    def no_room(handle: int, data: bytes) -> None:
        nonlocal frames
        frames += data[8:9] == bytes((round_log.RecordKind.FRAME,))
        full() if fails(frames) else write(handle, data)

    monkeypatch.setattr(round_log, "_write", no_room)


@pytest.mark.parametrize("broken", [1, 6, 10, 14], ids=["shares", "vectors", "confirm", "unmask"])
def test_a_frame_that_the_hub_cannot_log_is_no_fault_of_its_site(
    broken: int, four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = four.hub()
    run = hub.start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    failing_frames(monkeypatch, lambda frame: frame == broken)
    rounds = iter(run)
    first = next(rounds)
    monkeypatch.undo()
    assert first.dropouts is not None
    assert "No space left" in first.dropouts.not_released
    assert hub.sites.refusals == {}
    assert survivors(run) == [4]


def disturbed(made: World, first: Callable[[Guard, bytes], bytes], folder: Path) -> None:
    """A run in which each request to one site is answered as `first` says, and then as it should
    be: everybody is in every round, and pays for it once."""
    seen: dict[bytes, int] = {}
    guard = made.guards["site-0"]

    def flaky(frame: bytes) -> bytes:
        seen[frame] = seen.get(frame, 0) + 1
        return guard.answer(frame) if seen[frame] > 1 else first(guard, frame)

    made.courier.detach("site-0")
    made.courier.attach("site-0", flaky)
    run = made.hub().start(recipe_of(**FOUR), facts_of(made.data), folder)
    assert survivors(run) == [4, 4]
    assert set(seen.values()) == {2}
    assert rounds_paid(made) == [2, 2, 2, 2]


@pytest.mark.parametrize("cut", [lambda frame: frame[:-7], lambda frame: frame + b"x"])
def test_a_request_that_is_changed_on_the_way_is_asked_again(
    cut: Callable[[bytes], bytes], four: World, tmp_path: Path
) -> None:
    """What a site says of another request is no refusal of this one."""
    disturbed(four, lambda guard, frame: guard.answer(cut(frame)), tmp_path / "run")


class Away(MemoryCourier):
    """One site cannot be reached; the hub's clock leaps once all others have answered."""

    def __init__(self) -> None:
        super().__init__()
        self.site, self.now = "", 0.0

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        if set(frames) == {self.site}:
            self.now += 1e6
        here = {site: frame for site, frame in frames.items() if site != self.site}
        found = super().ask(here, seconds)
        return found | {site: Unreachable("away") for site in frames if site == self.site}


def test_a_site_away_for_some_rounds_is_in_those_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = Away()
    monkeypatch.setattr(hub_module, "monotonic", lambda: courier.now)
    made = world(tmp_path, sites=4, courier=courier)
    try:
        recipe = recipe_of(**FOUR, training__rounds=3)
        run = made.hub().start(recipe, facts_of(made.data), tmp_path / "run")
        courier.site = "site-3"
        away = next(iter(run))
        courier.site = ""
        assert away.dropouts is not None
        assert away.dropouts.survivors == 3
        assert survivors(run) == [4, 4]
        assert rounds_paid(made) == [3, 3, 3, 2]
    finally:
        made.close()


def lost(reply: bytes) -> bytes:
    raise ConnectionResetError


@pytest.mark.parametrize("cut", [lambda reply: reply[:-7], lambda reply: b"", lost])
def test_a_reply_that_is_cut_off_or_lost_is_asked_for_again(
    cut: Callable[[bytes], bytes], four: World, tmp_path: Path
) -> None:
    disturbed(four, lambda guard, frame: cut(guard.answer(frame)), tmp_path / "run")


def test_an_upload_of_the_wrong_length_is_left_out(four: World, tmp_path: Path) -> None:
    wrong = [(), (b"",), (bytes(7),), (bytes(8 * 10**4),)]
    Answering(four, "site-3", "train", [Message({"status": "done"}, parts) for parts in wrong])
    local = {
        "training__method": "client-noise",
        "training__batch_size": None,
        "aggregation__secure": None,
    }
    recipe = recipe_of(**local, training__rounds=4)
    run = four.hub().start(recipe, facts_of(four.data), tmp_path / "run")
    assert [report.round_number for report in run] == [1, 2, 3, 4]
    assert not torch.equal(run.state.weights, run.plan.start)


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


def test_a_second_run_of_the_same_federation_goes_on_with_the_numbers(
    four: World, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / name)
        assert all(report.dropouts and not report.dropouts.not_released for report in run)
        assert isinstance(run.directory, RunDirectory)
        run.directory.close()
    assert sorted(four.guards["site-0"].store.ledger.runs().values()) == [2, 2]


class Slow(MemoryCourier):
    """A connection that carries half a megabyte a second, there and back."""

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        assert all(len(frame) / 5e5 <= seconds for frame in frames.values()), "it is cut off"
        return super().ask(frames, 600.0)


def test_what_takes_longer_than_a_request_to_carry_gets_the_time(tmp_path: Path) -> None:
    made = world(tmp_path, courier=Slow())
    try:
        sites = made.hub().sites
        large = Message({"kind": "hello"}, (bytes(8_000_000),))  # sixteen seconds
        sites.leg(dict.fromkeys(range(3), large), 1e6)
        assert not sites.silent
    finally:
        made.close()


def test_a_ledger_that_is_exhausted_in_the_middle_takes_its_site_out(
    four: World, tmp_path: Path
) -> None:
    recipe = recipe_of(**FOUR, training__rounds=3)
    hub = four.hub()
    run = hub.start(recipe, facts_of(four.data), tmp_path / "run")
    next(iter(run))
    spend_all(four.guards["site-2"])
    assert survivors(run) == [4, 3]  # it had paid for the second round when it unmasked the first
    assert rounds_paid(four) == [3, 3, 2, 3]
    assert hub.sites.refusals["site-2"] == "this site's lifetime budget does not allow it"


def test_a_later_round_that_cannot_be_logged_costs_this_one_nothing(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    failing_frames(monkeypatch, lambda frame: frame > 16)  # four legs of four sites
    rounds = iter(run)
    first = next(rounds)
    monkeypatch.undo()
    assert first.dropouts is not None
    assert not first.dropouts.not_released
    second = next(rounds)
    assert second.dropouts is not None
    assert second.dropouts.not_released


def test_clocks_that_differ_change_nothing(
    four: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(10**9))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + (-1) ** next(jumps) * 1e8)
    run = four.hub().start(recipe_of(**FOUR), facts_of(four.data), tmp_path / "run")
    assert survivors(run) == [4, 4]
