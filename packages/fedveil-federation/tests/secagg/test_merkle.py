"""Rosters as Merkle trees: a device with its neighbours' cards alone checks what it needs."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.secagg import reference
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, Malformed, OutOfTurn, RuleBroken
from fedveil_federation.secagg import merkle, wire
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.layout import needed_places
from fedveil_federation.secagg.messages import Cards, RoundPlan
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Admission, Roster

VECTORS = small_vectors()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 33, 100])
def test_proofs_of_any_places_give_the_root_of_the_second_implementation(count):
    leaves = [os.urandom(32) for _ in range(count)]
    tree, rng = merkle.Tree(leaves), random.Random(count)
    assert tree.root == reference.merkle(leaves)
    for _ in range(20):
        places = rng.sample(range(count), rng.randint(1, count))
        known = {place: leaves[place] for place in places}
        assert merkle.proven_root(count, known, tree.prove(places)) == tree.root


def test_whatever_is_changed_gives_another_root_or_none():
    leaves = [os.urandom(32) for _ in range(21)]
    tree, places = merkle.Tree(leaves), (3, 4, 11, 20)
    known, proof = {place: leaves[place] for place in places}, tree.prove(places)

    def root(count=21, known=known, proof=proof) -> bytes | None:
        try:
            return merkle.proven_root(count, known, proof)
        except Forged:
            return None

    assert root() == tree.root
    others = [root(count=count) for count in (1, 4, 20, 22, 40)]
    others += [root(known={**known, place: os.urandom(32)}) for place in known]
    others += [root(known={place + 1: leaf for place, leaf in known.items()}), root(known={})]
    others += [root(known={place: known[place] for place in (3, 4, 11)})]
    others += [root(known={**known, 3: known[4], 4: known[3]})]
    for at in range(len(proof)):
        others.append(root(proof=proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]))
    others += [root(proof=proof[:-32]), root(proof=proof + bytes(32)), root(proof=proof[:-1])]
    # An inner node is no leaf: the hash of two leaves cannot stand for one.
    assert tree.root not in others
    pair = merkle.Tree(leaves[:2])
    assert merkle.Tree([pair.root]).root != pair.root


def alone(cast, device: int) -> Participant:
    """The same device with nothing but its own card on its roster."""
    old = cast.devices[device]
    roster = Roster("test", Admission(cast.pinned))
    roster.admit(old.keys.card())
    server = cast.server.key.public_key().public_bytes_raw()
    return Participant(old.keys, roster, cast.params, server, MemoryJournal())


@pytest.fixture(scope="module", params=[True, False], ids=["honest", "lying"])
def cast(request):
    found = assemble(60, min_honest=20, colluders=1, max_dropout=0.1, honest_server=request.param)
    assert not found.params.topology(60).complete
    return found


def test_a_round_of_devices_that_know_their_neighbours_alone_is_exact(cast):
    for device in cast.ids:
        cast.devices[device] = alone(cast, device)
    for round_number in (1, 2):
        play = cast.play(round_number=round_number)
        for device in cast.ids:
            frame = cast.server.cards_for(play.server, device)
            assert cast.devices[device].expects(frame[:114]) == len(frame)
            play.rounds[device] = cast.devices[device].join(play.server.plan, frame)
            play.send(play.rounds[device].shares)
        play.server.close_sharing()
        for device in play.server.sharers:
            play.rounds[device].take_sharers(play.server.sharers_for(device))
        play.upload(VECTORS, silent=set(cast.ids[:3]))
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, play.server.survivors))
    degree, drawers = cast.params.topology(60).degree, cast.params.drawers(60, 2)
    most = 1 + 2 * (degree + drawers)  # by now, of two rounds
    assert all(len(device.roster) <= most for device in cast.devices.values())


def joined(cast, device: int, plan: bytes, cards: bytes | None) -> None:
    alone(cast, device).join(plan, cards)


def test_cards_that_are_known_need_not_come_again(cast):
    play = cast.play(round_number=5)
    device = alone(cast, 100)
    places = needed_places(play.server.layout, 100)
    needed = [play.server.layout.plan.members[place] for place in places]
    for other in needed[:10]:
        device.roster.admit(cast.devices[other].keys.card())
    full = cast.server.cards_for(play.server, 100)
    rest = cast.server.cards_for(play.server, 100, known={*needed[:10], 100})
    assert len(rest) < len(full) - 9 * 160
    with pytest.raises(RuleBroken, match="is not enrolled"):
        joined(cast, 100, play.server.plan, rest)  # it has not said the truth
    device.join(play.server.plan, rest)
    # The same roster again: what was proven is remembered, neither cards nor proof are needed.
    again = cast.play(round_number=6)
    if again.server.layout.graph.neighbours(100) == play.server.layout.graph.neighbours(100):
        device.join(again.server.plan)
    else:
        device.join(again.server.plan, cast.server.cards_for(again.server, 100))


def test_without_cards_or_with_those_of_others_nobody_joins(cast):
    play = cast.play(round_number=7)
    plan, layout = play.server.plan, play.server.layout
    with pytest.raises(RuleBroken, match="is not enrolled"):
        joined(cast, 100, plan, None)
    frame = cast.server.cards_for(play.server, 100)
    with pytest.raises(OutOfTurn, match="another device"):
        joined(cast, 110, plan, frame)
    other = cast.play(round_number=8)
    with pytest.raises(OutOfTurn, match="another round"):
        joined(cast, 100, other.server.plan, frame)
    message = peek(frame, Cards)

    def lie(**changes: bytes) -> bytes:
        return wire.seal(replace(message, **changes), cast.server.key)

    with pytest.raises(Forged, match="signature"):
        joined(cast, 100, plan, wire.seal(message, cast.devices[100].keys.identity))
    with pytest.raises(Forged, match="roster proof"):
        joined(cast, 100, plan, lie(proof=message.proof[:-32]))
    with pytest.raises(ForeignKey, match="not the ones this device knows"):
        joined(cast, 100, plan, lie(proof=bytes(32) + message.proof[32:]))
    with pytest.raises(Malformed):
        joined(cast, 100, plan, lie(cards=message.cards[:-1]))
    # A neighbour's newer card, of which the plan knows nothing.
    neighbour = layout.graph.neighbours(100)[0]
    newer = cast.devices[neighbour].keys.renewed().card()
    with pytest.raises(ForeignKey, match="not the ones this device knows"):
        joined(cast, 100, plan, lie(cards=message.cards + newer))
    # Whatever it was shown, a device keeps no card of a round that it has not joined: else the
    # newer one would make it refuse this plan.
    one = alone(cast, 100)
    for changes in ({"cards": message.cards + newer}, {"proof": bytes(32) + message.proof[32:]}):
        with pytest.raises(ForeignKey):
            one.join(plan, lie(**changes))
        assert len(one.roster) == 1
    one.join(plan, frame)
    late = alone(cast, 110)
    late.join(other.server.plan, cast.server.cards_for(other.server, 110))
    known = len(late.roster)
    with pytest.raises(RuleBroken, match="numbers only rise"):
        late.join(plan, cast.server.cards_for(play.server, 110))
    assert len(late.roster) == known


def test_an_old_card_in_the_tree_is_noticed_by_its_owner(cast):
    # The server puts back a key that a device has replaced: everybody else would believe it.
    fresh = assemble(40, min_honest=12, colluders=1, max_dropout=0.1, honest_server=True)
    play = fresh.play()
    owner = alone(fresh, 50)
    owner.roster.admit(owner.renew())
    with pytest.raises(ForeignKey):
        owner.join(play.server.plan, fresh.server.cards_for(play.server, 50, known={50}))
    with pytest.raises(ForeignKey, match="not newer"):
        owner.join(play.server.plan, fresh.server.cards_for(play.server, 50))


def test_members_that_nobody_enrolled_are_refused_by_every_neighbour():
    # Sixty members are named, ten of them invented: whoever stands next to one does not join.
    real = assemble(60, min_honest=20, max_dropout=0.1, honest_server=True)
    pins = Admission(dict(real.pinned))
    invented = {i: new_keys("test", i) for i in range(601, 611)}
    for i, keys in invented.items():
        pins.pinned[i] = keys.identity.public_key().public_bytes_raw()  # the server's own pins
    roster = Roster("test", pins)
    roster.admit_all([real.devices[i].keys.card() for i in real.ids[:50]])
    roster.admit_all([keys.card() for keys in invented.values()])
    real.server.roster = roster
    opened = real.server.open(1, [*real.ids[:50], *invented], 5, 32)
    for device in real.ids[:50]:
        near = opened.layout.graph.neighbours(device)
        frame = real.server.cards_for(opened, device)
        if invented.keys() & set(near):
            with pytest.raises(ForeignKey, match="neither pinned nor certified"):
                joined(real, device, opened.plan, frame)
        else:
            joined(real, device, opened.plan, frame)


def test_the_server_does_not_prove_what_it_no_longer_knows(cast):
    play = cast.play(round_number=9)
    cast.server.roster.admit(cast.devices[300].keys.renewed().card())
    with pytest.raises(ConfigError, match="cards have changed"):
        cast.server.cards_for(play.server, 100)


def test_a_plan_with_another_root_is_refused(cast):
    fresh = assemble(5)
    plan = peek(fresh.play().server.plan, RoundPlan)
    lie = wire.seal(replace(plan, roster=bytes(32)), fresh.server.key)
    with pytest.raises(ForeignKey, match="not the ones this device knows"):
        fresh.devices[10].join(lie)
