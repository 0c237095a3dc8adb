"""The ledger counts at least what left, and never lets more leave than was planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.errors import BadInput
from fedveil.privacy.accounting import Release, Setting, account
from fedveil.privacy.ledger import BudgetSpent, Header, Ledger, read
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.sampling import Poisson
from fedveil.privacy.units import Adjacency, Arithmetic, Entropy, Trust, Unit

PLANNED = Release(Gaussian(2.0), Poisson(0.1, 1000), 5)


def header(entropy: Entropy = Entropy.SYSTEM) -> Header:
    setting = Setting(
        Unit.CLIENT,
        Adjacency.ADD_REMOVE,
        Trust.CENTRAL,
        population=1000,
        arithmetic=Arithmetic.EXACT,
        entropy=entropy,
    )
    return Header(setting, 1e-5, (PLANNED,))


def test_a_replayed_ledger_proves_what_its_rounds_cost(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l", header())
    assert ledger.guarantee() is None
    for round in range(3):
        ledger.reserve(round)
    direct = account([replace(PLANNED, rounds=3)], setting=header().setting, delta=1e-5)
    assert ledger.guarantee() == direct
    assert Ledger.open(tmp_path / "l").guarantee() == direct


def test_a_protected_round_counts_every_time_it_is_tried(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l", header())
    for round in (0, 1, 1, 1, 2):
        ledger.reserve(round)
    assert ledger.remaining == 0
    with pytest.raises(BudgetSpent, match="round 4"):
        ledger.reserve(3)
    assert len((tmp_path / "l").read_text().splitlines()) == 6


def test_a_repeated_round_of_a_simulation_releases_nothing_new(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l", header(Entropy.SEEDED))
    for round in (0, 1, 1, 0, 2):
        ledger.reserve(round)
    assert ledger.remaining == 2


def test_the_entry_is_on_disk_when_reserve_returns(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "l", header())
    ledger.reserve(0)
    assert read(tmp_path / "l").remaining == 4


@given(cut=st.integers(0, 40))
@settings(max_examples=41, deadline=None)
def test_a_torn_last_line_never_loses_an_earlier_one(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "l"
    ledger = Ledger.create(path, header())
    ledger.reserve(0)
    ledger.reserve(1)
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: len(whole) - min(cut, last)])
    reopened = Ledger.open(path)
    assert reopened.remaining == (3 if cut == 0 else 4)
    reopened.reserve(2)
    assert Ledger.open(path).remaining == reopened.remaining


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "nonsense\n", '{"version": 99}\n', "[]\n", "\x00\n"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "l").write_text(text)
    with pytest.raises(BadInput, match="ledger"):
        Ledger.open(tmp_path / "l")


@pytest.mark.parametrize(
    "line", ['{"round": 0}', '{"round": -1, "planned": 0}', '{"round": 0, "planned": 7}', "{"]
)
def test_a_foreign_entry_is_refused(tmp_path: Path, line: str) -> None:
    Ledger.create(tmp_path / "l", header())
    with (tmp_path / "l").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInput, match="line 2"):
        Ledger.open(tmp_path / "l")


def test_an_existing_ledger_is_never_overwritten(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "l", header())
    with pytest.raises(FileExistsError):
        Ledger.create(tmp_path / "l", header())
