"""What a device remembers on disk, and what it pays before it answers."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.secagg.play import assemble, peek, plain_sum, small_vectors
from tests.secagg.stores import DELTA, LOCK, new_store, terms_for

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.privacy.accounting import account
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.sampling import Poisson
from fedveil.privacy.secure_sums.errors import ForeignKey, Malformed, OutOfTurn, RuleBroken
from fedveil_federation import client_events
from fedveil_federation.client_ledger import ClientLedger
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.journal import Claim, MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.messages import Shares
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.ratchet import advance, begin
from fedveil_federation.secagg.roster import Roster

VECTORS = small_vectors()


def wanted(round_number: int, privacy: PrivacyTerms | None = None) -> Claim:
    return Claim("f", round_number, "update", b"cohort", 100, privacy or terms_for())


# --- keys and rounds ------------------------------------------------------------------------------


def test_a_device_keeps_its_keys_and_its_rounds(tmp_path):
    first = new_store(tmp_path / "d")
    keys = first.enrol("f", 7)
    first.claim(wanted(3))
    again = DeviceStore(tmp_path / "d", LOCK)
    assert again.enrol("f", 7).card() == keys.card()
    with pytest.raises(RuleBroken, match="answered before"):
        again.claim(wanted(3))
    again.claim(wanted(4))
    with pytest.raises(RuleBroken, match="it is device 7"):
        again.enrol("f", 8)
    other = again.enrol("g", 8)  # a device may be in several federations
    assert other.device == 8
    assert other.public != keys.public
    renewed = again.renew("f")
    assert renewed.version == 2
    assert renewed.public != keys.public
    with pytest.raises(RuleBroken, match="numbers only rise"):
        again.claim(wanted(2))  # a new key does not make old rounds good
    assert DeviceStore(tmp_path / "d", LOCK).enrol("f", 7).card() == renewed.card()


@pytest.mark.parametrize("loss", ["older copy", "deleted and made anew", "empty", "garbage"])
def test_a_store_that_lost_its_memory_allows_nothing_any_more(tmp_path, loss):
    # The attack: bring back a state from before a round, send the same plan, compare both answers.
    store = new_store(tmp_path / "d")
    store.enrol("f", 7)
    store.claim(wanted(1))
    shutil.copy(tmp_path / "d", tmp_path / "backup")
    store.claim(wanted(2))
    if loss == "older copy":
        shutil.copy(tmp_path / "backup", tmp_path / "d")
    elif loss == "deleted and made anew":
        (tmp_path / "d").unlink()
        with pytest.raises(ConfigError, match="lacks its event"):
            new_store(tmp_path / "d")
        assert not (tmp_path / "d").exists()
        return
    else:
        (tmp_path / "d").write_bytes(b"" if loss == "empty" else os.urandom(5000))
    with pytest.raises(RuleBroken, match="no round without it"):
        DeviceStore(tmp_path / "d", LOCK)
    for act in (lambda: store.claim(wanted(2)), lambda: store.enrol("f", 7)):
        with pytest.raises(RuleBroken, match="no round without it"):
            act()


def test_an_older_copy_is_noticed_whatever_changed_since(tmp_path):
    changes = {
        "renewal": lambda store: store.renew("f"),
        "card": lambda store: Roster("f", PINS, store).admit(OTHER.card()),
        "claim": lambda store: store.claim(wanted(9)),
        "refund": lambda store: store.settle(store.first, left=False),
    }
    OTHER = new_keys("f", 2)
    PINS = {2: OTHER.identity.public_key().public_bytes_raw()}
    for name, change in changes.items():
        store = new_store(tmp_path / name)
        store.enrol("f", 7)
        store.first = store.claim(wanted(1))
        shutil.copy(tmp_path / name, tmp_path / "backup")
        change(store)
        shutil.copy(tmp_path / "backup", tmp_path / name)
        with pytest.raises(RuleBroken, match="older copy"):
            DeviceStore(tmp_path / name, LOCK)


def test_private_keys_are_unreadable_without_the_key_file(tmp_path):
    lock = Lock(b"a" * 32)
    store = DeviceStore.create(tmp_path / "d", lock, budget_epsilon=1.0, delta=DELTA)
    keys = store.enrol("f", 7)
    first = keys.agreement.private_bytes_raw()
    store.renew("f")
    content = (tmp_path / "d").read_bytes()
    for secret in (keys.identity.private_bytes_raw(), first):
        assert secret not in content
        assert secret.hex().encode() not in content
    with pytest.raises(RuleBroken, match="wrong key file"):
        DeviceStore(tmp_path / "d", Lock(b"b" * 32))
    # A sealed key cannot be moved to another device or version.
    with sqlite3.connect(tmp_path / "d") as connection:
        connection.execute("UPDATE keys SET version = 9")
    with pytest.raises(RuleBroken, match="damaged"):
        DeviceStore(tmp_path / "d", lock).enrol("f", 7)


# --- the lifetime ledger --------------------------------------------------------------------------


def charged_cast(tmp_path, budget: float = 1e3, **options):
    """Three devices that pay from ledgers of their own."""
    stores = {i: new_store(tmp_path / str(i), budget) for i in (10, 20, 30)}
    return stores, assemble(3, min_honest=3, journal=stores.__getitem__, **options)


def test_a_device_is_charged_for_each_round_that_it_answers(tmp_path):
    stores, cast = charged_cast(tmp_path)
    terms = terms_for()
    for number in (1, 2, 3):
        play = cast.play(round_number=number, privacy=terms)
        play.share()
        spent = stores[10].ledger.spent()  # before anything that depends on data has left
        release = replace(terms.release, rounds=number)
        expected = account([release], privacy_model=terms.privacy_model, delta=DELTA).epsilon
        assert spent == pytest.approx(expected, rel=1e-9)
        play.upload(VECTORS)
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))
        assert play.rounds[10].privacy == terms


def test_who_cannot_afford_a_round_does_not_answer_it(tmp_path):
    terms = terms_for()
    one = account([terms.release], privacy_model=terms.privacy_model, delta=DELTA).epsilon
    stores, cast = charged_cast(tmp_path, budget=1.5 * one)
    cast.play(round_number=1, privacy=terms).share()
    plan = cast.play(round_number=2, privacy=terms).server.plan
    with pytest.raises(RuleBroken, match="lifetime epsilon would be"):
        cast.devices[10].join(plan)
    # Nothing was written: neither a charge nor a claim.
    assert stores[10].ledger.spent() == pytest.approx(one)
    restarted = DeviceStore(tmp_path / "10", LOCK)
    assert restarted.ledger.spent() == pytest.approx(one)


def test_a_refused_charge_leaves_the_round_unclaimed_and_a_refused_claim_costs_nothing(tmp_path):
    store = new_store(tmp_path / "d", budget=1e3)
    store.claim(wanted(1))
    spent = store.ledger.spent()
    with pytest.raises(RuleBroken, match="answered before"):
        store.claim(wanted(1))
    assert store.ledger.spent() == spent
    dear = replace(terms_for().release.mechanism, share_std=1e-3)
    with pytest.raises(RuleBroken, match="ledger refuses"):
        store.claim(wanted(2, terms_for(mechanism=dear)))
    assert store.ledger.spent() == spent
    store.claim(wanted(2))


def test_a_round_left_before_a_vector_was_masked_costs_nothing(tmp_path):
    stores, cast = charged_cast(tmp_path)
    play = cast.play(privacy=terms_for())
    play.share()
    assert stores[10].ledger.spent() > 0
    notice = play.server.abort()
    play.rounds[10].abort(notice)
    assert stores[10].ledger.spent() == 0
    with pytest.raises(OutOfTurn):
        play.rounds[10].mask(VECTORS(10))
    assert cast.devices[10].join(play.server.plan) is play.rounds[10]  # it stays left
    play.rounds[20].mask(VECTORS(20))
    play.rounds[20].abort(notice)
    # Not even its owner can take back what has left.
    with pytest.raises(RuleBroken, match="cannot cancel"):
        stores[20].settle(play.rounds[20]._charge.reservation, left=False)
    assert stores[20].ledger.spent() > 0


def test_who_sits_a_round_out_is_told_and_pays_nothing(tmp_path):
    stores = {i: new_store(tmp_path / str(i)) for i in (10, 20, 30, 40)}
    cast = assemble(4, min_honest=3, max_dropout=0.25, journal=stores.__getitem__)
    play = cast.play(privacy=terms_for())
    for device in cast.ids:
        play.rounds[device] = cast.devices[device].join(play.server.plan)
        frame = play.rounds[device].shares
        play.send(play.resend(device, frame, roots=bytes(48)) if device == 20 else frame)
    ((out, notice),) = play.server.close_sharing().items()
    assert out == 20
    play.rounds[20].abort(notice)
    assert stores[20].ledger.spent() == 0 < stores[10].ledger.spent()
    play.take_sharers()
    play.upload(VECTORS)
    play.confirm()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, [10, 30, 40]))


def lying(cast, **changed) -> bytes:
    """A plan of a server that checks nothing, with other privacy terms."""
    from tests.secagg.play import peek

    from fedveil_federation.secagg import wire
    from fedveil_federation.secagg.messages import RoundPlan

    plan = peek(cast.play(privacy=terms_for()).server.plan, RoundPlan)
    return wire.seal(replace(plan, **changed), cast.server.key)


def test_a_server_cannot_make_a_round_look_cheaper_than_it_is(tmp_path):
    stores, cast = charged_cast(tmp_path)
    sum_of = terms_for().release.mechanism
    model = terms_for().privacy_model
    cheap = {
        "more shares than the cohort is sure of": terms_for(mechanism=replace(sum_of, shares=1000)),
        "unstated shares": terms_for(mechanism=Gaussian(50.0)),
        "another dimension": terms_for(dimension=4),
        "no participation": terms_for(rounds=0),
        "many rounds in one": terms_for(rounds=2),
        "a trusted aggregator": terms_for(privacy_model=replace(model, trust=Trust.CENTRAL)),
        "colluders leave nobody": terms_for(privacy_model=replace(model, colluders=3)),
    }
    poisson = replace(terms_for().release, mechanism=Gaussian(1.0), sampling=Poisson(0.1))
    cheap["amplified"] = PrivacyTerms(poisson, replace(model, trust=Trust.CENTRAL))
    for name, terms in cheap.items():
        with pytest.raises(RuleBroken):
            cast.devices[10].join(lying(cast, privacy=terms.to_bytes()))
        assert stores[10].ledger.spent() == 0, name
    cast.devices[10].join(lying(cast, privacy=terms_for().to_bytes()))


def test_privacy_terms_are_read_in_one_form_only(tmp_path):
    _, cast = charged_cast(tmp_path)
    good = terms_for().to_bytes()
    assert PrivacyTerms.from_bytes(good) == terms_for()
    document = json.loads(good)
    for bad in (
        b"{}",
        b"[" * 4000,
        b"\xff",
        b"null",
        good + b" ",
        good[:-1],
        good.replace(b'"rounds":1', b'"rounds":1.0'),
        good.replace(b'"rounds":1', b'"rounds":true'),
        good.replace(b'"share_std":4.0', b'"share_std":Infinity'),
        good.replace(b'"share_std":4.0', b'"share_std":NaN'),
        good.replace(b'"share_std":4.0', b'"share_std":-4.0'),
        good.replace(b'"share_std":4.0', b'"share_std":' + b"9" * 3000),
        json.dumps(document | {"more": 1}).encode(),
        json.dumps(document | {"run": 3}).encode(),
        json.dumps(document).encode(),  # with spaces
        good + b" " * 5000,
    ):
        with pytest.raises(Malformed):
            cast.devices[10].join(lying(cast, privacy=bad))


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(act: Callable[[], object]) -> None:
    """Run in a process of its own, which must be killed on the way."""
    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("place", "name", "paid"),
    [
        (ClientLedger, "reserve", False),
        (client_events.Events, "name", False),  # before the commit
        (client_events, "write_head", True),
        (client_events.ledger_anchor, "note", True),
    ],
)
def test_a_claim_that_is_killed_is_paid_and_made_or_neither(tmp_path, place, name, paid):
    store = new_store(tmp_path / "d")

    def claim() -> None:
        setattr(place, name, die)
        DeviceStore(tmp_path / "d", LOCK).claim(wanted(5))

    killed(claim)
    again = DeviceStore(tmp_path / "d", LOCK)
    assert (again.ledger.spent() > 0) == paid
    if paid:
        with pytest.raises(RuleBroken, match="answered before"):
            again.claim(wanted(5))
    else:
        again.claim(wanted(5))
    assert store.ledger.spent() > 0


# --- others' cards --------------------------------------------------------------------------------


def test_replaced_cards_stay_so_after_a_restart(tmp_path):
    keys = new_keys("f", 1)
    pins = {1: keys.identity.public_key().public_bytes_raw()}
    roster = Roster("f", pins, new_store(tmp_path / "d"))
    roster.admit(keys.card())
    renewed = keys.renewed()
    roster.admit(renewed.card())
    restarted = Roster("f", pins, DeviceStore(tmp_path / "d", LOCK))
    with pytest.raises(ForeignKey, match="not newer than 2"):
        restarted.admit(keys.card())
    restarted.admit(renewed.card())
    assert restarted.get(1).version == 2


def test_a_batch_of_cards_is_admitted_whole_or_not_at_all(tmp_path):
    keys = [new_keys("f", i) for i in range(4)]
    pins = {k.device: k.identity.public_key().public_bytes_raw() for k in keys[:3]}
    roster = Roster("f", pins, new_store(tmp_path / "d"))
    with pytest.raises(ForeignKey, match="pinned"):
        roster.admit(*(k.card() for k in keys))
    assert len(roster) == 0
    with pytest.raises(ForeignKey, match="not newer"):
        roster.admit(keys[0].renewed().card(), keys[0].card())
    assert len(roster) == 0
    roster.admit(*(k.card() for k in keys[:3]), keys[0].card(), keys[1].renewed().card())
    assert [roster.get(i).version for i in range(3)] == [1, 2, 1]


def test_the_same_shares_sealed_twice_do_not_show_their_difference():
    # A device that forgot a round deals again under the same pair keys.
    cast = assemble(3)
    plan = cast.play().server.plan
    rounds = []
    for _ in range(2):
        rounds.append(peek(cast.devices[10].join(plan).shares, Shares))
        cast.devices[10]._open.clear()
        cast.devices[10]._journal = MemoryJournal()
    assert rounds[0].roots == rounds[1].roots  # the same keys
    assert rounds[0].nonce != rounds[1].nonce
    pads = [pairs.pads([bytes(32)], [dealt.nonce], [10]) for dealt in rounds]
    assert pads[0] != pads[1]


# --- forward secrecy ------------------------------------------------------------------------------


def test_a_ratchet_leads_forward_and_nothing_it_keeps_leads_back():
    seed = os.urandom(32)
    at = begin(seed, 5)
    assert advance(at, 700).key == begin(seed, 700).key
    kept = {at.key, *(at.ahead[i : i + 32] for i in range(0, 256, 32))}
    assert len(kept) == 9
    for earlier in range(5):
        past = begin(seed, earlier)
        assert past.key not in kept
        assert seed not in kept
        # Nothing kept is an ancestor of an earlier key: stepping or branching never meets it.
        reachable = {advance(at, later).key for later in range(6, 40)}
        assert past.key not in reachable
    with pytest.raises(RuleBroken, match="numbers only rise"):
        advance(at, 4)
