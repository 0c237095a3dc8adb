"""A round ends in the exact integer sum of the survivors, or in a typed refusal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.secagg.play import Play, assemble, plain_sum, small_vectors
from tests.secagg.stores import terms_for
from tests.secagg.test_device_store import charged_cast

from fedveil.privacy.secure_sums.errors import NotReleased, OutOfTurn, RuleBroken
from fedveil_federation.secagg.server import Server, ServerRound

VECTORS = small_vectors()
LEGS = ("share", "upload", "confirm", "unmask")


def play_with(silent_at: dict[int, str], cast, round_number=1, bits=32):
    """A whole round where each named device falls silent at a leg and stays so."""
    play = cast.play(round_number=round_number, bits=bits)
    silent = {
        leg: {d for d, at in silent_at.items() if LEGS.index(at) <= LEGS.index(leg)} for leg in LEGS
    }
    play.share(silent["share"])
    play.upload(VECTORS, silent["upload"])
    play.confirm(silent["confirm"])
    return play, play.unmask(silent["unmask"])


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_without_losses_the_sum_is_exact(count, bits):
    cast = assemble(count)
    _, total = play_with({}, cast, bits=bits)
    assert np.array_equal(total, plain_sum(VECTORS, cast.ids))


# Seven devices, no colluders, two losses: degree 6, threshold 4. Every pair of losses at every
# pair of legs is played.
@pytest.mark.parametrize("legs", list(itertools.product(LEGS, LEGS)))
def test_any_two_losses_at_any_legs_leave_the_exact_sum_of_those_who_uploaded(legs):
    cast = assemble(7, min_honest=3, max_dropout=2 / 7)
    silent_at = {10: legs[0], 50: legs[1]}
    _, total = play_with(silent_at, cast)
    uploaded = [d for d in cast.ids if silent_at.get(d) not in ("share", "upload")]
    assert np.array_equal(total, plain_sum(VECTORS, uploaded))


NUMBERS = itertools.count()


@cache  # pairs agree on their seeds once
def sparse_cast():
    return assemble(36, min_honest=5, colluders=2, max_dropout=0.2, honest_server=True)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_random_losses_over_a_sparse_graph_leave_the_exact_sum(data):
    cast = sparse_cast()
    assert cast.params.topology(36).degree < 35
    lost = data.draw(st.sets(st.sampled_from(cast.ids), max_size=7))
    legs = [leg for leg in LEGS if leg != "confirm"]  # nobody confirms to an honest server
    silent_at = {d: data.draw(st.sampled_from(legs)) for d in sorted(lost)}
    _, total = play_with(silent_at, cast, next(NUMBERS))
    uploaded = [d for d in cast.ids if silent_at.get(d) not in ("share", "upload")]
    assert np.array_equal(total, plain_sum(VECTORS, uploaded))


def test_two_neighbours_both_lost_before_their_vectors_can_still_be_recovered():
    # Neither end of that pair is there to reveal its key: only the shares can.
    cast = assemble(9, min_honest=3, max_dropout=3 / 9)
    silent_at = {10: "upload", 20: "upload", 30: "confirm"}
    _, total = play_with(silent_at, cast)
    assert np.array_equal(total, plain_sum(VECTORS, set(cast.ids) - {10, 20}))


def test_one_loss_more_than_the_terms_allow_is_not_released():
    cast = assemble(7, min_honest=3, max_dropout=2 / 7)
    with pytest.raises(NotReleased, match="4 of 7 devices survived, need 5"):
        play_with({10: "upload", 20: "upload", 30: "upload"}, cast)
    with pytest.raises(NotReleased, match="4 of 7 devices shared, need 5"):
        play_with({10: "share", 20: "share", 30: "share"}, cast, round_number=2)
    with pytest.raises(NotReleased, match="shares came, need 4"):
        play_with({10: "unmask", 20: "unmask", 30: "unmask"}, cast, round_number=3)


def test_an_unreleased_round_can_be_finished_by_a_later_answer():
    cast = assemble(5)
    play = cast.play()
    play.share()
    play.upload(VECTORS)
    play.confirm()
    with pytest.raises(NotReleased):
        play.unmask(silent={20, 30, 40})
    for device in (20, 30, 40):
        play.send(play.rounds[device].unmask(play.server.confirmed_for(device)))
    assert np.array_equal(play.server.finish(), plain_sum(VECTORS, cast.ids))


def test_a_device_that_shared_too_late_is_out_and_the_rest_is_exact():
    cast = assemble(5, min_honest=3, max_dropout=0.2)
    play = cast.play()
    play.share(silent={30})
    late = cast.devices[30].join(play.server.plan)
    with pytest.raises(OutOfTurn, match="too late"):
        play.server.receive(late.shares)
    with pytest.raises(OutOfTurn, match="dropped out"):
        play.server.sharers_for(30)
    play.upload(VECTORS)
    play.confirm()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, {10, 20, 40, 50}))


# --- rounds that overlap --------------------------------------------------------------------------


@pytest.mark.parametrize("honest", [True, False], ids=["honest", "lying"])
@pytest.mark.parametrize("count", [6, 40])
def test_two_round_trips_a_round_if_rounds_overlap_and_three_with_confirmations(honest, count):
    cast = assemble(count, min_honest=2, max_dropout=0.2, honest_server=honest)
    trips = 0
    here: Play | None = None
    sums = 0
    for round_number in range(1, 5):
        lost = {10 * round_number}
        following = Play(cast, cast.server.open(round_number, cast.ids, 5, 32))
        trips += here is None  # the first plan travels alone
        told = _last_frames(here.server) if here is not None else {}
        for device in cast.ids:
            # One message down: the last frame of this round, if any, and the next round's plan.
            if here is not None and device in told:
                here.send(here.rounds[device].unmask(told[device]))
            following.rounds[device] = cast.devices[device].join(following.server.plan)
            following.send(following.rounds[device].shares)
        trips += here is not None
        if here is not None:
            survivors = here.server.survivors
            assert np.array_equal(here.server.finish(), plain_sum(VECTORS, survivors))
            sums += 1
        here = following
        here.server.close_sharing()
        for device in here.server.sharers:
            here.rounds[device].take_sharers(here.server.sharers_for(device))
        here.upload(VECTORS, silent=lost)
        trips += 1
        here.confirm()
        trips += not honest
    assert sums == 3
    assert trips == 1 + 3 * (2 + (not honest)) + 1 + (not honest)


def _last_frames(server: ServerRound) -> dict[int, bytes]:
    told = server.confirmed_for if server.confirms else server.survivors_for
    return {device: told(device) for device in server.confirmed}


def test_a_device_that_joined_the_next_round_still_finishes_this_one_and_joins_no_earlier_one():
    cast = assemble(5, max_dropout=0.2)
    earlier = cast.play(round_number=1)
    here = cast.play(round_number=2)
    here.share()
    here.upload(VECTORS)
    following = cast.play(round_number=3)
    following.share()
    with pytest.raises(RuleBroken, match="round 1"):
        cast.devices[10].join(earlier.server.plan)
    other = cast.play(round_number=2, purpose="clip")
    with pytest.raises(RuleBroken):
        cast.devices[10].join(other.server.plan)  # all of a round's sums open before the next one
    here.confirm()
    assert np.array_equal(here.unmask(), plain_sum(VECTORS, cast.ids))
    following.upload(VECTORS, silent={50})
    following.confirm()
    assert np.array_equal(following.unmask(), plain_sum(VECTORS, cast.ids[:4]))


# --- the work of a server grows with the devices, not with their pairs ----------------------------


def test_the_largest_and_smallest_entries_of_64_bits_survive():
    cast = assemble(3)
    play = cast.play(bits=64, dimension=2)
    vectors = {
        10: np.array([2**62, -(2**62)]),
        20: np.array([2**61, -(2**62)]),
        30: np.array([-5, 7]),
    }
    play.share()
    play.upload(lambda d: vectors[d])
    play.confirm()
    assert play.unmask().tolist() == [2**62 + 2**61 - 5, -(2**63) + 7]


def test_fewer_honest_survivors_than_the_noise_assumes_are_not_released():
    # The graph could recover from three losses, but the plan assumed 8 honest and 1 colluding.
    cast = assemble(11, min_honest=8, colluders=1, max_dropout=3 / 11)
    with pytest.raises(NotReleased, match="8 of 11 devices survived, need 9"):
        play_with({10: "upload", 20: "upload", 30: "upload"}, cast)


def test_many_rounds_with_changing_cohorts_use_the_seeds_agreed_once():
    cast = assemble(8)
    cohorts = [cast.ids, cast.ids[:5], cast.ids[2:], cast.ids]
    for round_number, members in enumerate(cohorts):
        play = cast.play(round_number=round_number, members=members)
        play.share()
        play.upload(VECTORS)
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, members))


def test_each_of_two_open_rounds_is_paid_for_by_itself(tmp_path):
    stores, cast = charged_cast(tmp_path)
    terms = terms_for()
    here = cast.play(round_number=1, privacy=terms)
    here.share()
    here.upload(VECTORS)
    one = stores[10].ledger.spent()
    following = cast.play(round_number=2, privacy=terms)
    following.share()  # reserved before this round's sum is known
    assert stores[10].ledger.spent() > 1.2 * one
    for device in cast.ids:
        following.rounds[device].abort(following.server.abort())
    assert stores[10].ledger.spent() == pytest.approx(one)
    here.confirm()
    assert np.array_equal(here.unmask(), plain_sum(VECTORS, cast.ids))
    assert stores[10].ledger.spent() == pytest.approx(one)


class Counter:
    """Counts the calls of Python and C functions, which do not depend on the machine."""

    def __init__(self) -> None:
        self.calls = 0

    def _seen(self, _frame: Any, event: str, _arg: Any) -> None:
        self.calls += event in ("call", "c_call")

    def __call__(self, act: Callable[..., Any], *arguments: Any) -> Any:
        sys.setprofile(self._seen)
        try:
            return act(*arguments)
        finally:
            sys.setprofile(None)


def calls_of_a_round(count: int, honest: bool) -> tuple[int, int]:
    """Of the server; and how many pairs of neighbours there are."""
    cast = assemble(count, min_honest=count // 2, max_dropout=0.1, honest_server=honest)
    counter, play = Counter(), cast.play()
    server = play.server
    for device in cast.ids:
        play.rounds[device] = cast.devices[device].join(server.plan)
        counter(server.receive, play.rounds[device].shares)
    counter(server.close_sharing)
    for device in cast.ids:
        play.rounds[device].take_sharers(counter(server.sharers_for, device))
        counter(server.receive, play.rounds[device].mask(VECTORS(device)))
    counter(server.close_upload)
    if server.confirms:
        for device in cast.ids:
            frame = counter(server.survivors_for, device)
            counter(server.receive, play.rounds[device].confirm(frame))
        counter(server.close_confirmation)
    last = server.confirmed_for if server.confirms else server.survivors_for
    for device in cast.ids:
        counter(server.receive, play.rounds[device].unmask(counter(last, device)))
    assert np.array_equal(counter(server.finish), plain_sum(VECTORS, cast.ids))
    return counter.calls, count * server.layout.plan.degree


@pytest.mark.parametrize("honest", [True, False], ids=["honest", "lying"])
def test_three_times_the_devices_take_three_times_the_calls_although_pairs_are_more(honest):
    sizes = (40, 120) if honest else (20, 60)
    (few, few_pairs), (many, many_pairs) = (calls_of_a_round(n, honest) for n in sizes)
    assert many_pairs > 4.5 * few_pairs
    assert many < 3.2 * few


def test_shards_of_a_cohort_are_rounds_of_their_own_whose_sums_add_up():
    # Two servers with one key, as two processes would be, and nothing in common while they run.
    cast = assemble(12, min_honest=4, max_dropout=0.2)
    shards = [cast.ids[:6], cast.ids[6:]]
    servers = [Server(cast.server.key, cast.server.roster, cast.params) for _ in shards]
    plays = [
        Play(cast, server.open(1, members, 5, 32))
        for server, members in zip(servers, shards, strict=True)
    ]
    total, survivors = np.zeros(5, dtype=np.int64), []
    for play, lost in zip(plays, ({10}, {70}), strict=True):
        play.share()
        play.upload(VECTORS, silent=lost)
        play.confirm()
        total += play.unmask()
        survivors += play.server.survivors
    assert np.array_equal(total, plain_sum(VECTORS, survivors))
    # Nobody is in two shards: the difference of their sums would show its vector.
    with pytest.raises(RuleBroken):
        cast.devices[20].join(servers[1].open(1, [20, *shards[1]], 5, 32).plan)


def test_simulated_devices_keep_one_copy_of_a_plan():
    # Each of 10,000 would hold 10,000 ids: gigabytes.
    cast = assemble(5)
    plan = cast.play().server.plan
    members = {id(one.join(plan).layout.plan.members) for one in cast.devices.values()}
    assert len(members) == 1
