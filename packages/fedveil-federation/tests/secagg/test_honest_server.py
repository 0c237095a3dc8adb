"""A server that the terms trust: fewer legs and masks, and nothing of it without that trust."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.privacy.secure_sums import topology
from fedveil.privacy.secure_sums.errors import Malformed, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.graph import Graph
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.device import DeviceStep
from fedveil_federation.secagg.messages import Masked, RoundPlan, Survivors
from fedveil_federation.secagg.server import Phase

VECTORS = small_vectors()
TERMS = {"min_honest": 20, "colluders": 2, "max_dropout": 0.15}


@pytest.fixture(scope="module")
def cast():
    return assemble(60, **TERMS, honest_server=True)


@pytest.mark.parametrize("count", [5, 60])
def test_a_round_takes_three_answers_of_each_device(count):
    # Shares, vector, unmasking; lost devices at every leg.
    cast = assemble(count, min_honest=2, max_dropout=0.2, honest_server=True)
    play = cast.play()
    play.share(silent={10} if count > 5 else set())
    play.upload(VECTORS, silent={20})
    assert play.server.phase is Phase.UNMASKING
    assert play.server.missing == play.server.survivors
    total = play.unmask(silent={30} if count > 5 else set())
    assert np.array_equal(total, plain_sum(VECTORS, play.server.survivors))
    assert {frame[5] for frame in play.frames} == {4, 6, 10}
    masked = [peek(f, Masked) for f in play.frames if f[5] == Masked.KIND]
    assert all(not m.statement for m in masked)


def test_devices_mask_with_the_nearest_and_share_with_more(cast):
    found = cast.params.topology(60)
    assert found.masks < found.degree < 59
    play = cast.play(round_number=3)
    play.share()
    graph = play.server.layout.graph
    thinner = Graph(cast.ids, found.masks, play.server.layout.plan.graph)
    for device in cast.ids:
        keys = play.rounds[device]._pairs
        assert tuple(keys) == graph.neighbours(device)
        assert tuple(n for n in keys if keys[n].root) == thinner.neighbours(device)
    tables = graph.tables
    for place, device in enumerate(cast.ids):
        near = tables.near[place, tables.columns[place]]
        assert tuple(cast.ids[n] for n in near) == thinner.neighbours(device)
        for other, rank in zip(near, tables.mask_ranks[place], strict=True):
            assert tables.near[other, tables.columns[other, rank]] == place


def test_without_that_trust_a_device_asks_for_a_complete_graph_and_confirmations(cast):
    wary = assemble(60, **TERMS)
    plan, sparse = (peek(c.play().server.plan, RoundPlan) for c in (wary, cast))
    thin = {name: getattr(sparse, name) for name in ("degree", "masks", "threshold", "graph")}
    for lie in ({"params": cast.params.digest}, thin, {"masks": plan.masks - 1}, {"masks": 2}):
        with pytest.raises(RuleBroken):
            wary.devices[10].join(wire.seal(replace(plan, **lie), wary.server.key))
    play = wary.play(round_number=2)
    play.share()
    play.upload(VECTORS)
    told = play.server.survivors_for(10)
    with pytest.raises(Malformed, match="kind 7 where a Confirmed was expected"):
        play.rounds[10].unmask(told)
    assert play.rounds[10].step is DeviceStep.SURVIVORS


def test_with_it_a_device_still_counts_and_answers_one_list(cast):
    play = cast.play(round_number=8)
    play.share()
    play.upload(VECTORS, silent={10, 20})
    frame = play.server.survivors_for(30)
    with pytest.raises(OutOfTurn, match="no confirmations"):
        play.rounds[30].confirm(frame)
    message = peek(frame, Survivors)
    for listed, refusal in (
        (set(cast.ids) - {30}, "declared lost"),
        (set(cast.ids[2:40]), "devices survived, need"),
    ):
        with pytest.raises(RuleBroken, match=refusal):
            play.rounds[30].unmask(play.lie(replace(message, present=play.bitmap(listed))))
    reply = play.rounds[30].unmask(frame)
    assert play.rounds[30].unmask(frame) == reply
    other = play.lie(replace(message, present=play.bitmap(cast.ids[1:])))
    with pytest.raises(OutOfTurn):
        play.rounds[30].unmask(other)


def test_the_masks_of_honest_survivors_hang_together_as_often_as_stated():
    # A graph of masks too thin on purpose, so that it falls apart often enough to count.
    cohort, degree, masks, colluders, losses = 40, 20, 4, 6, 6
    stated = topology.assess(cohort, degree, 14, colluders, losses, masks=masks)
    rng, apart, runs = random.Random(8), 0, 600
    for _ in range(runs):
        tables = Graph(range(cohort), degree, rng.randbytes(32), masks).tables
        gone = rng.sample(range(cohort), colluders + losses)
        joined = np.zeros((cohort, cohort), dtype=np.bool_)
        np.put_along_axis(joined, np.take_along_axis(tables.near, tables.columns, 1), True, 1)
        kept = np.delete(np.delete(joined, gone, 0), gone, 1)
        apart += connected_components(kept)[0] > 1
    spread = 5 * (runs * min(1.0, stated.security_failure)) ** 0.5
    assert 0 < apart <= stated.security_failure * runs + spread
