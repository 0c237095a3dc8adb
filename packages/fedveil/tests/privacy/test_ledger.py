"""The ledger counts at least what left, and never lets more leave than was planned."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
from fedveil.privacy.accounting import PrivacyModel, Release, account
from fedveil.privacy.ledger import BudgetSpent, Header, Inconsistent, Ledger, read
from fedveil.privacy.ledger_anchor import note, noted
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.sampling import Poisson

PLANNED = Release(Gaussian(2.0), Poisson(0.1, 1000), 5)


def header(entropy: Entropy = Entropy.SYSTEM) -> Header:
    privacy_model = PrivacyModel(
        Unit.CLIENT,
        Adjacency.ADD_REMOVE,
        Trust.CENTRAL,
        population=1000,
        arithmetic=Arithmetic.EXACT,
        entropy=entropy,
    )
    return Header(privacy_model, 1e-5, (PLANNED,), PLANNED.rounds)


def begun(path: Path, rounds: int, entropy: Entropy = Entropy.SYSTEM) -> Ledger:
    ledger = Ledger.create(path, header(entropy))
    for round_number in range(rounds):
        ledger.reserve(round_number)
    return ledger


def test_an_unfinished_run_is_worth_its_whole_plan(tmp_path):
    """How many rounds there were may depend on what they showed, unless all were run."""
    whole = account([PLANNED], privacy_model=header().privacy_model, delta=1e-5)
    first = account([replace(PLANNED, rounds=3)], privacy_model=header().privacy_model, delta=1e-5)
    ledger = begun(tmp_path / "l", 3)
    for opened in (ledger, Ledger.open(tmp_path / "l"), read(tmp_path / "l")):
        assert opened.guarantee() == whole
        assert opened.spent() == first.epsilon
    assert first.epsilon < whole.epsilon


def test_worst_case_participations_are_those_of_the_rounds_begun(tmp_path):
    """Cohorts that somebody sees are charged in every round: all five planned, three begun."""
    seen = replace(PLANNED, participations=5)
    ledger = Ledger.create(tmp_path / "l", replace(header(), planned=(seen,)))
    for round_number in range(3):
        ledger.reserve(round_number)
    begun = account(
        [replace(seen, rounds=3, participations=3)],
        privacy_model=header().privacy_model,
        delta=1e-5,
    )
    assert ledger.spent() == begun.epsilon


def test_a_protected_round_is_never_reserved_again(tmp_path):
    ledger = begun(tmp_path / "l", 2)
    for round_number in (0, 1, 3, -1):
        with pytest.raises(BudgetSpent, match="round 3"):
            ledger.reserve(round_number)
    for round_number in (2, 3, 4):
        ledger.reserve(round_number)
    assert ledger.remaining == 0
    with pytest.raises(BudgetSpent, match="round 6"):
        ledger.reserve(5)
    assert len((tmp_path / "l").read_text().splitlines()) == 6


def test_the_entry_is_on_disk_when_reserve_returns(tmp_path, monkeypatch):
    """Seen by another reader, and given to the disk itself: a power cut does not lose it."""
    synced: list[bytes] = []
    sync = os.fsync

    def watched(descriptor):
        sync(descriptor)
        synced.append((tmp_path / "l").read_bytes())

    monkeypatch.setattr(os, "fsync", watched)
    ledger = Ledger.create(tmp_path / "l", header())
    ledger.reserve(0)
    assert len(synced) == 2
    assert synced[-1] == (tmp_path / "l").read_bytes()
    assert read(tmp_path / "l").remaining == 4


@given(cut=st.integers(0, 40))
@settings(max_examples=41, deadline=None)
def test_a_torn_last_line_never_loses_an_earlier_one(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("torn") / "l"
    ledger = begun(path, 1)
    lines, head = ledger.lines, ledger.head
    ledger.reserve(1)
    note(ledger.run, lines, head)  # as it is while the line is being written
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: len(whole) - min(cut, last)])
    reopened = Ledger.open(path)
    assert reopened.remaining == (3 if cut == 0 else 4)
    reopened.reserve(reopened.reserved)
    assert Ledger.open(path).remaining == reopened.remaining


def looked_at(path: Path) -> None:
    ledger = read(path)
    ledger.check_note(ledger.noted())


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


@given(at=st.integers(0, 2**16), flip=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_any_changed_byte_is_noticed(tmp_path_factory, at, flip):
    """Whatever a byte becomes, the ledger is refused or means the same (a space in the JSON)."""
    path = tmp_path_factory.mktemp("changed") / "l"
    begun(path, 3)
    whole = bytearray(path.read_bytes())
    whole[at % (len(whole) - 1)] ^= flip
    before = read(path)
    path.write_bytes(whole)
    try:
        after = read(path)
    except ConfigError:
        return
    assert (after.header, after.head) == (before.header, before.head)


@pytest.mark.parametrize("field", ["noise_multiplier", "rounds", "rate", "delta", "entropy"])
def test_a_changed_promise_is_noticed(tmp_path, field):
    begun(tmp_path / "l", 3)
    first, *others = lines_of(tmp_path / "l")
    changed = re.sub(rf'("{field}": )("?)[\w.-]+', r"\g<1>\g<2>7", first, count=1)
    assert changed != first
    (tmp_path / "l").write_text("".join([changed, *others]))
    with pytest.raises(Inconsistent, match="line 1"):
        read(tmp_path / "l")


def test_lines_of_two_runs_do_not_mix(tmp_path):
    begun(tmp_path / "a", 3)
    begun(tmp_path / "b", 3)
    a, b = lines_of(tmp_path / "a"), lines_of(tmp_path / "b")
    (tmp_path / "a").write_text("".join([*a[:2], *b[2:]]))
    with pytest.raises(Inconsistent, match="line 3"):
        read(tmp_path / "a")


def test_a_line_twice_or_out_of_order_is_noticed(tmp_path):
    begun(tmp_path / "l", 3)
    a, b, c, d = lines_of(tmp_path / "l")
    for lines in ([a, b, c, d, d], [a, c, b, d], [a, c, d], [b, c, d]):
        (tmp_path / "l").write_text("".join(lines))
        with pytest.raises(Inconsistent, match="line"):
            read(tmp_path / "l")


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_cut_ledger_does_not_fit_what_was_noted_of_it(tmp_path, lines):
    ledger = begun(tmp_path / "l", 3)
    (tmp_path / "l").write_text("".join(lines_of(tmp_path / "l")[:lines]))
    for opened in (Ledger.open, looked_at):
        with pytest.raises(Inconsistent, match="lines"):
            opened(tmp_path / "l")
    with pytest.raises(Inconsistent, match="lines"):
        read(tmp_path / "l").reserved_at(ledger.lines, ledger.head)


@pytest.mark.parametrize("text", ["", "x", "7\n", "0" * 78])
def test_without_a_readable_note_the_other_checks_remain(tmp_path, text):
    ledger = begun(tmp_path / "l", 1)
    (Path(os.environ["XDG_STATE_HOME"]) / "fedveil" / "ledgers" / ledger.run).write_text(text)
    Ledger.open(tmp_path / "l").reserve(1)


def test_a_copy_is_refused_and_a_moved_ledger_goes_on(tmp_path):
    begun(tmp_path / "l", 2)
    (tmp_path / "l").rename(tmp_path / "elsewhere")
    Ledger.open(tmp_path / "elsewhere").reserve(2)
    shutil.copy(tmp_path / "elsewhere", tmp_path / "copy")
    with pytest.raises(PrivacyRefusal, match="--moved"):
        Ledger.open(tmp_path / "copy")
    assert read(tmp_path / "copy").reserved == 3  # looking at it is no harm


def test_of_a_declared_copy_and_its_original_one_goes_on(tmp_path):
    begun(tmp_path / "l", 2)
    shutil.copy(tmp_path / "l", tmp_path / "copy")
    copy = Ledger.open(tmp_path / "copy", moved=True)
    assert copy.moves == 1
    copy.reserve(2)
    again = Ledger.open(tmp_path / "copy")  # once is enough
    assert (again.moves, again.reserved) == (1, 3)
    with pytest.raises(Inconsistent):
        Ledger.open(tmp_path / "l")
    with pytest.raises(Inconsistent):
        Ledger.open(tmp_path / "l", moved=True)


@pytest.mark.parametrize("how", ["replaced", "cut", "longer"])
def test_a_ledger_changed_during_the_run_is_not_written_to(tmp_path, how):
    ledger = begun(tmp_path / "l", 2)
    whole = (tmp_path / "l").read_bytes()
    if how == "replaced":
        (tmp_path / "l").rename(tmp_path / "old")
        (tmp_path / "l").write_bytes(whole)
    else:
        (tmp_path / "l").write_bytes(whole[:-150] if how == "cut" else whole + b"\n")
    with pytest.raises(Inconsistent, match="ledger"):
        ledger.reserve(2)


def test_a_full_disk_reserves_nothing_and_does_no_harm(tmp_path, monkeypatch):
    ledger = begun(tmp_path / "l", 1)
    whole, write = (tmp_path / "l").read_bytes(), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        with pytest.raises(OSError, match="No space"):
            ledger.reserve(1)
    assert (tmp_path / "l").read_bytes() == whole
    assert ledger.reserved == 1
    ledger.reserve(1)
    assert read(tmp_path / "l").reserved == 2


def test_a_missing_ledger_guarantees_nothing(tmp_path):
    with pytest.raises(Inconsistent, match="missing"):
        Ledger.open(tmp_path / "l")


@pytest.mark.parametrize(
    "line", ['{"round": 0}', '{"round": -1, "head": ""}', '{"round": 0, "head": "00"}', "{", "7"]
)
def test_a_foreign_entry_is_refused(tmp_path, line):
    Ledger.create(tmp_path / "l", header())
    with (tmp_path / "l").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        Ledger.open(tmp_path / "l")


def test_two_processes_with_two_names_of_one_ledger_cannot_both_append(tmp_path):
    """A hard link is the same file in another directory, with a lock of its own there."""
    first = begun(tmp_path / "l", 1)
    os.link(tmp_path / "l", tmp_path / "linked")
    second = Ledger.open(tmp_path / "linked")
    with (tmp_path / "l").open("rb") as held:  # as in the middle of an append
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=second.reserve, args=(1,))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert read(tmp_path / "l").reserved == 1
    waiting.join()
    with pytest.raises(Inconsistent, match="ledger"):
        first.reserve(1)


def test_nothing_is_spent_before_the_first_round(tmp_path):
    assert begun(tmp_path / "l", 0).spent() == 0


def test_a_repeated_round_of_a_simulation_releases_nothing_new(tmp_path):
    ledger = Ledger.create(tmp_path / "l", header(Entropy.SEEDED))
    for round_number in (0, 1, 1, 0, 2):
        ledger.reserve(round_number)
    assert ledger.remaining == 2


def test_the_note_of_a_ledger_is_the_users_own_and_moves_on(tmp_path):
    ledger = begun(tmp_path / "l", 1)
    file = Path(os.environ["XDG_STATE_HOME"]) / "fedveil" / "ledgers" / ledger.run
    assert file.stat().st_mode & 0o777 == 0o600
    assert noted(ledger.run) == (2, ledger.head)
    ledger.reserve(1)
    assert noted(ledger.run) == (3, ledger.head)


def test_where_no_note_can_be_kept_a_run_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    begun(tmp_path / "l", 3)
    assert Ledger.open(tmp_path / "l").reserved == 3


def test_a_simulation_may_be_copied(tmp_path):
    begun(tmp_path / "l", 2, Entropy.SEEDED)
    shutil.copy(tmp_path / "l", tmp_path / "copy")
    for name in ("l", "copy"):
        Ledger.open(tmp_path / name).reserve(2)


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "nonsense\n", '{"version": 99}\n', "[]\n", "\x00\n"],
)
def test_a_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "l").write_text(text)
    with pytest.raises(ConfigError, match="ledger"):
        Ledger.open(tmp_path / "l")


def test_an_existing_ledger_is_never_overwritten(tmp_path):
    Ledger.create(tmp_path / "l", header())
    with pytest.raises(FileExistsError):
        Ledger.create(tmp_path / "l", header())
