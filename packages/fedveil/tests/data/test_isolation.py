"""One client more, fewer or changed leaves every other client's rows bit for bit as they were.

The files are written, read, encoded, thinned and split by the code that `fedveil run` uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tests.data.neighbour_tables import (
    CLIENT,
    LABEL,
    SCHEMA,
    SPAN,
    Row,
    held_out_rows,
    numbered,
    shuffled,
    some_rows,
    text_of,
    training_rows,
)

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.data.partition import IID, ByOwner
from fedveil.data.table import from_table
from fedveil.planning.assemble import federation_of
from fedveil.planning.recipe import DataSection

HOLDOUTS = ("within", "latest", "pooled", "clients")


def all_but(rows: dict, name: str) -> dict:
    return {owner: kept for owner, kept in rows.items() if owner != name}


@pytest.fixture(scope="module")
def schema_file(tmp_path_factory):
    lines = []
    for name, column in SCHEMA["columns"].items():
        lines.append(f"[columns.{name}]")
        lines += [f"{key} = {str(v).lower() if v is True else v!r}" for key, v in column.items()]
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def section(path: Path, schema: Path, **more) -> DataSection:
    return DataSection(
        file=str(path), client_column=CLIENT, label=LABEL, schema=str(schema), **more
    )


@pytest.mark.parametrize("newcomer", ["!first", "client 150x", "~last"])
@pytest.mark.parametrize(
    "more", [{}, {"cap": 7}, {"public_fraction": 0.2}, {"examples_per_client": 5}]
)
def test_one_client_more_changes_nobody_else_on_the_default_path(
    tmp_path, schema_file, newcomer, more
):
    rng = np.random.default_rng(3)
    sizes = rng.integers(2, 15, 300)
    rows: list[Row] = []
    for i, size in enumerate(sizes):
        rows += some_rows(f"client {i}", int(size), len(rows), rng, nasty=False)
    rows = shuffled(rows, rng)
    place = int(rng.integers(len(rows)))
    theirs = some_rows(newcomer, 9, len(rows), rng, nasty=True)
    larger = rows[:place] + theirs + rows[place:]
    federations = []
    for name, table in (("without.csv", rows), ("with.csv", larger)):
        (tmp_path / name).write_text(text_of(table))
        federations.append(federation_of(section(tmp_path / name, schema_file, **more)))
    without, there = (training_rows(federation) for federation in federations)
    assert newcomer in there
    assert all_but(there, newcomer) == without
    whose = numbered(larger)
    before, after = (held_out_rows(federation, whose) for federation in federations)
    assert all_but(after, newcomer) == before
    if "examples_per_client" not in more:
        assert len(without) == 300


@dataclass(frozen=True)
class Neighbours:
    """Two tables that differ in one client, and a way to read them."""

    one: list[Row]
    other: list[Row]
    changed: str
    seed: int
    holdout: str
    partition: ByOwner
    validation: float


@st.composite
def neighbours(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = st.integers(0, 40).map(str)
    words = st.text("abz7 .-é", min_size=1, max_size=5).map(str.strip).filter(bool)
    names = draw(st.lists(st.one_of(whole, words), min_size=3, max_size=12, unique=True))
    names = [name for name in names if name not in ("-", ".")]
    changed = draw(st.one_of(whole, words).filter(lambda name: name not in names))
    rows: list[Row] = []
    for name in names:
        rows += some_rows(name, int(rng.integers(1, 12)), len(rows), rng, nasty=False)
    own = [
        some_rows(changed, count, first, rng, nasty=draw(st.booleans()))
        for first, count in ((1000, draw(st.integers(0, 9))), (2000, draw(st.integers(1, 9))))
    ]
    tables = []
    for theirs in own:  # the others' rows stay in their order, the changed client's go anywhere
        table = shuffled(rows, np.random.default_rng(7))
        for row in theirs:
            table.insert(int(rng.integers(len(table) + 1)), row)
        tables.append(table)
    limit = draw(st.sampled_from([{}, {"cap": 3}, {"examples_per_client": 2}, {"at_least": 3}]))
    return Neighbours(
        *tables,
        changed,
        draw(st.integers(0, 100)),
        draw(st.sampled_from(HOLDOUTS)),
        ByOwner(**limit),
        draw(st.sampled_from([0.0, 0.25])),
    )


@given(neighbours(), st.sampled_from(["csv", "parquet"]))
@settings(max_examples=300, deadline=None)
def test_neighbouring_tables_agree_on_everybody_else(tmp_path_factory, pair, form):
    folder = tmp_path_factory.mktemp("pair")
    federations = []
    for name, table in (("one", pair.one), ("other", pair.other)):
        path = folder / f"{name}.{form}"
        if form == "csv":
            path.write_text(text_of(table))
        else:
            columns = list(zip(*[(row.who, *row.cells) for row in table], strict=True))
            names = [CLIENT, *SCHEMA["columns"]]
            whole = pa.array(columns[1]).cast(pa.int64())
            arrays = [pa.array(columns[0]), whole, *map(pa.array, columns[2:])]
            parquet.write_table(pa.table(arrays, names=names), path)
        try:
            federations.append(
                from_table(
                    path,
                    label=LABEL,
                    client_column=CLIENT,
                    schema=SCHEMA,
                    partition=pair.partition,
                    holdout=pair.holdout,
                    test_fraction=0.3,
                    validation_fraction=pair.validation,
                    seed=pair.seed,
                )
            )
        except ConfigError:  # too small to hold anything out: nothing is trained, nothing leaves
            return
    one, other = (all_but(training_rows(f), pair.changed) for f in federations)
    assert one == other
    whose = numbered(pair.one) | numbered(pair.other)
    one, other = (all_but(held_out_rows(f, whose), pair.changed) for f in federations)
    assert one == other


@pytest.mark.parametrize("holdout", HOLDOUTS)
@pytest.mark.parametrize("limit", [{}, {"cap": 6}, {"examples_per_client": 4}])
def test_a_replaced_record_moves_no_other_record_of_its_client(holdout, limit):
    rng = np.random.default_rng(0)
    owners = rng.choice(["ann", "bob", "cid", "dee", "eve", "fay"], 120)
    inputs = np.stack([np.arange(120) / SPAN, rng.normal(size=120)], axis=1).astype(np.float32)
    targets = rng.integers(0, 3, 120)

    def dealt(inputs, targets):
        federation = Federation.from_arrays(
            inputs,
            targets,
            owners,
            classes=3,
            partition=ByOwner(**limit),
            holdout=holdout,
            validation_fraction=0.2,
            seed=3,
        )
        return federation, np.concatenate(
            [part.inputs for part in (federation.train, federation.test, federation.validation)]
        )

    plain, rows = dealt(inputs, targets)
    for record in range(0, 120, 7):
        changed, labels = inputs.copy(), targets.copy()
        changed[record] = (7 * SPAN, 3e38)
        labels[record] = (labels[record] + 1) % 3
        federation, moved = dealt(changed, labels)
        np.testing.assert_array_equal(federation.offsets, plain.offsets)
        differ = np.flatnonzero((rows != moved).any(axis=1))
        assert len(differ) <= 1  # none if the cap left it out
        assert all(rows[place, 0] * SPAN == record for place in differ)


@pytest.mark.parametrize("partition", [ByOwner(), ByOwner(cap=5), IID(4), IID(4, cap=9)])
def test_a_replaced_line_of_a_file_changes_its_own_example_alone(tmp_path, partition):
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    for name in ("ann", "bob", "3", "4", "5"):
        rows += some_rows(name, 12, len(rows), rng, nasty=False)
    rows = shuffled(rows, rng)

    def dealt(rows):
        (tmp_path / "t.csv").write_text(text_of(rows))
        federation = from_table(
            tmp_path / "t.csv",
            label=LABEL,
            client_column=CLIENT,
            schema=SCHEMA,
            partition=partition,
            validation_fraction=0.2,
        )
        parts = (federation.train, federation.test, federation.validation)
        return (
            federation.offsets,
            np.concatenate([part.inputs for part in parts]),
            np.concatenate([part.targets for part in parts]),
        )

    plain = dealt(rows)
    for place in range(0, len(rows), 4):
        (other,) = some_rows(rows[place].who, 1, 2000, rng, nasty=True)
        changed = dealt([*rows[:place], other, *rows[place + 1 :]])
        np.testing.assert_array_equal(changed[0], plain[0])
        differ = (changed[1] != plain[1]).any(axis=1) | (changed[2] != plain[2])
        number = int(rows[place].cells[0])
        assert set(plain[1][differ, 0] * SPAN) <= {number}


@pytest.mark.parametrize("holdout", HOLDOUTS)
@pytest.mark.parametrize(
    ("names", "newcomer"),
    [
        (["a", "b", "c", "d", "e", "f"], "a much longer name"),
        ([3, 1, 4, 15, 9, 2], 6.5),  # the column's type changes with it
        ([3, 1, 4, 15, 9, 2], 2**40),
        ([2.5, 1.0, 4.0, 5.0, 9.0, 7.0], 3),
        (["2020-01-01", "2020-01-02", "2021-05-05", "2022-01-01", "1999-01-01"], "2020-01-01T05"),
    ],
)
def test_the_kind_of_another_clients_name_does_not_matter(holdout, names, newcomer):
    dates = isinstance(newcomer, str) and newcomer.startswith("2020")
    owners = np.repeat(np.array(names, "M8[D]" if dates else None), 20)
    inputs = np.arange(len(owners), dtype=np.float32)[:, None] / SPAN
    labels = np.arange(len(owners)) % 2
    theirs = np.array([newcomer] * 3, "M8[h]" if dates else None)

    def rows(owners, inputs, labels):
        federation = Federation.from_arrays(
            inputs,
            labels,
            owners,
            classes=2,
            holdout=holdout,
            test_fraction=0.4,
            seed=3,
            partition=ByOwner(cap=12),
        )
        ends = zip(federation.offsets[:-1], federation.offsets[1:], strict=True)
        return {federation.train.inputs[a:b].tobytes() for a, b in ends}

    without = rows(owners, inputs, labels)
    mixed = np.concatenate([theirs, owners])
    more = np.concatenate([inputs[:3] + 1, inputs]), np.concatenate([labels[:3], labels])
    there = rows(mixed, *more)
    assert without <= there
    assert len(there - without) <= 1


def test_a_list_of_owners_of_different_kinds_is_refused_rather_than_melted():
    # NumPy would make one float, or one text, of two different people.
    for owners in ([2**53, 2**53 + 1, 0.5], ["7", 7, 8]):
        with pytest.raises(ConfigError, match="convert them to one type"):
            Federation.from_arrays(np.zeros((3, 1)), [0, 1, 0], owners, classes=2)


def test_a_fixed_number_of_owners_loses_at_most_one_to_a_newcomer():
    owners = np.repeat([f"p{i}" for i in range(50)], 4)
    inputs = np.arange(len(owners), dtype=np.float32)[:, None]

    def chosen(owners, inputs):
        federation = Federation.from_arrays(
            inputs,
            np.arange(len(owners)) % 2,
            owners,
            classes=2,
            partition=ByOwner(clients=20),
            test_fraction=0,
        )
        return set(federation.owners)

    before = chosen(owners, inputs)
    assert len(before) == 20
    for newcomer in (f"q{i}" for i in range(30)):
        after = chosen(np.append(owners, newcomer), np.append(inputs, [[0.0]], axis=0))
        assert len(after) == 20
        assert len(before - after) == (newcomer in after)


def test_another_seed_holds_out_other_rows():
    owners = np.repeat(np.arange(20), 30)
    inputs = np.arange(600, dtype=np.float32)[:, None]
    parts = [
        Federation.from_arrays(inputs, np.arange(600) % 2, owners, classes=2, seed=seed).test
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(parts[0].inputs, parts[1].inputs)
    # Two independent fifths share a fifth of 120 rows, 24 on average; 60 is beyond 8 sigma.
    assert len(np.intersect1d(parts[0].inputs, parts[2].inputs)) < 60


class Colour(str, Enum):  # noqa: UP042
    """Its members are texts, and str() of one is its name."""

    RED, BLUE = "red", "blue"


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        ([True, False, True, True], 1.0),
        ([7, 1, 2, 100], "2020-01-01"),
        ([0.5, 1.0, 2.0, 2.5], True),
        (["a", "1", None, "1.0"], 3),
        ([Colour.RED, Colour.BLUE, Colour.RED, "red"], 3),
        ([bytearray(b"a"), b"b", "c", bytearray(b"b")], 3),
    ],
)
def test_entries_of_a_list_are_read_one_by_one(usual: list, odd: object) -> None:
    """Arrow would give the column a type that suits all of them, and 1.0 among truths makes
    numbers of them, which are other categories."""

    def inputs(entries: list) -> np.ndarray:
        table = {"who": list("aabbc"), "x": entries, "y": ["k", "l", "k", "l", "k"]}
        schema = {"x": {"type": "category", "buckets": 97}}
        schema["y"] = {"type": "category", "categories": ["k", "l"]}
        given = {"label": "y", "client_column": "who", "test_fraction": 0.0}
        return from_table(table, schema={"columns": schema}, **given).train.inputs

    one, two = inputs([*usual, usual[0]]), inputs([*usual, odd])
    assert np.array_equal(one[:4], two[:4])
    assert not np.array_equal(one[4], two[4])
