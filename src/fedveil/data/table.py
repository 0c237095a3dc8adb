"""A federation from a CSV or Parquet file the user has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fedveil.data.encoding import (
    as_text,
    category_codes,
    encode,
    feature_names,
    judge,
    kind_of,
    numbers_of,
    scaled,
)
from fedveil.data.federation import Federation, Scaling, Task
from fedveil.data.holdout import Holdout
from fedveil.data.partition import Partition
from fedveil.data.schema import Column, Kind, parse_schema, read_schema, template
from fedveil.data.tablefile import need_column, read_table
from fedveil.errors import BadInput

MOST_CLASSES = 20  # a numeric label with more different values is a quantity
MOST_TEXT_CLASSES = 1000

FROM_DATA_NOTE = (
    "Means, deviations, categories and the counts in these notes were taken from the data "
    "themselves and are not covered by the guarantee; a schema of public ranges avoids this."
)


def from_table(
    path: Path | str,
    *,
    label: str,
    client_column: str | None = None,
    schema: Path | str | Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    partition: Partition | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    holdout: Holdout | str | None = None,
    seed: int = 0,
) -> Federation:
    """The rows of a table, dealt by the client column (or a partition), ready for a model.

    Numbers and dates are standardised, categories become one input each, missing values become the
    mean plus an input that says so. The client column is no input. Regression targets are
    standardised too (`target_scaling`). Everything decided on the way stands in `notes`. With a
    schema, inputs depend on it alone; without one, statistics come from the data, and a note says
    that the guarantee does not cover them. Test rows are held out within every client, or, where
    every client has but one row, as whole clients, unless `holdout` says otherwise.
    """
    path = Path(path)
    if client_column is None and partition is None:
        raise BadInput(f"{path}: name the column that says whose row it is (client_column)")
    if client_column == label:
        raise BadInput(f"{path}: label and client column are both {label!r}")
    table = read_table(path, exact=client_column)
    need_column(path, table.column_names, label, "the label")
    if client_column is not None:
        need_column(path, table.column_names, client_column, "the clients")
    public = _public(schema)
    table, notes = _with_labels_and_owners(path, table, label, client_column, public is None)
    if public is None:
        columns, remarks = _judged(table, (label, client_column))
        notes += remarks
    else:
        columns, remarks = _described(path, table, public, (label, client_column))
        notes += remarks
    if not columns:
        why = f" ({remarks[0].rstrip('.')})" if remarks else ""
        raise BadInput(f"{path}: no column besides {label!r} can be used as an input{why}")
    wanted, kind, names, scaling, remark = _targets(
        path, label, table.column(label), task, (public or {}).get(label)
    )
    notes.append(remark)
    if public is None:
        notes.append(FROM_DATA_NOTE)
    owners = None if client_column is None else pc.dictionary_encode(table.column(client_column))
    ranks = None if owners is None else _ranks(owners)
    if holdout is None:
        lonely = ranks is not None and np.bincount(ranks).max() == 1
        holdout = Holdout.CLIENTS if lonely else Holdout.WITHIN
        if lonely:
            notes.append("Every client has one row: whole clients were held out for testing.")
    features = [feature for name in columns for feature in feature_names(name, columns[name])]
    federation = Federation.from_arrays(
        _matrix(table, columns),
        wanted,
        ranks,
        partition=partition,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        holdout=holdout,
        task=kind,
        classes=len(names),
        class_names=names,
        features=tuple(features),
        name=path.name,
        notes=tuple(notes),
        seed=seed,
    )
    whose = None if owners is None else _names(owners)[federation.owners]
    return replace(federation, owners=whose, target_scaling=scaling, verified=True)


def schema_template(
    path: Path | str, *, label: str | None = None, client_column: str | None = None
) -> str:
    """A schema file for this table to fill in: names and types of its columns, no statistics."""
    path = Path(path)
    table = read_table(path)
    remarks = {}
    for name, remark in ((label, "the label"), (client_column, "whose row it is")):
        if name is not None:
            need_column(path, table.column_names, name, remark)
            remarks[name] = remark
    kinds = {name: kind_of(table.column(name)) for name in table.column_names}
    if client_column is not None:
        kinds[client_column] = Kind.IGNORE
    return template(kinds, remarks)


def _public(schema: Path | str | Mapping[str, Any] | None) -> dict[str, Column] | None:
    if schema is None:
        return None
    return parse_schema(schema) if isinstance(schema, Mapping) else read_schema(Path(schema))


def _with_labels_and_owners(
    path: Path, table: Any, label: str, client_column: str | None, count: bool
) -> tuple[Any, list[str]]:
    """Only the rows that have a label and an owner; `count` says how many had not."""
    notes = []
    for name, what in ((label, "label"), (client_column, "client")):
        if name is None:
            continue
        gaps = table.column(name).null_count
        if gaps == table.num_rows:
            raise BadInput(f"{path}: no row has a {what} (column {name!r})")
        if gaps:
            how_many = f"{gaps} rows" if count else "Rows"
            notes.append(f"{how_many} without a {what} ({name!r}) were left out.")
            table = table.filter(pc.is_valid(table.column(name)))
    return table, notes


def _judged(table: Any, taken: tuple[str | None, ...]) -> tuple[dict[str, Column], list[str]]:
    """What every other column is, decided from the data."""
    columns: dict[str, Column] = {}
    dropped, gaps, dates, remarks = [], [], [], []
    for name in table.column_names:
        if name in taken:
            continue
        values = table.column(name)
        found = judge(name, values)
        if found.column is None:
            dropped.append(f"{name!r} ({found.why_not})")
            continue
        columns[name] = found.column
        if values.null_count:
            gaps.append(f"{name!r} ({values.null_count})")
        if found.column.kind is Kind.DATE:
            dates.append(repr(name))
        if found.remark:
            remarks.append(f"{name!r}: {found.remark}.")
    notes = []
    if dropped:
        notes.append(f"Columns left out: {_some(dropped)}.")
    if gaps:
        notes.append(
            f"Missing values in {_some(gaps)}: numbers became the mean, and an input of its "
            "own says that the value was missing."
        )
    if dates:
        notes.append(f"Dates became days since 1970-01-01: {_some(dates)}.")
    return columns, notes + remarks


def _some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _described(
    path: Path, table: Any, public: dict[str, Column], taken: tuple[str | None, ...]
) -> tuple[dict[str, Column], list[str]]:
    """The columns that the schema describes; the others are not used."""
    for name in public:
        need_column(path, table.column_names, name, "in the schema")
    columns = {
        name: column
        for name, column in public.items()
        if name not in taken and column.kind is not Kind.IGNORE
    }
    for name, column in columns.items():
        stored = kind_of(table.column(name))
        number_like = column.kind is Kind.NUMBER and stored in (Kind.DATE, Kind.BOOLEAN)
        if (
            stored is Kind.IGNORE
            or number_like
            or (column.kind is Kind.DATE and stored is Kind.NUMBER)
        ):
            raise BadInput(f"{path}: column {name!r} holds {stored}, the schema says {column.kind}")
    unused = [name for name in table.column_names if name not in public and name not in taken]
    said = f" Not in it and not used: {_some([repr(name) for name in unused])}." if unused else ""
    return columns, [f"Inputs are scaled by the public schema alone.{said}"]


def _matrix(table: Any, columns: Mapping[str, Column]) -> npt.NDArray[np.float32]:
    widths = [len(feature_names(name, column)) for name, column in columns.items()]
    matrix = np.empty((table.num_rows, sum(widths)), dtype=np.float32)
    start = 0
    for (name, column), width in zip(columns.items(), widths, strict=True):
        encode(table.column(name), column, matrix[:, start : start + width])
        start += width
    return matrix


def _targets(
    path: Path, label: str, values: Any, task: Task | str | None, public: Column | None
) -> tuple[npt.NDArray[Any], Task, tuple[str, ...], Scaling | None, str]:
    """Targets, the task they make, class names, how numbers were scaled, and a sentence on it."""
    kind = kind_of(values)
    if kind in (Kind.IGNORE, Kind.DATE):
        raise BadInput(f"{path}: label {label!r} holds {values.type}; it must be numbers or text")
    distinct = pc.count_distinct(values).as_py()
    if task is None and public is not None:
        classify = public.kind in (Kind.CATEGORY, Kind.BOOLEAN)
        why = "as the schema says"
    elif task is None:
        whole = kind is not Kind.NUMBER or pc.all(pc.equal(values, pc.round(values))).as_py()
        classify = whole and (kind is not Kind.NUMBER or distinct <= MOST_CLASSES)
        why = {Kind.CATEGORY: "text", Kind.BOOLEAN: "true or false"}.get(
            kind, "few whole numbers" if classify else "numbers"
        )
    elif task in (Task.CLASSIFICATION, Task.REGRESSION):
        classify, why = task == Task.CLASSIFICATION, "as asked"
    else:
        raise BadInput(f"task={task!r}: a table makes classification or regression")
    if classify:
        codes, names = _classes(path, label, values, public)
        said = f"Label {label!r} ({why}): classification into {len(names)} classes."
        return codes, Task.CLASSIFICATION, names, None, said
    if kind is not Kind.NUMBER:
        raise BadInput(f"{path}: label {label!r} holds {values.type}, regression needs numbers")
    numbers = numbers_of(values)
    column = public or Column(Kind.NUMBER, mean=float(numbers.mean()), std=float(numbers.std()))
    if column.kind is not Kind.NUMBER or distinct < 2:
        what = "the same everywhere" if distinct < 2 else f"a {column.kind} in the schema"
        raise BadInput(f"{path}: label {label!r} is {what}, regression needs varying numbers")
    said = (
        f"Label {label!r} ({why}): regression of (label - {column.centre:g}) / {column.width:g}; "
        f"multiply squared errors by {column.width**2:g} for the label's own unit."
    )
    scaling = Scaling(
        np.asarray(column.centre, np.float32), np.asarray(1 / column.width, np.float32)
    )
    return scaled(numbers, column).astype(np.float32), Task.REGRESSION, (), scaling, said


def _classes(
    path: Path, label: str, values: Any, public: Column | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    if public is not None and public.kind is Kind.BOOLEAN:
        names = ["false", "true"]
    elif public is not None and public.kind is Kind.CATEGORY:
        names = list(public.categories)
    else:
        ordered = pc.unique(values).sort()
        names = as_text(ordered).to_pylist()
    if len(names) > max(MOST_CLASSES, min(MOST_TEXT_CLASSES, len(values) // 2)):
        raise BadInput(f"{path}: label {label!r} has {len(names)} different values: no classes")
    if len(names) < 2:
        raise BadInput(f"{path}: label {label!r} has one value only, {names[0]!r}")
    codes = category_codes(values, names)
    if (codes < 0).any():
        row = int(np.argmax(codes < 0))
        strange = as_text(values)[row].as_py()
        raise BadInput(f"{path}: label {strange!r} of row {row + 1} is not in the schema")
    return codes, tuple(names)


def _names(owners: Any) -> npt.NDArray[np.generic]:
    """The clients' names, sorted: one array, no object a client."""
    names = np.asarray(owners.combine_chunks().dictionary.sort())
    return names.astype(str) if names.dtype == object else names


def _ranks(owners: Any) -> npt.NDArray[np.int64]:
    """Every row's place among the sorted names."""
    encoded = owners.combine_chunks()
    order = np.asarray(pc.array_sort_indices(encoded.dictionary))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    ranks: npt.NDArray[np.int64] = rank[np.asarray(encoded.indices)]
    return ranks
