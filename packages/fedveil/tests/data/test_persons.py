"""Persons with several rows: held out, dealt, capped, stored and read as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation
from fedveil.data.partition import IID, ByOwner
from fedveil.data.table import from_table, schema_draft


def numbered(owners: Any, persons: Any, **dealt: Any) -> Federation:
    """A federation whose inputs are row numbers, so that every example can be traced."""
    inputs = np.arange(len(persons), dtype=np.float32)[:, None]
    return Federation.from_arrays(
        inputs, np.arange(len(persons)) % 3, owners, persons=persons, classes=3, **dealt
    )


def drawn(seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.integers(0, 4, rows), draw.integers(0, 20, rows)


def parts_of(federation: Federation) -> list[Examples]:
    parts = (federation.train, federation.test, federation.validation)
    return [part for part in parts if part is not None]


@given(
    seed=st.integers(0, 10_000),
    holdout=st.sampled_from(["within", "pooled", "clients"]),
    test=st.sampled_from([0.0, 0.2, 0.5]),
    dealt=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_person_is_cut(seed: int, holdout: str, test: float, dealt: bool) -> None:
    """Neither across parts, nor across artificial clients, and each stands together."""
    owners, persons = drawn(seed)
    numbers = np.unique(persons, return_inverse=True)[1]
    how: dict[str, Any] = {"holdout": holdout, "test_fraction": test, "seed": seed}
    if test:
        how["validation_fraction"] = 0.1
    if dealt:
        owners, how["partition"] = None, IID(clients=3)
    try:
        federation = numbered(owners, persons, **how)
    except ConfigError:  # everybody was drawn
        return
    parts = parts_of(federation)
    there = [set(part.persons.tolist()) for part in parts]
    assert len(set.union(*there)) == sum(map(len, there))
    for part in parts:
        np.testing.assert_array_equal(part.persons, numbers[part.inputs[:, 0].astype(int)])
    spans = federation.persons  # raises unless everybody's rows stand together
    assert spans.starts[-1] == len(federation.train)
    if dealt:
        at = [
            set(federation.train.persons[a:b].tolist())
            for a, b in zip(federation.offsets[:-1], federation.offsets[1:], strict=True)
        ]
        assert len(set.union(*at)) == sum(map(len, at))


@pytest.mark.parametrize("holdout", ["within", "pooled"])
def test_what_becomes_of_a_person_does_not_depend_on_others(holdout: str) -> None:
    """Neither its part nor which of its rows count: somebody else comes, goes, or has more rows."""
    owners, persons = drawn(3)
    names = np.array([f"p{person:02d}" for person in persons])
    how = {"holdout": holdout, "test_fraction": 0.3, "records_per_person": 2, "seed": 5}

    def fates(chosen: np.ndarray) -> dict[int, tuple[str, bool]]:
        rows = np.flatnonzero(chosen)
        federation = numbered(owners[rows], names[rows], **how)
        return {
            int(rows[int(row)]): (part, bool(usable))
            for part, own in (("train", federation.train), ("test", federation.test))
            for row, usable in zip(own.inputs[:, 0], own.usable, strict=True)
        }

    everybody = fates(np.ones(len(persons), np.bool_))
    for gone in (0, 7, 19):
        fewer = fates(persons != gone)
        assert fewer == {row: fate for row, fate in everybody.items() if persons[row] != gone}
        row = int(np.flatnonzero(persons == gone)[0])
        one_less = fates(np.arange(len(persons)) != row)
        others = {r: fate for r, fate in one_less.items() if persons[r] != gone}
        assert others == fewer


def test_at_most_so_many_rows_of_a_person_count() -> None:
    """At all clients together, drawn without looking at what stands there."""
    owners, persons = drawn(1, 200)
    federation = numbered(owners, persons, records_per_person=3, test_fraction=0.0)
    usable = federation.train.usable
    counts = np.bincount(federation.train.persons[usable])
    np.testing.assert_array_equal(counts, np.minimum(np.bincount(persons), 3))
    assert federation.records_per_person == 3
    other = numbered(owners, persons, records_per_person=3, test_fraction=0.0, seed=1)
    assert (other.train.usable != usable).any()


def test_rows_without_a_person_are_left_out_and_all_is_stored(tmp_path: Path) -> None:
    owners, persons = drawn(2)
    named = np.where(persons == 4, None, persons.astype(object))
    federation = numbered(owners, named, records_per_person=4, test_fraction=0.25)
    kept = np.concatenate([part.inputs[:, 0] for part in parts_of(federation)])
    assert set(kept.astype(int)) == set(np.flatnonzero(persons != 4))
    stored = Federation.open(federation.save(tmp_path / "saved"))
    assert stored.records_per_person == 4
    for mine, theirs in zip(parts_of(federation), parts_of(stored), strict=True):
        np.testing.assert_array_equal(mine.persons, theirs.persons)
    np.testing.assert_array_equal(federation.persons.starts, stored.persons.starts)


def test_a_table_names_persons(tmp_path: Path) -> None:
    """By a column that is no input, in whatever order its rows are; names are read as text."""
    rows = [("h1", "007", 1.0, "a"), ("h2", "7", 2.0, "b"), ("h1", "8", 3.0, "a"),
            ("h2", "7", 4.0, "b"), ("h1", "007", 5.0, "b"), ("h2", "", 6.0, "a")]  # fmt: skip
    file = tmp_path / "visits.csv"
    lines = [",".join(map(str, row)) for row in rows]
    file.write_text("\n".join(["hospital,patient,dose,ill", *lines]) + "\n")
    named = {"client_column": "hospital", "person_column": "patient", "label": "ill"}
    schema = {"columns": {"dose": {"type": "number", "mean": 0, "std": 1},
                          "ill": {"type": "category", "categories": ["a", "b"]}}}  # fmt: skip
    for known in (None, schema):
        federation = from_table(file, schema=known, test_fraction=0.0, **named)
        assert federation.features == ("dose",)
        assert federation.sizes.tolist() == [3, 2]  # a row without a patient is left out
        assert federation.persons.sizes.tolist() == [2, 1]
        assert federation.train.persons.tolist() == [0, 0, 2, 1, 1]
    assert "patient" in schema_draft(file, label="ill", person_column="patient")


def test_a_number_is_the_same_person_however_a_spreadsheet_writes_it(tmp_path: Path) -> None:
    """A gap makes whole numbers 7.0: two sites must not have two persons for one."""
    for site, patients in (("h1", "7 8 9"), ("h2", "7.0 8.0 10.0")):
        lines = [f"{patient},{row},a" for row, patient in enumerate(patients.split())]
        (tmp_path / f"{site}.csv").write_text("\n".join(["patient,dose,ill", *lines]) + "\n")
    schema = {"columns": {"dose": {"type": "number", "mean": 0, "std": 1},
                          "ill": {"type": "category", "categories": ["a", "b"]}}}  # fmt: skip
    how = {"person_column": "patient", "label": "ill", "schema": schema, "test_fraction": 0.0}
    federation = from_table(str(tmp_path / "*.csv"), **how)
    at = [federation.train.persons[:3], federation.train.persons[3:]]
    assert len(np.intersect1d(*at)) == 2
    assert federation.at_sites(1).train.usable.sum() == 4


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"persons": [1, 2]}, "persons"),
        ({"persons": [None] * 6}, "person"),
        ({"records_per_person": 2}, "records_per_person"),
        ({"persons": [1] * 6, "records_per_person": 0}, "records_per_person"),
        ({"persons": [1, 1, 2, 2, 3, 3], "holdout": "latest"}, "latest"),
        ({"persons": [1] * 6, "partition": ByOwner(cap=2)}, "cap"),
    ],
)
def test_what_would_cut_persons_is_refused(how: dict[str, Any], named: str) -> None:
    inputs, targets = np.zeros((6, 1), np.float32), np.zeros(6, np.int64)
    with pytest.raises(ConfigError, match=named):
        Federation.from_arrays(inputs, targets, [1, 1, 1, 2, 2, 2], classes=2, **how)


@pytest.mark.parametrize("persons", [None, [1, 2, 1, 3], [1, 1, 2]])
def test_persons_are_asked_for_where_nobody_has_said_who_they_are(persons: Any) -> None:
    """Or where their rows do not stand together, or where rows are missing."""
    numbers = None if persons is None else np.array(persons)
    examples = Examples(np.zeros((4, 1), np.float32), np.zeros(4, np.int64), persons=numbers)
    nothing = Examples(examples.inputs[:0], examples.targets[:0])
    with pytest.raises(ConfigError, match="person"):
        _ = Federation(examples, np.array([0, 4]), nothing, "classification", 2).persons


def test_a_cap_that_nobody_has_enforced_is_refused() -> None:
    """The epsilon of a person rests on it."""
    owners, persons = drawn(1, 200)
    federation = numbered(owners, persons, records_per_person=3, test_fraction=0.0)
    train = federation.train
    for wrong in (replace(train, usable=None), replace(train, persons=None)):
        with pytest.raises(ConfigError, match="records_per_person"):
            replace(federation, train=wrong)
    with pytest.raises(ConfigError, match="records_per_person"):
        replace(federation, records_per_person=2)
