"""Rounds that overlap: the shares of the next round travel with the unmasking of this one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.secagg.play import Play, assemble, plain_sum, small_vectors
from tests.secagg.stores import terms_for
from tests.secagg.test_device_store import charged_cast

from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil_federation.secagg.server_round import ServerRound

VECTORS = small_vectors()


@pytest.mark.parametrize("honest", [True, False], ids=["honest", "lying"])
@pytest.mark.parametrize("count", [6, 40])
def test_two_round_trips_a_round_if_rounds_overlap_and_three_with_confirmations(honest, count):
    cast = assemble(count, min_honest=2, max_dropout=0.2, sparse=count > 32, honest_server=honest)
    trips = 0
    here: Play | None = None
    sums = 0
    for round_number in range(1, 5):
        lost = {10 * round_number}
        following = Play(cast, cast.open(round_number, cast.ids, 5, 32))
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
