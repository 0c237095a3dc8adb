"""A round ends in the exact integer sum of the survivors, or in a typed refusal."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.secagg.play import assemble, plain_sum, small_vectors

from fedveil.privacy.secure_sums.errors import NotReleased, OutOfTurn, RuleBroken

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
    return assemble(36, min_honest=5, colluders=2, max_dropout=0.2)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_random_losses_over_a_sparse_graph_leave_the_exact_sum(data):
    cast = sparse_cast()
    assert cast.params.topology(36).degree < 35
    lost = data.draw(st.sets(st.sampled_from(cast.ids), max_size=7))
    silent_at = {d: data.draw(st.sampled_from(LEGS)) for d in sorted(lost)}
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


def test_fewer_honest_survivors_than_the_noise_assumes_are_not_released():
    # The graph could recover from three losses, but the plan assumed 8 honest and 1 colluding.
    cast = assemble(11, min_honest=8, colluders=1, max_dropout=3 / 11)
    with pytest.raises(NotReleased, match="8 of 11 devices survived, need 9"):
        play_with({10: "upload", 20: "upload", 30: "upload"}, cast)


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


def test_many_rounds_with_changing_cohorts_use_the_seeds_agreed_once():
    cast = assemble(8)
    cohorts = [cast.ids, cast.ids[:5], cast.ids[2:], cast.ids]
    for round_number, members in enumerate(cohorts):
        play = cast.play(round_number=round_number, members=members)
        play.share()
        play.upload(VECTORS)
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, members))


def test_a_finished_round_gives_nothing_more():
    cast = assemble(3)
    play, _ = play_with({}, cast)
    with pytest.raises(OutOfTurn):
        play.server.finish()
    with pytest.raises(OutOfTurn):
        play.rounds[10].mask(VECTORS(10))
    play.server.receive(play.frames[-1])  # heard before: no answer changes
    with pytest.raises(OutOfTurn):
        play.server.finish()


def test_refusals_of_a_device_end_in_silence_not_in_a_wrong_sum():
    cast = assemble(4, min_honest=2, max_dropout=0.0)
    play = cast.play()
    play.share()
    with pytest.raises(NotReleased):
        play.upload(VECTORS, silent={20})
    with pytest.raises((OutOfTurn, RuleBroken)):
        play.server.survivors_for(10)
