"""What a device refuses on its own, whatever the server signs."""

from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.secagg.play import assemble, peek, small_vectors
from tests.secagg.stores import LOCK, new_store, terms_for

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, Malformed, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.params import Limits
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.device_store import DeviceStore
from fedveil_federation.secagg.journal import Claim, MemoryJournal
from fedveil_federation.secagg.messages import Confirmed, RoundPlan, Sharers, Survivors

VECTORS = small_vectors()


def plan_of(play) -> RoundPlan:
    return peek(play.server.plan, RoundPlan)


def signed(cast, message) -> bytes:
    return wire.seal(message, cast.server.key)


# --- one cohort per round number, ever ------------------------------------------------------------


def claim(journal, federation, round_number, purpose, cohort, step=100) -> None:
    journal.claim(Claim(federation, round_number, purpose, cohort, step, terms_for()))


@pytest.fixture(params=["memory", "file"])
def journal(request, tmp_path):
    if request.param == "memory":
        return MemoryJournal()
    return new_store(tmp_path / "store")


def test_a_round_is_claimed_once_and_numbers_only_rise(journal):
    claim(journal, "f", 5, "update", b"cohort")
    for round_number, purpose, members in (
        (5, "update", b"cohort"),
        (5, "update", b"x"),
        (4, "a", b"x"),
    ):
        with pytest.raises(RuleBroken):
            claim(journal, "f", round_number, purpose, members)
    with pytest.raises(RuleBroken, match="another cohort"):
        claim(journal, "f", 5, "clip", b"another cohort")
    claim(journal, "f", 5, "clip", b"cohort")
    with pytest.raises(RuleBroken):
        claim(journal, "f", 5, "clip", b"cohort")
    claim(journal, "g", 1, "update", b"cohort")
    claim(journal, "f", 9, "update", b"new")
    with pytest.raises(RuleBroken):
        claim(journal, "f", 7, "update", b"new")


def test_a_round_far_ahead_is_refused_and_takes_nothing_away(journal):
    for far in (100, 2**32 - 1, 2**62 - 1):
        with pytest.raises(RuleBroken, match="at most 100 are taken"):
            claim(journal, "f", far, "update", b"m")
    claim(journal, "f", 99, "update", b"m")  # the first one counts from -1
    claim(journal, "f", 199, "update", b"m")
    with pytest.raises(RuleBroken, match="101 above the last one"):
        claim(journal, "f", 300, "update", b"m")


def test_two_cohorts_in_one_round_are_refused():
    # The attack that unmasks a device: the same round with and without it.
    cast = assemble(5)
    first = cast.play(round_number=3)
    second = cast.play(round_number=3, members=cast.ids[:4])
    cast.devices[10].join(first.server.plan)
    with pytest.raises(RuleBroken, match="answered before"):
        cast.devices[10].join(second.server.plan)
    other_purpose = cast.play(round_number=3, members=cast.ids[:4], purpose="clip")
    with pytest.raises(RuleBroken, match="another cohort"):
        cast.devices[10].join(other_purpose.server.plan)
    cast.devices[10].join(cast.play(round_number=3, purpose="clip").server.plan)


def test_nothing_leaves_a_device_whose_claim_failed():
    cast = assemble(3)

    class Broken:
        def claim(self, *_: object) -> None:
            raise RuleBroken("disk full")

    cast.devices[10]._journal = Broken()
    with pytest.raises(RuleBroken, match="disk full"):
        cast.devices[10].join(cast.play().server.plan)


# --- the plan -------------------------------------------------------------------------------------


def test_a_plan_not_signed_by_the_server_is_forged():
    cast = assemble(3)
    plan = plan_of(cast.play())
    with pytest.raises(Forged):
        cast.devices[10].join(wire.seal(plan, Ed25519PrivateKey.generate()))
    with pytest.raises(Forged):
        cast.devices[10].join(wire.seal(plan, cast.devices[20].keys.identity))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"federation": "other"}, RuleBroken),
        ({"bits": 48}, Malformed),
        ({"members": (20, 30, 40, 50)}, RuleBroken),
        ({"members": (10, 20, 30)}, RuleBroken),
        ({"roster": bytes(32)}, ForeignKey),
        ({"degree": 2}, RuleBroken),
        ({"threshold": 2}, RuleBroken),
        ({"min_survivors": 3}, RuleBroken),
        ({"members": (10, 20, 30, 40, 60)}, RuleBroken),
    ],
)
def test_a_plan_that_falls_short_is_refused_even_if_signed(change, error):
    cast = assemble(5, min_honest=3, colluders=1, max_dropout=0.2)
    plan = plan_of(cast.play())
    with pytest.raises(error):
        cast.devices[10].join(signed(cast, replace(plan, **change)))
    cast.devices[10].join(signed(cast, plan))  # a refused plan has not used up the round


def test_devices_and_server_must_mean_the_same_terms():
    cast = assemble(5)
    fields = {
        "min_honest": 3,
        "colluders": 1,
        "max_dropout": 0.25,
        "security_failure": 0.5,
        "recovery_failure": 0.5,
        "sparse": True,
        "honest_server": True,
        "purposes": ("updateclip",),
        "limits": Limits(round_step=9),
    }
    others = []
    for name, value in fields.items():
        change = {name: value} | ({"honest_server": True} if name == "sparse" else {})
        others.append(replace(cast.params, **change).digest)
    assert len({cast.params.digest, *others}) == 1 + len(fields)
    for digest in others:
        with pytest.raises(RuleBroken, match="other terms"):
            cast.devices[10].join(signed(cast, replace(plan_of(cast.play()), params=digest)))


@pytest.mark.parametrize("name", ["members", "degree", "dimension", "round_step"])
def test_a_device_refuses_rounds_beyond_the_limits_of_its_terms(name):
    small = {"members": 4, "degree": 3, "dimension": 4, "round_step": 1}[name]
    cast = assemble(5)
    plan, terms = plan_of(cast.play()), replace(cast.params, limits=Limits(**{name: small}))
    cast.devices[10].params = terms
    with pytest.raises((RuleBroken, Malformed)):
        cast.devices[10].join(signed(cast, replace(plan, params=terms.digest)))


# --- the later legs -------------------------------------------------------------------------------


def shared(cast, **kwargs):
    play = cast.play(**kwargs)
    play.send_shares()
    return play


def test_shares_changed_on_the_way_are_not_taken():
    cast = assemble(4)
    play = shared(cast)
    message = peek(play.server.sharers_for(10), Sharers)
    sealed = bytearray(message.sealed)
    sealed[100] ^= 1
    play.rounds[10].take_sharers(play.lie(replace(message, sealed=bytes(sealed))))
    assert play.held(10) == [20, 40]
    message = peek(play.server.sharers_for(20), Sharers)
    swapped = message.sealed[64:128] + message.sealed[:64] + message.sealed[128:]
    play.rounds[20].take_sharers(play.lie(replace(message, sealed=swapped)))
    assert play.held(20) == [40]


def uploaded(cast, lost=frozenset(), **kwargs):
    play = shared(cast, **kwargs)
    for device in cast.ids:
        play.rounds[device].take_sharers(play.server.sharers_for(device))
    play.upload(VECTORS, lost)
    return play


def test_frames_of_another_round_or_device_are_out_of_turn():
    cast = assemble(4)
    first, second = shared(cast, round_number=1), shared(cast, round_number=2)
    with pytest.raises(OutOfTurn, match="another round"):
        second.rounds[10].take_sharers(first.server.sharers_for(10))
    with pytest.raises(OutOfTurn, match="another device"):
        second.rounds[10].take_sharers(second.server.sharers_for(20))
    with pytest.raises(Malformed):
        second.rounds[10].take_sharers(second.server.plan)


def test_a_vector_is_masked_once_and_only_in_its_turn():
    cast = assemble(3)
    play = shared(cast)
    with pytest.raises(OutOfTurn):
        play.rounds[10].mask(VECTORS(10))
    play.rounds[10].take_sharers(play.server.sharers_for(10))
    with pytest.raises(ConfigError, match="6 entries, the plan has 5"):
        play.rounds[10].mask(small_vectors(6)(10))
    play.rounds[10].mask(VECTORS(10))
    with pytest.raises(OutOfTurn):
        play.rounds[10].mask(VECTORS(10))


def test_the_memory_of_rounds_outlives_the_device(tmp_path):
    cast = assemble(3, journal=lambda i: new_store(tmp_path / str(i)), min_honest=3)
    plan = cast.play(round_number=7, privacy=terms_for()).server.plan
    cast.devices[10].join(plan)
    restarted = cast.devices[10]
    restarted._journal = DeviceStore(tmp_path / "10", LOCK)
    restarted._open.clear()
    with pytest.raises(RuleBroken, match="round 7"):
        restarted.join(plan)
    with pytest.raises(RuleBroken, match="numbers only rise"):
        restarted.join(cast.play(round_number=6, privacy=terms_for()).server.plan)
    restarted.join(cast.play(round_number=8, privacy=terms_for()).server.plan)


def _claim(path, results) -> None:
    try:
        claim(DeviceStore(path, LOCK), "f", 1, "update", b"m")
        results.put(True)
    except RuleBroken:
        results.put(False)


def test_of_two_processes_only_one_can_claim_a_round(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    new_store(tmp_path / "j")
    runners = [context.Process(target=_claim, args=(tmp_path / "j", results)) for _ in range(4)]
    for runner in runners:
        runner.start()
    outcomes = [results.get() for _ in runners]
    for runner in runners:
        runner.join()
    assert sorted(outcomes) == [False, False, False, True]


def test_a_broken_store_means_no_round(tmp_path):
    (tmp_path / "j").write_bytes(b"this is no database" * 100)
    with pytest.raises(RuleBroken, match="no round without it"):
        DeviceStore(tmp_path / "j", LOCK)
    store = new_store(tmp_path / "k")
    with sqlite3.connect(tmp_path / "k") as connection:
        connection.execute("DROP TABLE progress")
    with pytest.raises(RuleBroken, match="no round without it"):
        claim(store, "f", 1, "update", b"m")


def test_purposes_are_those_of_the_terms():
    cast = assemble(4)
    for purpose in ("update", "clip"):
        cast.devices[10].join(cast.play(purpose=purpose).server.plan)
    plan = plan_of(cast.play(round_number=2))
    for other in ("x", "update ", "Update", "clip2"):
        with pytest.raises(RuleBroken, match="purpose"):
            cast.devices[10].join(signed(cast, replace(plan, purpose=other)))
        with pytest.raises(ConfigError, match="purpose"):
            cast.play(round_number=2, purpose=other)


def test_a_cohort_that_differs_from_the_signed_one_is_refused():
    cast = assemble(5)
    frame = cast.play().server.plan
    bigger = cast.play(round_number=2, members=cast.ids[:4]).server.plan
    signature = frame[wire.SIGNATURE : wire.HEADER]
    spliced = bigger[: wire.SIGNATURE] + signature + bigger[wire.HEADER :]
    with pytest.raises(Forged):
        cast.devices[10].join(spliced)


def test_a_device_left_out_of_the_sharers_sends_nothing():
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    play = shared(cast)
    message = peek(play.server.sharers_for(10), Sharers)
    without = play.bitmap({20, 30, 40, 50})
    with pytest.raises(RuleBroken, match="not among the sharers"):
        play.rounds[10].take_sharers(play.lie(replace(message, present=without)))
    few = play.bitmap({10, 20, 30})
    with pytest.raises(RuleBroken, match="3 of 5 devices shared"):
        play.rounds[10].take_sharers(play.lie(replace(message, present=few)))
    play.rounds[10].take_sharers(play.server.sharers_for(10))


def test_a_device_declared_lost_unmasks_nothing():
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    play = uploaded(cast)
    message = peek(play.server.survivors_for(10), Survivors)
    without = play.bitmap({20, 30, 40, 50})
    with pytest.raises(RuleBroken, match="declared lost"):
        play.rounds[10].confirm(play.lie(replace(message, present=without)))


def test_too_few_survivors_are_refused_by_the_device_too():
    cast = assemble(5, min_honest=4, max_dropout=0.2)
    play = uploaded(cast)
    message = peek(play.server.survivors_for(10), Survivors)
    few = play.bitmap({10, 20, 30})
    with pytest.raises(RuleBroken, match="3 of 5 devices survived, need 4"):
        play.rounds[10].confirm(play.lie(replace(message, present=few, statements=bytes(128))))


def test_a_survivor_that_never_shared_is_refused():
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    play = cast.play()
    play.share(silent={50})
    play.upload(VECTORS)
    message = peek(play.server.survivors_for(10), Survivors)
    everybody = play.bitmap(cast.ids)
    with pytest.raises(RuleBroken, match="never shared"):
        play.rounds[10].confirm(play.lie(replace(message, present=everybody)))


def test_one_list_of_survivors_per_round():
    # A server that asks for the other kind of share with a second list gets nothing.
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    play = uploaded(cast)
    frame = play.server.survivors_for(10)
    reply = play.rounds[10].confirm(frame)
    message = peek(frame, Survivors)
    other = play.bitmap({10, 20, 30, 40})
    with pytest.raises(OutOfTurn):
        play.rounds[10].confirm(play.lie(replace(message, present=other, statements=bytes(192))))
    assert play.rounds[10].confirm(frame) == reply  # the same question, the same answer


def test_shares_leave_only_after_enough_neighbours_confirmed_the_same_list():
    cast = assemble(5, min_honest=2, max_dropout=0.2)  # threshold 3
    play = uploaded(cast)
    for device in cast.ids:
        play.send(play.rounds[device].confirm(play.server.survivors_for(device)))
    play.server.close_confirmation()
    message = peek(play.server.confirmed_for(10), Confirmed)
    two = play.bitmap({20, 30})
    with pytest.raises(RuleBroken, match="2 neighbours act on these survivors, need 3"):
        play.rounds[10].unmask(play.lie(replace(message, present=two, tags=message.tags[:32])))
    with pytest.raises(RuleBroken, match="0 neighbours act on these survivors, need 3"):
        play.rounds[10].unmask(play.lie(replace(message, tags=bytes(64))))
    play.rounds[10].unmask(play.server.confirmed_for(10))


def test_a_device_that_was_lost_confirms_nothing():
    # One that missed its upload must not count towards the threshold.
    cast = assemble(5, min_honest=2, max_dropout=0.2)
    play = uploaded(cast, lost={50})
    for device in (10, 20, 30, 40):
        play.send(play.rounds[device].confirm(play.server.survivors_for(device)))
    play.server.close_confirmation()
    message = peek(play.server.confirmed_for(10), Confirmed)
    everybody = play.bitmap(set(cast.ids))
    tags = message.tags + bytes(16)
    with pytest.raises(RuleBroken, match="confirmed that had not survived"):
        play.rounds[10].unmask(play.lie(replace(message, present=everybody, tags=tags)))
    play.rounds[10].unmask(play.server.confirmed_for(10))
