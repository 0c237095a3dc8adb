"""What a device remembers on disk: lost, copied or half-written, it answers no round twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat

import numpy as np
import pytest

from fedveil.secagg import pairs, store
from fedveil.secagg.errors import ForeignKey, RuleBroken
from fedveil.secagg.journal import Claim, FileJournal
from fedveil.secagg.keys import new_keys
from fedveil.secagg.pairs import PairKeys
from fedveil.secagg.ratchet import advance, begin
from fedveil.secagg.roster import Admission, FileMemory, Roster
from fedveil.secagg.vault import Vault
from tests.secagg.play import assemble, plain_sum, small_vectors

VECTORS = small_vectors()


def wanted(round_number: int) -> Claim:
    return Claim("f", round_number, "update", b"cohort", 100)


def journal_of(directory):
    (found,) = directory.glob("journal-*.sqlite")
    return found


def test_a_device_keeps_its_keys_and_its_rounds(tmp_path):
    first = Vault(tmp_path / "d").open("f", 7)
    assert first.renewed == "no key was here"
    first.journal.claim(wanted(3))
    again = Vault(tmp_path / "d").open("f", 7)
    assert again.renewed == ""
    assert again.keys.card() == first.keys.card()
    with pytest.raises(RuleBroken, match="answered before"):
        again.journal.claim(wanted(3))
    again.journal.claim(wanted(4))
    with pytest.raises(RuleBroken, match="directory of its own"):
        Vault(tmp_path / "d").open("f", 8)


@pytest.mark.parametrize("loss", ["deleted", "older copy", "of another key", "empty", "garbage"])
def test_a_key_whose_journal_is_lost_is_renewed_and_never_used_again(tmp_path, loss):
    first = Vault(tmp_path / "d").open("f", 7)
    journal = journal_of(tmp_path / "d")
    shutil.copy(journal, tmp_path / "backup")
    first.journal.claim(wanted(3))
    if loss == "deleted":
        journal.unlink()
    elif loss == "older copy":
        shutil.copy(tmp_path / "backup", journal)
    elif loss == "of another key":
        Vault(tmp_path / "e").open("f", 9)
        shutil.copy(journal_of(tmp_path / "e"), journal)
    else:
        journal.write_bytes(b"" if loss == "empty" else os.urandom(5000))
    again = Vault(tmp_path / "d").open("f", 7)
    assert again.renewed
    assert again.keys.version == first.keys.version + 1
    assert again.keys.public != first.keys.public
    with pytest.raises(RuleBroken, match="numbers only rise"):
        again.journal.claim(wanted(2))  # what the key file remembers still counts
    third = Vault(tmp_path / "d").open("f", 7)
    assert third.renewed == ""
    assert third.keys.card() == again.keys.card()


def test_the_round_that_a_lost_journal_had_answered_is_not_answered_again(tmp_path):
    # The attack: delete the journal, send the same plan, compare the two answers.
    vaults = {i: Vault(tmp_path / str(i)) for i in (10, 20, 30)}
    cast = assemble(3)
    opened = {i: vault.open("test", i) for i, vault in vaults.items()}
    roster = Roster(
        "test",
        Admission({i: o.keys.identity.public_key().public_bytes_raw() for i, o in opened.items()}),
    )
    for device in opened.values():
        roster.admit(device.keys.card())
    cast.server.roster = roster
    for i, device in opened.items():
        cast.devices[i].keys, cast.devices[i].roster = device.keys, roster
        cast.devices[i]._journal = device.journal
    play = cast.play()
    play.share()
    play.upload(VECTORS)
    journal_of(tmp_path / "10").unlink()
    restarted = vaults[10].open("test", 10)
    assert restarted.renewed
    cast.devices[10].keys, cast.devices[10]._journal = restarted.keys, restarted.journal
    cast.devices[10]._open.clear()
    with pytest.raises(ForeignKey, match="another key of its own"):
        cast.devices[10].join(play.server.plan)
    play.confirm()
    assert np.array_equal(play.unmask(), plain_sum(VECTORS, cast.ids))


def test_the_same_shares_sealed_twice_do_not_show_their_difference():
    key, first, second = os.urandom(32), os.urandom(64), os.urandom(64)
    a, b = pairs.seal_shares(key, first), pairs.seal_shares(key, second)
    assert a[:12] != b[:12]
    xor = bytes(x ^ y for x, y in zip(a[12:76], b[12:76], strict=True))
    assert xor != bytes(x ^ y for x, y in zip(first, second, strict=True))
    assert pairs.open_shares(key, a) == first


def test_files_are_their_owners_alone_and_say_what_they_are(tmp_path):
    opened = Vault(tmp_path / "d").open("f", 7)
    opened.journal.claim(wanted(1))
    files = list((tmp_path / "d").iterdir())
    assert len(files) == 3
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if path.suffix == ".sqlite":
            with sqlite3.connect(path) as connection:
                assert connection.execute("PRAGMA user_version").fetchone() == (store.VERSION,)
                assert connection.execute("PRAGMA application_id").fetchone()[0]
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


def test_a_journal_of_another_version_is_refused(tmp_path):
    FileJournal.create(tmp_path / "j", b"k")
    for pragma in ("user_version = 1", "user_version = 99"):
        with sqlite3.connect(tmp_path / "j") as connection:
            connection.execute(f"PRAGMA {pragma}")
        with pytest.raises(RuleBroken, match="another program or version"):
            FileJournal(tmp_path / "j", b"k")


def test_a_journal_is_never_made_over_one_that_is_there(tmp_path):
    FileJournal.create(tmp_path / "j", b"k").claim(wanted(1))
    with pytest.raises(RuleBroken):
        FileJournal.create(tmp_path / "j", b"k")
    with pytest.raises(RuleBroken, match="answered before"):
        FileJournal(tmp_path / "j", b"k").claim(wanted(1))


def test_claims_reach_the_disk_and_so_do_the_names_of_files(tmp_path, monkeypatch):
    # `EXTRA` also syncs the directory in which SQLite deletes its rollback journal.
    statements, synced = [], []
    real = sqlite3.connect

    def connect(*arguments, **options):
        opened = real(*arguments, **options)
        opened.set_trace_callback(statements.append)
        return opened

    fsync = os.fsync
    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle)),
    )
    opened = Vault(tmp_path / "d").open("f", 7)
    opened.journal.claim(wanted(1))
    begins = statements.count("BEGIN IMMEDIATE")
    assert begins == statements.count("PRAGMA synchronous = EXTRA") > 3
    assert str(tmp_path / "d") in synced


def test_a_half_made_directory_is_finished_or_begun_anew(tmp_path, monkeypatch):
    # Killed between the journal and the key file: no key was ever used.
    vault = Vault(tmp_path / "d")
    with monkeypatch.context() as broken:
        broken.setattr(Vault, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            vault.open("f", 7)
    assert Vault(tmp_path / "d").open("f", 7).renewed == "no key was here"
    # Killed between a claim and the count of it: the journal is ahead, which is fine.
    vault = Vault(tmp_path / "d")
    opened = vault.open("f", 7)
    with monkeypatch.context() as broken:
        broken.setattr(Vault, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            opened.journal.claim(wanted(1))
    again = Vault(tmp_path / "d").open("f", 7)
    assert again.renewed == ""
    with pytest.raises(RuleBroken, match="answered before"):
        again.journal.claim(wanted(1))


def test_withdrawn_and_replaced_cards_stay_so_after_a_restart(tmp_path):
    keys, other = new_keys("f", 1), new_keys("f", 2)
    pins = Admission({k.device: k.identity.public_key().public_bytes_raw() for k in (keys, other)})
    roster = Roster("f", pins, FileMemory.create(tmp_path / "roster"))
    roster.admit(keys.card())
    roster.admit(other.card())
    renewed = keys.renewed()
    roster.admit(renewed.card())
    roster.withdraw(other.leave())
    restarted = Roster("f", pins, FileMemory(tmp_path / "roster"))
    with pytest.raises(ForeignKey, match="not newer than 2"):
        restarted.admit(keys.card())
    with pytest.raises(ForeignKey, match="not newer than 1"):
        restarted.admit(other.card())
    assert restarted.admit(renewed.card()).version == 2
    assert restarted.admit(other.renewed().card()).version == 2
    with pytest.raises(RuleBroken):
        FileMemory(tmp_path / "absent")


def test_an_id_stays_with_its_identity_after_a_restart(tmp_path):
    keys, thief = new_keys("f", 1), new_keys("f", 1)
    for known in (keys, thief):
        pins = Admission({1: known.identity.public_key().public_bytes_raw()})
        path = tmp_path / "roster"
        memory = FileMemory(path) if path.exists() else FileMemory.create(path)
        roster = Roster("f", pins, memory)
        if known is keys:
            roster.admit(keys.card())
        else:
            with pytest.raises(ForeignKey, match="another identity"):
                roster.admit(thief.card())


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
        cast.devices[10].agree(20, 8)
    # A device that it never met needs a new key of it.
    cast.devices[10]._ratchets.pop(30)
    with pytest.raises(RuleBroken, match="renew the key"):
        cast.devices[10].join(cast.play(round_number=10).server.plan)
    cast.server.roster.admit(cast.devices[10].renew())
    cast.devices[10].join(cast.play(round_number=10).server.plan)


def test_a_forgotten_key_leaves_the_disk_and_the_next_start_renews_it(tmp_path):
    vault = Vault(tmp_path / "d")
    first = vault.open("f", 7)
    secret = first.keys.agreement.private_bytes_raw().hex()
    assert secret in (tmp_path / "d" / "keys.json").read_text()
    vault.forget()
    assert secret not in (tmp_path / "d" / "keys.json").read_text()
    again = Vault(tmp_path / "d").open("f", 7)
    assert "forgotten" in again.renewed
    assert again.keys.version == 2


def test_keys_never_show_in_a_log(tmp_path):
    keys = PairKeys(*(os.urandom(32) for _ in range(4)))
    shown = f"{keys} {keys!r} {begin(keys.root, 3)} {new_keys('f', 1)!r} {[keys]}"
    for secret in vars(keys).values():
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert shown.startswith("PairKeys()")
