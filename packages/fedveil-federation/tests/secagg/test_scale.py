"""The server's work grows with the devices and not with their pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.secagg.play import Play, assemble, plain_sum, small_vectors

from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil_federation.secagg.server import Server

VECTORS = small_vectors()


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
    (few, few_pairs), (many, many_pairs) = (calls_of_a_round(n, honest) for n in (40, 120))
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
