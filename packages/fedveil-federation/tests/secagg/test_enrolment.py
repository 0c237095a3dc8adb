"""Keys are bound to identities known beforehand; joining, leaving and renewal need no restart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from tests.secagg.play import assemble, peek, plain_sum, small_vectors

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, Malformed, RuleBroken
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.journal import MemoryJournal
from fedveil_federation.secagg.keys import certify, new_keys
from fedveil_federation.secagg.messages import KeyCard, Leave
from fedveil_federation.secagg.pairs import pair_seed
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Admission, Roster

VECTORS = small_vectors()


def raw_identity(keys) -> bytes:
    return keys.identity.public_key().public_bytes_raw()


def pinned_roster(*keys) -> Roster:
    return Roster("test", Admission({k.device: raw_identity(k) for k in keys}))


def test_both_ends_agree_on_a_seed_and_no_third_does():
    keys = [new_keys("test", i) for i in (1, 2, 3)]
    roster = pinned_roster(*keys)
    a, b, c = (roster.admit(k.card()) for k in keys)
    seed = pair_seed(a, keys[0].agreement, b)
    assert seed == pair_seed(b, keys[1].agreement, a)
    assert seed not in (pair_seed(c, keys[2].agreement, a), pair_seed(c, keys[2].agreement, b))


def test_an_identity_that_was_not_pinned_is_foreign():
    known, stranger = new_keys("test", 1), new_keys("test", 1)
    with pytest.raises(ForeignKey, match="neither pinned nor certified"):
        pinned_roster(known).admit(stranger.card())
    with pytest.raises(ForeignKey):
        Roster("test", Admission()).admit(known.card())


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


def test_an_authority_admits_devices_that_nobody_pinned():
    authority = Ed25519PrivateKey.generate()
    roster = Roster("test", Admission(authority=authority.public_key().public_bytes_raw()))
    keys = new_keys("test", 5)
    with pytest.raises(ForeignKey):
        roster.admit(keys.card())
    certificate = certify(authority, "test", 5, raw_identity(keys))
    roster.admit(replace(keys, certificate=certificate).card())
    assert 5 in roster
    for wrong in (
        certify(authority, "other", 6, raw_identity(keys)),
        certify(authority, "test", 5, raw_identity(keys)),
        certify(Ed25519PrivateKey.generate(), "test", 6, raw_identity(keys)),
    ):
        with pytest.raises(ForeignKey):
            roster.admit(replace(keys, device=6, certificate=wrong).card())


def test_an_authority_cannot_replace_an_identity_that_was_pinned():
    authority = Ed25519PrivateKey.generate()
    public = authority.public_key().public_bytes_raw()
    keys, impostor = new_keys("test", 5), new_keys("test", 5)
    certificate = certify(authority, "test", 5, raw_identity(impostor))
    roster = Roster("test", Admission({5: raw_identity(keys)}, public))
    with pytest.raises(ForeignKey, match="neither pinned nor certified"):
        roster.admit(replace(impostor, certificate=certificate).card())
    roster.admit(keys.card())
    other = new_keys("test", 6)  # nobody pinned it: here the authority's word counts
    certificate = certify(authority, "test", 6, raw_identity(other))
    roster.admit(replace(other, certificate=certificate).card())


def test_an_id_never_passes_to_another_identity():
    authority = Ed25519PrivateKey.generate()
    roster = Roster("test", Admission(authority=authority.public_key().public_bytes_raw()))
    first, second = new_keys("test", 5), new_keys("test", 5)
    cards = [
        replace(k, certificate=certify(authority, "test", 5, raw_identity(k)))
        for k in (first, second)
    ]
    roster.admit(cards[0].card())
    with pytest.raises(ForeignKey, match="another identity"):
        roster.admit(cards[1].card())
    roster.withdraw(cards[0].leave())
    with pytest.raises(ForeignKey, match="another identity"):
        roster.admit(cards[1].card())


def test_key_versions_only_rise():
    keys = new_keys("test", 1)
    roster = pinned_roster(keys)
    old, renewed = keys.card(), keys.renewed()
    roster.admit(old)
    assert roster.admit(old).version == 1  # the same card again changes nothing
    roster.admit(renewed.card())
    with pytest.raises(ForeignKey, match="not newer than 2"):
        roster.admit(old)
    twin = replace(renewed, agreement=new_keys("test", 1).agreement)
    with pytest.raises(ForeignKey, match="not newer than 2"):
        roster.admit(twin.card())
    roster.withdraw(renewed.leave())
    assert 1 not in roster
    with pytest.raises(ForeignKey, match="not newer than 2"):
        roster.admit(renewed.card())
    roster.admit(renewed.renewed().card())
    assert 1 in roster


def test_only_the_device_itself_can_leave():
    keys, other = new_keys("test", 1), new_keys("test", 2)
    roster = pinned_roster(keys, other)
    roster.admit(keys.card())
    with pytest.raises(Forged):
        roster.withdraw(wire.seal(Leave("test", 1, 1, raw_identity(keys)), other.identity))
    with pytest.raises(ForeignKey):
        roster.withdraw(other.leave())
    roster.admit(keys.renewed().card())
    with pytest.raises(ForeignKey, match="older key"):
        roster.withdraw(keys.leave())


def test_cards_of_another_federation_are_foreign():
    keys = new_keys("elsewhere", 1)
    with pytest.raises(ForeignKey, match="federation"):
        Roster("test", Admission({1: raw_identity(keys)})).admit(keys.card())


def test_a_card_is_no_leave_and_no_plan():
    keys = new_keys("test", 1)
    roster = pinned_roster(keys)
    with pytest.raises(Malformed):
        roster.withdraw(keys.card())
    with pytest.raises(Malformed):
        roster.admit(keys.leave())


def test_a_key_of_small_order_is_refused():
    keys, other = new_keys("test", 1), new_keys("test", 2)
    roster = pinned_roster(keys, other)
    own, weak = roster.admit(keys.card()), roster.admit(other.card())
    weak = replace(weak, agreement=X25519PublicKey.from_public_bytes(bytes(32)))
    with pytest.raises(ForeignKey, match="weak"):
        pair_seed(own, keys.agreement, weak)
    card = replace(peek(other.renewed().card(), KeyCard), agreement=bytes(32))
    with pytest.raises(ForeignKey, match="weak"):
        roster.admit(wire.seal(card, other.identity))


def test_devices_join_leave_and_renew_between_rounds_without_a_restart():
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

    before = cast.devices[20].agree(10, 2)
    roster.admit(cast.devices[10].renew())
    assert cast.devices[20].agree(10, 2) != before
    assert cast.devices[20].agree(10, 2) == cast.devices[10].agree(20, 2)
    assert np.array_equal(sum_of(3, cast.ids), plain_sum(VECTORS, cast.ids))

    roster.withdraw(cast.devices[30].keys.leave())
    with pytest.raises(RuleBroken, match="device 30 is not enrolled"):
        cast.server.open(4, cast.ids, 5, 32)
    members = [10, 20, 40, 50]
    assert np.array_equal(sum_of(4, members), plain_sum(VECTORS, members))


def test_a_device_whose_neighbour_has_an_older_card_refuses_the_round():
    cast = assemble(4, own_rosters=True)
    card = cast.devices[10].renew()
    cast.server.roster.admit(card)
    cast.devices[10].roster.admit(card)
    play = cast.play()
    with pytest.raises(ForeignKey, match="not the ones this device knows"):
        cast.devices[20].join(play.server.plan)
    cast.devices[20].roster.admit(card)
    cast.devices[20].join(play.server.plan)


def test_a_device_that_renewed_does_not_use_its_old_card():
    cast = assemble(3)
    cast.devices[10].renew()  # the new card has reached nobody yet
    with pytest.raises(ForeignKey, match="another key of its own"):
        cast.devices[10].join(cast.play().server.plan)


def test_a_device_whose_own_new_card_comes_with_the_plan_agrees_with_everybody():
    # With seeds made of its old card it would contradict all its neighbours, and be evicted.
    cast = assemble(4, own_rosters=True)
    cast.server.roster.admit(cast.devices[10].renew())
    play = cast.play()
    for device in cast.ids:
        cards = cast.server.cards_for(play.server, device)
        play.rounds[device] = cast.devices[device].join(play.server.plan, cards)
        play.send(play.rounds[device].shares)
    play.server.close_sharing()
    assert not play.server.odds
    play.take_sharers()
    play.upload(VECTORS)
    play.confirm()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))


def test_seeds_are_not_agreed_by_a_card_that_was_replaced():
    cast = assemble(3)
    card = cast.devices[10].renew()
    with pytest.raises(ForeignKey, match="another key of its own"):
        cast.devices[10].forget_agreement(cast.ids)
    cast.server.roster.admit(card)
    cast.devices[10].forget_agreement(cast.ids)
    assert cast.devices[10].agree(20, 1) == cast.devices[20].agree(10, 1)


def test_nobody_is_a_member_of_a_round_twice():
    cast = assemble(4)
    with pytest.raises(ConfigError, match="named twice"):
        cast.server.open(1, [10, 20, 20, 30], 5, 32, "update")


def test_a_renewed_key_answers_to_the_same_journal():
    cast = assemble(3)
    device = cast.devices[10]
    device.join(cast.play(round_number=8).server.plan)
    cast.server.roster.admit(device.renew())
    with pytest.raises(RuleBroken, match="answered before"):
        device.join(cast.play(round_number=8).server.plan)


def test_old_seeds_are_forgotten_and_agreed_anew():
    cast = assemble(6)
    device = cast.devices[10]
    device._remembered = 2
    seed = device.agree(20, 1)
    device.join(cast.play().server.plan)
    assert list(device._ratchets) == [50, 60]
    assert device.agree(20, 1) == seed


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
