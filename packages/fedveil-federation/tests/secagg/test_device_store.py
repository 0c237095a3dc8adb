"""What a device remembers on disk, and what it pays before it answers."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from tests.secagg.play import agreed, assemble, peek, plain_sum, small_vectors
from tests.secagg.stores import DELTA, LOCK, new_store, terms_for

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.privacy.accounting import account
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.sampling import Poisson
from fedveil.privacy.secure_sums.errors import (
    ForeignKey,
    Malformed,
    OutOfTurn,
    RuleBroken,
    SecureAggregationError,
)
from fedveil_federation import client_events
from fedveil_federation.client_ledger import ClientLedger
from fedveil_federation.secagg import pairs
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.journal import Claim, MemoryJournal
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.messages import Shares
from fedveil_federation.secagg.pairs import PairKeys
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


def test_a_store_is_made_once_and_never_by_opening_it(tmp_path):
    with pytest.raises(RuleBroken, match="not there"):
        DeviceStore(tmp_path / "d", LOCK)
    assert not list(tmp_path.iterdir())
    new_store(tmp_path / "d").claim(wanted(1))
    with pytest.raises(RuleBroken, match="exists"):
        new_store(tmp_path / "d")
    with pytest.raises(RuleBroken, match="answered before"):
        DeviceStore(tmp_path / "d", LOCK).claim(wanted(1))
    with pytest.raises(ConfigError, match="budget_epsilon"):
        new_store(tmp_path / "e", budget=-1)
    assert not (tmp_path / "e").exists()


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
        "card": lambda store: Roster("f", PINS, store.memory("f")).admit(OTHER.card()),
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


def test_files_are_their_owners_alone_and_say_what_they_are(tmp_path):
    store = new_store(tmp_path / "d" / "store")
    store.claim(wanted(1))
    for path in (tmp_path / "d").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    store.path.chmod(0o644)
    store.claim(wanted(2))
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE store SET version = 99")
    with pytest.raises(RuleBroken, match="another version"):
        DeviceStore(store.path, LOCK)


def test_claims_reach_the_disk_and_so_do_the_names_of_files(tmp_path, monkeypatch):
    # `EXTRA` also syncs the directory in which SQLite deletes its rollback journal.
    statements = []
    real = sqlite3.connect

    def connect(*arguments, **options):
        opened = real(*arguments, **options)
        opened.set_trace_callback(statements.append)
        return opened

    monkeypatch.setattr(sqlite3, "connect", connect)
    new_store(tmp_path / "d").claim(wanted(1))
    begins = statements.count("BEGIN IMMEDIATE")
    assert begins == statements.count("PRAGMA synchronous = EXTRA") >= 3


def test_a_lock_is_scrypt_as_others_compute_it():
    """A store must open in any later version: its key may never be derived in another way."""
    salt = bytes(range(16))
    expected = hashlib.scrypt(b"correct horse battery", salt=salt, n=2, r=8, p=1, dklen=32)
    assert Lock(b"correct horse battery").key(salt) == expected


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


def test_key_files_that_protect_nothing_are_refused(tmp_path):
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match="No such file"):
        Lock.key_file(path)
    path.write_bytes(os.urandom(32))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Lock.key_file(path)
    path.chmod(0o600)
    assert Lock.key_file(path).key(bytes(16)) == Lock.key_file(path).key(bytes(16))
    assert "secret" not in repr(Lock.key_file(path))
    path.write_bytes(b"x" * 31)
    with pytest.raises(ConfigError, match="32 random bytes"):
        Lock.key_file(path)


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


def test_a_plan_that_does_not_say_what_it_costs_is_refused(tmp_path):
    _, cast = charged_cast(tmp_path)
    with pytest.raises(RuleBroken, match="does not say what taking part costs"):
        cast.devices[10].join(cast.play().server.plan)


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


def test_numbers_that_no_accountant_can_take_end_in_a_refusal(tmp_path):
    stores, cast = charged_cast(tmp_path)
    for clip_norm, granularity, share_std in (
        (1e-99, 1e99, 1e-99),
        (1e99, 1e-99, 1e9),
        (1e99, 1e99, 1e99),
        (1e-99, 1e-99, 1e-99),
    ):
        mechanism = DiscreteGaussianSum(clip_norm, granularity, share_std, 3, 5, 0.5)
        terms = terms_for(mechanism=mechanism).to_bytes()
        with suppress(SecureAggregationError):
            cast.devices[10].join(lying(cast, privacy=terms))
    assert stores[10].ledger.spent() < 1e3


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


@pytest.mark.parametrize(
    ("place", "name"), [(client_events.sqlite3, "connect"), (client_events.Events, "name")]
)
def test_a_store_whose_making_was_killed_can_be_made_again(tmp_path, place, name):
    def create() -> None:
        setattr(place, name, die)
        new_store(tmp_path / "d")

    killed(create)
    assert (tmp_path / "d").exists()
    with pytest.raises(RuleBroken, match="no round without it"):
        DeviceStore(tmp_path / "d", LOCK)
    new_store(tmp_path / "d").claim(wanted(1))
    with pytest.raises(RuleBroken, match="exists"):
        new_store(tmp_path / "d")


def test_making_a_store_harms_no_other_file(tmp_path):
    (tmp_path / "d").write_bytes(b"something else entirely" * 100)
    with pytest.raises(ConfigError, match="not a ledger"):
        new_store(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == b"something else entirely" * 100


# --- others' cards --------------------------------------------------------------------------------


def test_replaced_cards_stay_so_after_a_restart(tmp_path):
    keys = new_keys("f", 1)
    pins = {1: keys.identity.public_key().public_bytes_raw()}
    roster = Roster("f", pins, new_store(tmp_path / "d").memory("f"))
    roster.admit(keys.card())
    renewed = keys.renewed()
    roster.admit(renewed.card())
    restarted = Roster("f", pins, DeviceStore(tmp_path / "d", LOCK).memory("f"))
    with pytest.raises(ForeignKey, match="not newer than 2"):
        restarted.admit(keys.card())
    restarted.admit(renewed.card())
    assert restarted.get(1).version == 2


def test_a_batch_of_cards_is_admitted_whole_or_not_at_all(tmp_path):
    keys = [new_keys("f", i) for i in range(4)]
    pins = {k.device: k.identity.public_key().public_bytes_raw() for k in keys[:3]}
    roster = Roster("f", pins, new_store(tmp_path / "d").memory("f"))
    with pytest.raises(ForeignKey, match="pinned"):
        roster.admit(*(k.card() for k in keys))
    assert len(roster) == 0
    with pytest.raises(ForeignKey, match="not newer"):
        roster.admit(keys[0].renewed().card(), keys[0].card())
    assert len(roster) == 0
    roster.admit(*(k.card() for k in keys[:3]), keys[0].card(), keys[1].renewed().card())
    assert [roster.get(i).version for i in range(3)] == [1, 2, 1]


def test_an_id_stays_with_its_identity_after_a_restart(tmp_path):
    keys, thief = new_keys("f", 1), new_keys("f", 1)
    store = new_store(tmp_path / "d")
    for known in (keys, thief):
        pins = {1: known.identity.public_key().public_bytes_raw()}
        roster = Roster("f", pins, store.memory("f"))
        if known is keys:
            roster.admit(keys.card())
        else:
            with pytest.raises(ForeignKey, match="another identity"):
                roster.admit(thief.card())


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


def test_a_ratchet_turned_round_after_round_keeps_what_one_turned_at_once_keeps():
    seed, at = os.urandom(32), 0
    turned = begin(seed, at)
    for step in (1, 1, 1, 12, 1, 1, 239, 1, 300, 2, 16**5, 1, 15, 16**7 - 1, 1):
        at += step
        turned = advance(turned, at)
        assert turned == begin(seed, at)


def test_who_breaks_in_after_the_key_was_forgotten_cannot_unmask_the_past():
    cast = assemble(4)
    for device in cast.devices.values():
        device.forget_agreement(cast.ids)
    roots = []
    for round_number in (3, 4, 9):
        play = cast.play(round_number=round_number)
        play.share()
        roots.append(play.rounds[10]._pairs[20].root)
        plan = play.server.layout.digest
        play.upload(VECTORS)
        play.confirm()
        assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))
        stolen = cast.devices[10]._ratchets[20][1]
        assert stolen.round_number == round_number
        assert pairs.pair_keys(stolen.key, plan).root == roots[-1]  # this round's, while it lasts
    assert cast.devices[10].keys.agreement is None
    with pytest.raises(RuleBroken, match="numbers only rise"):
        agreed(cast.devices[10], 20, 8)
    # A device that it never met needs a new key of it.
    cast.devices[10]._ratchets.pop(30)
    with pytest.raises(RuleBroken, match="renew the key"):
        cast.devices[10].join(cast.play(round_number=10).server.plan)
    cast.server.roster.admit(cast.renew(10))
    cast.devices[10].join(cast.play(round_number=10).server.plan)


def test_no_seed_is_lost_when_the_key_is_forgotten():
    cast = assemble(6)
    device = cast.devices[10]
    device._remembered = 4
    with pytest.raises(ConfigError, match="5 devices, 4 seeds are remembered"):
        device.forget_agreement(cast.ids)
    device.join(cast.play().server.plan)  # its seeds are those with 30, 40, 50 and 60
    device.forget_agreement(cast.ids[:5])
    for other in (20, 30, 40, 50):
        assert agreed(device, other, 1) == agreed(cast.devices[other], 10, 1)


def test_a_forgotten_key_leaves_the_disk_and_the_next_start_renews_it(tmp_path):
    store = new_store(tmp_path / "d")
    first = store.enrol("f", 7)
    store.forget("f")
    again = DeviceStore(tmp_path / "d", LOCK).enrol("f", 7)
    assert again.version == 2
    assert again.public != first.public


def test_keys_never_show_in_a_log(tmp_path):
    keys = PairKeys(*(os.urandom(32) for _ in range(3)))
    shown = f"{keys} {keys!r} {begin(keys.root, 3)} {new_keys('f', 1)!r} {[keys]}"
    for secret in (keys.seal, keys.root, keys.tag):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert shown.startswith("PairKeys()")
