"""Keys are bound to identities known beforehand; joining and renewal need no restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from tests.secagg.play import agreed, assemble, peek, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, RuleBroken
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.messages import KeyCard
from fedveil_federation.secagg.pairs import pair_seed
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster

VECTORS = small_vectors()


def raw_identity(keys) -> bytes:
    return keys.identity.public_key().public_bytes_raw()


def pinned_roster(*keys) -> Roster:
    return Roster("test", {k.device: raw_identity(k) for k in keys})


def test_an_identity_that_was_not_pinned_is_foreign():
    known, stranger = new_keys("test", 1), new_keys("test", 1)
    for roster in (pinned_roster(known), pinned_roster()):
        with pytest.raises(ForeignKey):
            roster.admit(stranger.card())


def test_a_card_signed_by_anybody_else_is_forged():
    keys, thief = new_keys("test", 1), Ed25519PrivateKey.generate()
    card = peek(keys.card(), KeyCard)
    with pytest.raises(Forged):
        pinned_roster(keys).admit(wire.seal(card, thief))


def test_the_server_cannot_swap_the_agreement_key_on_a_card():
    keys, other = new_keys("test", 1), new_keys("test", 2)
    card = peek(keys.card(), KeyCard)
    swapped = replace(card, agreement=other.agreement.public_key().public_bytes_raw())
    frame = wire.seal(swapped, other.identity)
    with pytest.raises(Forged):
        pinned_roster(keys).admit(frame)


def test_key_versions_only_rise():
    keys = new_keys("test", 1)
    roster = pinned_roster(keys)
    old, renewed = keys.card(), keys.renewed()
    roster.admit(old)
    roster.admit(old)  # the same card again changes nothing
    roster.admit(renewed.card())
    with pytest.raises(ForeignKey, match="not newer than 2"):
        roster.admit(old)
    twin = replace(renewed, agreement=new_keys("test", 1).agreement)
    with pytest.raises(ForeignKey, match="not newer than 2"):
        roster.admit(twin.card())
    assert roster.get(1).version == 2


def test_cards_of_another_federation_are_foreign():
    keys = new_keys("elsewhere", 1)
    with pytest.raises(ForeignKey, match="federation"):
        Roster("test", {1: raw_identity(keys)}).admit(keys.card())


def test_a_key_of_small_order_is_refused():
    keys, other = new_keys("test", 1), new_keys("test", 2)
    roster = pinned_roster(keys, other)
    roster.admit(keys.card(), other.card())
    own, weak = roster.get(1), roster.get(2)
    weak = replace(weak, agreement=X25519PublicKey.from_public_bytes(bytes(32)))
    with pytest.raises(ForeignKey, match="weak"):
        pair_seed(own, keys.agreement, weak)
    card = replace(peek(other.renewed().card(), KeyCard), agreement=bytes(32))
    with pytest.raises(ForeignKey, match="weak"):
        roster.admit(wire.seal(card, other.identity))


def test_devices_join_and_renew_between_rounds_without_a_restart():
    cast = assemble(4)

    def sum_of(round_number: int, members: list[int]) -> np.ndarray:
        play = cast.play(round_number=round_number, members=members)
        play.share()
        play.upload(VECTORS)
        play.confirm()
        return play.unmask()

    roster = cast.server.roster
    assert np.array_equal(sum_of(1, cast.ids), plain_sum(VECTORS, cast.ids))

    newcomer = new_keys("test", 50)
    cast.pinned[50] = raw_identity(newcomer)
    roster.admit(newcomer.card())
    public = cast.server.key.public_key().public_bytes_raw()
    cast.devices[50] = Participant(newcomer, roster, cast.params, public, MemoryJournal())
    assert np.array_equal(sum_of(2, cast.ids), plain_sum(VECTORS, cast.ids))

    before = agreed(cast.devices[20], 10, 2)
    roster.admit(cast.renew(10))
    assert agreed(cast.devices[20], 10, 2) != before
    assert agreed(cast.devices[20], 10, 2) == agreed(cast.devices[10], 20, 2)
    assert np.array_equal(sum_of(3, cast.ids), plain_sum(VECTORS, cast.ids))

    with pytest.raises(RuleBroken, match="device 70 is not enrolled"):
        cast.server.open(4, [*cast.ids, 70], 5, 32)
    members = [10, 20, 40, 50]
    assert np.array_equal(sum_of(4, members), plain_sum(VECTORS, members))


def test_a_device_whose_neighbour_has_an_older_card_refuses_the_round():
    cast = assemble(4, own_rosters=True)
    card = cast.renew(10)
    cast.server.roster.admit(card)
    cast.devices[10].roster.admit(card)
    play = cast.play()
    with pytest.raises(ForeignKey, match="not the ones this device knows"):
        cast.devices[20].join(play.server.plan)
    cast.devices[20].roster.admit(card)
    cast.devices[20].join(play.server.plan)


def test_a_renewed_key_answers_to_the_same_journal():
    cast = assemble(3)
    cast.devices[10].join(cast.play(round_number=8).server.plan)
    cast.server.roster.admit(cast.renew(10))
    with pytest.raises(RuleBroken, match="answered before"):
        cast.devices[10].join(cast.play(round_number=8).server.plan)


def test_both_ends_agree_on_a_seed_and_no_third_does():
    keys = [new_keys("test", i) for i in (1, 2, 3)]
    roster = pinned_roster(*keys)
    roster.admit(*(k.card() for k in keys))
    a, b, c = map(roster.get, (1, 2, 3))
    seed = pair_seed(a, keys[0].agreement, b)
    assert seed == pair_seed(b, keys[1].agreement, a)
    assert seed not in (pair_seed(c, keys[2].agreement, a), pair_seed(c, keys[2].agreement, b))


def test_a_device_that_renewed_does_not_use_its_old_card():
    cast = assemble(3)
    cast.renew(10)  # the new card has reached nobody yet
    with pytest.raises(ForeignKey, match="another key of its own"):
        cast.devices[10].join(cast.play().server.plan)


def test_nobody_is_a_member_of_a_round_twice():
    cast = assemble(4)
    with pytest.raises(ConfigError, match="named twice"):
        cast.server.open(1, [10, 20, 20, 30], 5, 32, "update")


def test_old_seeds_are_forgotten_and_agreed_anew():
    cast = assemble(6)
    device = cast.devices[10]
    device._remembered = 2
    seed = agreed(device, 20, 1)
    device.join(cast.play().server.plan)
    assert list(device._ratchets) == [50, 60]
    assert agreed(device, 20, 1) == seed


def test_keys_roster_and_terms_must_be_of_one_federation():
    keys = new_keys("test", 1)
    with pytest.raises(ConfigError, match="federation"):
        Participant(
            keys,
            pinned_roster(keys),
            SecAggParams("other", 2),
            raw_identity(keys),
            MemoryJournal(),
        )
    with pytest.raises(ConfigError, match="device = -1"):
        new_keys("test", -1)
