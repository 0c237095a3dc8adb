"""A server that proposes weaker graphs, looks for unlucky ones, or asks for too much."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.params import Limits, SecAggParams
from fedveil_federation.secagg import draw, wire
from fedveil_federation.secagg.draw import DRAW_BYTES, draft_digest, draft_of
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.messages import Commitments, Invitation, RoundPlan
from fedveil_federation.secagg.participant import Participant

VECTORS = small_vectors()


def signed(cast, message) -> bytes:
    return wire.seal(message, cast.server.key)


# --- what the noise was calibrated for ------------------------------------------------------------


def test_a_graph_with_smaller_groups_than_the_noise_counts_on_is_refused():
    params = SecAggParams("f", min_honest=700, colluders=100, max_dropout=0.2, sparse=True)
    found = params.topology(1000)
    assert params.counted(1000) == params.group(found) == 211
    params.check(1000, found.degree, found.threshold, 800)
    # Groups of 8 under noise for 211, on a graph that no two-faced server can beat.
    with pytest.raises(RuleBroken, match="too sparse"):
        params.check(1000, 34, 29, 800)
    # Neither failure is the problem here: it is the very graph for servers that do not lie.
    trusting = replace(params, honest_server=True)
    lean = trusting.topology(1000)
    assert lean.degree < found.degree
    trusting.check(1000, lean.degree, lean.threshold, 800)
    with pytest.raises(RuleBroken, match=r"sums of \d\d, noise counts on 211"):
        params.check(1000, lean.degree, lean.threshold, 800)
    # What the noise was calibrated for may be less than the best graph gives, and then it binds.
    modest = replace(params, honest_shares=75)
    modest.check(1000, lean.degree, lean.threshold, 800)


def test_a_graph_that_would_seldom_recover_is_refused():
    params = SecAggParams("f", min_honest=700, colluders=100, max_dropout=0.2, sparse=True)
    found = params.topology(1000)
    with pytest.raises(RuleBroken, match="recovery_failure"):
        params.check(1000, found.degree, found.degree, 800)


def test_devices_and_server_must_mean_the_same_terms():
    cast = assemble(5)
    plan = peek(cast.play().server.plan, RoundPlan)
    weaker = replace(cast.params, honest_shares=2, limits=Limits(degree=7))
    with pytest.raises(RuleBroken, match="other terms"):
        cast.devices[10].join(signed(cast, replace(plan, params=weaker.digest)))
    fields = {
        "min_honest": 3,
        "colluders": 1,
        "max_dropout": 0.25,
        "security_failure": 0.5,
        "recovery_failure": 0.5,
        "sparse": False,
        "honest_shares": 2,
        "honest_server": True,
        "purposes": ("updateclip",),
        "limits": Limits(draws=9),
    }
    others = [replace(cast.params, **{name: value}).digest for name, value in fields.items()]
    assert len({cast.params.digest, *others}) == 1 + len(fields)


def test_honest_shares_bind_the_noise_to_the_smallest_group():
    sparse = SecAggParams("f", min_honest=80, colluders=10, max_dropout=0.1, sparse=True)
    assert sparse.counted(100) == sparse.group(sparse.topology(100)) < 80
    assert replace(sparse, honest_server=True).counted(100) == 80
    assert replace(sparse, sparse=False).counted(100) == 80


# --- nobody can look for an unlucky graph ---------------------------------------------------------


def drawing_of(cast, round_number=1, drawers=None):
    return cast.server.draw(round_number, cast.ids, 5, 32, "update", drawers)


def drawn(cast, drawing):
    for device in drawing.drawers:
        drawing.commit(cast.devices[device].offer(drawing.invitation))
    listed = drawing.commitments()
    for device in drawing.drawers:
        drawing.reveal(cast.devices[device].reveal(listed))
    return drawing


@pytest.fixture(scope="module")
def sparse():
    return assemble(36, min_honest=5, colluders=2, max_dropout=0.1)


def test_the_server_has_nothing_to_choose_in_the_seed():
    # Whatever it can write into a plan, the seed comes from bytes that a device drew afterwards:
    # the same plan, drawn again, is another graph.
    cast = assemble(36, min_honest=5, colluders=2, max_dropout=0.1)
    graphs = set()
    for _ in range(4):
        plan = drawn(cast, drawing_of(cast, drawers=[10, 20, 30])).plan()
        identities = {m: cast.server.roster.get(m).identity_bytes for m in plan.members}
        graphs.add(draw.drawn_seed(plan, cast.params, identities))
    assert len(graphs) == 4


def test_a_device_draws_for_a_round_a_few_times_only():
    cast = assemble(36, min_honest=5, colluders=2, max_dropout=0.1)
    draws = cast.params.limits.draws
    for _ in range(draws):
        drawn(cast, drawing_of(cast, drawers=[10, 20, 30]))
    with pytest.raises(RuleBroken, match=f"has drawn {draws} times"):
        cast.devices[10].offer(drawing_of(cast).invitation)
    cast.devices[40].offer(drawing_of(cast).invitation)


def test_what_was_drawn_for_rounds_that_are_over_is_forgotten():
    cast = assemble(36, min_honest=5, colluders=2, max_dropout=0.1)
    device = cast.devices[10]
    for number in (41, 42, 43):
        device.offer(drawing_of(cast, number, [10, 20, 30]).invitation)
    opened = cast.server.open_drawn(drawn(cast, drawing_of(cast, 42, [20, 30, 40])))
    cast.devices[20].join(opened.plan)
    assert {at for at, _ in cast.devices[20]._revealed.values()} == {42}
    device.join(opened.plan)
    assert {at for at, _ in device._offered.values()} == {42, 43}


def test_a_reveal_that_was_lost_comes_again_although_another_graph_was_drawn_since(sparse):
    drawings = [drawing_of(sparse, number, [10, 20, 30]) for number in (91, 92)]
    for drawing in drawings:
        for device in drawing.drawers:
            drawing.commit(sparse.devices[device].offer(drawing.invitation))
    lists = [drawing.commitments() for drawing in drawings]
    first, second = (sparse.devices[10].reveal(listed) for listed in lists)
    assert sparse.devices[10].reveal(lists[0]) == first
    assert sparse.devices[10].reveal(lists[1]) == second
    drawings[0].reveal(first)


def test_a_commitment_is_revealed_for_one_list_only(sparse):
    drawing = drawing_of(sparse, round_number=2, drawers=[10, 20, 30])
    for device in drawing.drawers:
        drawing.commit(sparse.devices[device].offer(drawing.invitation))
    listed = drawing.commitments()
    first = sparse.devices[10].reveal(listed)
    assert sparse.devices[10].reveal(listed) == first
    # The server would like to see what another list, with its colluders' other bytes, gives.
    message = peek(listed, Commitments)
    other = replace(message, hidden=message.hidden[:32] + bytes(32) + message.hidden[64:])
    with pytest.raises(OutOfTurn, match="has not offered"):
        sparse.devices[10].reveal(signed(sparse, other))


def test_a_device_reveals_only_its_own_commitment_among_enough_others(sparse):
    drawing = drawing_of(sparse, round_number=3, drawers=[10, 20, 30])
    for device in drawing.drawers:
        drawing.commit(sparse.devices[device].offer(drawing.invitation))
    message = peek(drawing.commitments(), Commitments)
    forged = replace(message, hidden=bytes(32) + message.hidden[32:])
    with pytest.raises(Forged, match="not its own"):
        sparse.devices[10].reveal(signed(sparse, forged))
    few = replace(message, devices=(10,), hidden=message.hidden[:32])
    with pytest.raises(RuleBroken, match="1 drawers, need 3"):
        sparse.devices[10].reveal(signed(sparse, few))
    without = replace(message, devices=(20, 30, 40))
    with pytest.raises(Malformed):
        sparse.devices[10].reveal(signed(sparse, without))
    with pytest.raises(Forged):
        sparse.devices[10].reveal(wire.seal(message, sparse.devices[20].keys.identity))


def test_a_plan_drawn_by_colluders_alone_or_changed_after_the_draw_is_refused(sparse):
    plan = drawn(sparse, drawing_of(sparse, round_number=4, drawers=[10, 20, 30])).plan()
    join = sparse.devices[40].join
    with pytest.raises(RuleBroken, match="2 devices drew the graph"):
        join(signed(sparse, replace(plan, drawers=(10, 20), draws=plan.draws[: 2 * DRAW_BYTES])))
    for change in (
        {"dimension": 6},
        {"round_number": 5},
        {"purpose": "clip"},
        {"drawers": (10, 20, 40)},
    ):
        with pytest.raises(Forged, match="did not draw this graph"):
            join(signed(sparse, replace(plan, **change)))
    flipped = bytearray(plan.draws)
    flipped[0] ^= 1
    with pytest.raises(Forged, match="did not draw this graph"):
        join(signed(sparse, replace(plan, draws=bytes(flipped))))
    with pytest.raises(Malformed, match=r"Plan\.draws"):
        join(signed(sparse, replace(plan, draws=plan.draws[:-1])))
    with pytest.raises(RuleBroken, match="31 is not enrolled"):
        join(signed(sparse, replace(plan, drawers=(10, 20, 31))))
    with pytest.raises(RuleBroken, match="0 devices drew"):
        join(signed(sparse, replace(plan, drawers=(), draws=b"")))
    join(signed(sparse, plan))


def test_a_round_goes_on_with_others_if_a_drawer_vanishes(sparse):
    drawing = drawing_of(sparse, round_number=6, drawers=[10, 20, 30])
    for device in drawing.drawers:
        drawing.commit(sparse.devices[device].offer(drawing.invitation))
    listed = drawing.commitments()
    for device in (10, 20):
        drawing.reveal(sparse.devices[device].reveal(listed))
    assert drawing.missing == (30,)
    with pytest.raises(OutOfTurn, match="have not revealed"):
        sparse.server.open_drawn(drawing)
    again = drawn(sparse, drawing_of(sparse, round_number=6, drawers=[10, 20, 40]))
    opened = sparse.server.open_drawn(again)
    sparse.devices[30].join(opened.plan)


def test_the_servers_side_of_a_draw_checks_what_comes(sparse):
    drawing = drawing_of(sparse, round_number=7, drawers=[10, 20, 30])
    stranger = sparse.devices[40].offer(drawing.invitation)
    with pytest.raises(OutOfTurn, match="not asked"):
        drawing.commit(stranger)
    with pytest.raises(OutOfTurn, match="0 of 3"):
        drawing.commitments()
    frames = {d: sparse.devices[d].offer(drawing.invitation) for d in drawing.drawers}
    for frame in frames.values():
        drawing.commit(frame)
        drawing.commit(frame)  # again: nothing changes
    listed = drawing.commitments()
    with pytest.raises(OutOfTurn, match="too late"):
        drawing.commit(frames[10])
    with pytest.raises(Malformed):
        drawing.reveal(frames[10])
    drawing.reveal(sparse.devices[10].reveal(listed))
    elsewhere = drawn(sparse, drawing_of(sparse, round_number=8, drawers=[10, 20, 30]))
    with pytest.raises(OutOfTurn, match="another draft"):
        drawing.commit(sparse.devices[20].offer(drawing_of(sparse, round_number=9).invitation))
    assert elsewhere.missing == ()
    for wrong in ([], [10, 10], [10, 11]):
        with pytest.raises(ConfigError, match="drawers"):
            drawing_of(sparse, round_number=10, drawers=wrong)


def test_complete_graphs_are_not_drawn():
    cast = assemble(5)
    with pytest.raises(ConfigError, match="no device draws"):
        cast.server.draw(1, cast.ids, 5, 32)
    plan = peek(cast.play().server.plan, RoundPlan)
    with pytest.raises(RuleBroken, match="1 devices drew the graph, need 0"):
        cast.devices[10].join(signed(cast, replace(plan, drawers=(10,), draws=bytes(DRAW_BYTES))))
    with pytest.raises(RuleBroken, match="no device draws"):
        cast.devices[10].offer(signed(cast, Invitation(**draft_of(plan))))
    with pytest.raises(ConfigError, match="draw"):
        assemble(36, min_honest=5).server.open(1, [10 * i for i in range(1, 37)], 5, 32)


def test_the_digest_of_a_draft_covers_every_field_of_it(sparse):
    plan = drawing_of(sparse, round_number=11)._draft
    changed = {
        "federation": "g",
        "round_number": 12,
        "purpose": "clip",
        "members": plan.members[1:],
        "roster": os.urandom(32),
        "params": os.urandom(32),
        "exchange": os.urandom(32),
        "dimension": 6,
        "bits": 64,
        "degree": plan.degree + 2,
        "masks": plan.masks - 2,
        "threshold": plan.threshold + 1,
        "min_survivors": plan.min_survivors + 1,
        "privacy": b"x",
    }
    digests = {draft_digest(replace(plan, **{name: value})) for name, value in changed.items()}
    assert len(digests | {draft_digest(plan)}) == 1 + len(changed) == 1 + len(vars(plan))


# --- limits ---------------------------------------------------------------------------------------


def test_purposes_are_those_of_the_terms():
    cast = assemble(4)
    for purpose in ("update", "clip"):
        cast.devices[10].join(cast.play(purpose=purpose).server.plan)
    plan = peek(cast.play(round_number=2).server.plan, RoundPlan)
    for other in ("x", "update ", "Update", "clip2"):
        with pytest.raises(RuleBroken, match="purpose"):
            cast.devices[10].join(signed(cast, replace(plan, purpose=other)))
        with pytest.raises(ConfigError, match="purpose"):
            cast.play(round_number=2, purpose=other)


def test_a_round_far_ahead_does_not_retire_a_device():
    cast = assemble(3)
    step = cast.params.limits.round_step
    cast.devices[10].join(cast.play(round_number=1).server.plan)
    for far in (2 + step, 2**32 - 1):
        with pytest.raises(RuleBroken, match="above the last one"):
            cast.devices[10].join(cast.play(round_number=far).server.plan)
    cast.devices[10].join(cast.play(round_number=1 + step).server.plan)


@pytest.mark.parametrize("name", ["members", "degree", "dimension"])
def test_a_device_refuses_costs_above_its_own_limits(name):
    small = {"members": 4, "degree": 3, "dimension": 4}[name]
    cast = assemble(5, limits=Limits(**{name: small}))
    error = Malformed if name == "members" else RuleBroken
    with pytest.raises((RuleBroken, error), match=name if name != "members" else "members|bytes"):
        cast.devices[10].join(cast.play().server.plan)
    usual = assemble(5)
    usual.devices[10].join(usual.play().server.plan)


def test_the_terms_bound_what_a_server_plans():
    params = SecAggParams("f", min_honest=2, limits=Limits(degree=7, members=9))
    params.topology(8)
    with pytest.raises(ConfigError, match="8 neighbours"):
        params.topology(9)
    with pytest.raises(ConfigError, match="at most 9 devices"):
        params.topology(10)
    with pytest.raises(ConfigError, match=r"limits\.degree"):
        Limits(degree=0)
    with pytest.raises(ConfigError, match=r"limits\.members"):
        Limits(members=2**15)


def test_the_default_limits_refuse_a_plan_that_costs_gigabytes():
    # 16,384 members, all joined to all: 50 seconds and 4 GB for each device.
    with pytest.raises(ConfigError, match="16383 neighbours"):
        SecAggParams("f", min_honest=2).topology(1 << 14)
    with pytest.raises(RuleBroken, match="degree"):
        Limits().check(1 << 14, (1 << 14) - 1, 1000)


def test_a_drawn_round_ends_in_the_exact_sum():
    cast = assemble(36, min_honest=5, colluders=2, max_dropout=0.1)
    play = cast.play()
    assert play.server.layout.plan.degree < 35
    play.share()
    play.upload(VECTORS, silent={10})
    play.confirm()
    total = play.unmask()
    assert (total == plain_sum(VECTORS, [d for d in cast.ids if d != 10])).all()


def test_draws_are_counted_across_restarts():
    cast = assemble(36, min_honest=5, colluders=2, max_dropout=0.1)
    device = cast.devices[10]
    journal = MemoryJournal()
    public = cast.server.key.public_key().public_bytes_raw()
    for _ in range(cast.params.limits.draws):
        fresh = Participant(device.keys, device.roster, cast.params, public, journal)
        fresh.offer(drawing_of(cast).invitation)
    fresh = Participant(device.keys, device.roster, cast.params, public, journal)
    with pytest.raises(RuleBroken, match="has drawn"):
        fresh.offer(drawing_of(cast).invitation)
