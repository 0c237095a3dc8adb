"""A federation from a table the user has: a file, one file for each client, or a frame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.data.assignment import Owners
from fedveil.data.bins import cuts_at_quantiles, with_cuts
from fedveil.data.dp_schema import Bought, Offer, buy
from fedveil.data.encoder import TableEncoder, check_stored
from fedveil.data.encoding import as_text, is_index, judge, kind_of, numbers_of, unreadable
from fedveil.data.federation import Federation, Task
from fedveil.data.folder import FILE, is_many, title
from fedveil.data.holdout import Holdout
from fedveil.data.labels import separated_targets, several_targets, targets_of
from fedveil.data.partition import Partition
from fedveil.data.pieces import frame_of
from fedveil.data.schema import (
    Column,
    Kind,
    check_separator,
    draft,
    parse_schema,
    read_schema,
)
from fedveil.data.tablefile import DECIMAL, WHOLE, column_names, need_column, path_of, read_table

COLUMNS = "which columns are inputs, and of what kind, was decided from the data"
FROM_DATA_NOTE = (
    "Means, deviations, categories and the counts in these notes were taken from the data "
    "themselves and are not covered by the guarantee; a schema of public ranges avoids this."
)


BOUGHT_NOTE = (
    "Kinds and scales of the columns were bought with noise, for about a twentieth of the budget; "
    "values of categories share inputs by their hash; a row whose label was not found contributes "
    "nothing."
)


UNUSABLE_NOTE = (
    "A row whose label is missing or does not fit the schema, or with too few or too many cells, "
    "stays where it is and contributes nothing. A row without a client belongs to nobody and is "
    "left out."
)
NUMBERED_NOTE = "Clients are named by numbers: 7 and 7.0 are one client, 07 is another."


def from_table(
    source: Path | str | Any,
    *,
    label: str | Sequence[str],
    label_separator: str | None = None,
    client_column: str | None = None,
    schema: Path | str | Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    offer: Offer | None = None,
    bought: Bought | None = None,
    bins: int | None = None,
    task: Task | str | None = None,
    partition: Partition | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    holdout: Holdout | str = Holdout.WITHIN,
    seed: int = 0,
) -> Federation:
    """The rows of a table, dealt by the client column (or a partition), ready for a model.

    `source` is a CSV or Parquet file; a folder of them or a pattern such as `dir/*.csv`, with one
    file for each client (its name is the client's, unless `client_column` says otherwise); or a
    frame: pandas, polars, Arrow, a Hugging Face `Dataset` or a mapping of columns.

    Numbers and dates are standardised, categories become one input each, missing values become the
    mean plus an input that says so. The client column is no input. Regression targets are
    standardised too (`target_scaling`). Everything decided on the way stands in `notes`. With a
    schema, what becomes of a row depends on the row and the schema alone; without one, statistics
    are bought under an `offer`, or come from the data, and `unprotected` says which. `bought` says
    that the schema was bought before. `classes` declares the label's names. Several labels, as a
    list or with commas between them, are true or false each. With a `label_separator`, as ";", each
    cell of the label names any number of classes, and an empty one none. Test rows are held out
    within every client unless `holdout` says otherwise; if every client has but one row, it must
    say `clients`. With `bins`, numbers become one input for each of about so many bins.
    """
    if isinstance(source, str | Path):
        source = Path(source)
    else:
        source = frame_of(source, by_cell=schema is not None or offer is not None)
    path = path_of(source)
    if client_column is None and partition is None and is_many(path):
        client_column = FILE
    if client_column is None and partition is None:
        raise ConfigError(f"{path}: name the column that says whose row it is (client_column)")
    labels = _labels(path, label, column_names(source))
    if client_column in labels:
        raise ConfigError(
            f"{path}: label and client column are both {client_column!r}; name two columns"
        )
    public = _public(schema)
    separator = _separator(path, labels, label_separator, public)
    known = _known_labels(path, labels, task, classes, separator)
    table = None
    if public is None and offer is not None and client_column is not None:
        quantity = task == Task.REGRESSION
        public, bought, table = _buy(
            source, labels, client_column, offer, bool(known), separator, quantity
        )
    if public is not None:
        _check_several(path, labels, public)
        public = {**public, **known}
    if table is None or not set(labels) <= set(public or ()):
        table = _read(source, public, labels, client_column, separator)
    needed = labels if separator is None else ()
    notes = [UNUSABLE_NOTE] if public is not None else _gaps(table, needed, client_column)
    if client_column is not None:
        notes += _numbered(table.column(client_column))
    taken = (*labels, client_column)
    unprotected: tuple[str, ...] = ()
    if public is None:
        columns, remarks = _judged(table, taken)
        unprotected = _taken_from_data(columns)
        if bins is not None:
            columns = {name: _cut(table.column(name), own, bins) for name, own in columns.items()}
    else:
        columns, remarks = _described(path, table, public, taken)
        if bins is not None:
            columns = with_cuts(columns, bins)
        unprotected = _guessed(columns, public.get(labels[0]))
        if bought is not None:
            drowned = set(table.column_names) - {*public, *taken}
            said = (
                f"Columns left out because most of their votes drown in the noise: {len(drowned)}."
            )
            remarks = [BOUGHT_NOTE, said]
    notes += remarks
    if not columns:
        why = f" ({remarks[0].rstrip('.')})" if remarks else ""
        raise ConfigError(f"{path}: no column besides {labels[0]!r} can be used as an input{why}")
    declared = known if public is None else _columns_of(public, table)
    target, values = declared.get(labels[0]), table.column(labels[0])
    if len(labels) > 1:
        wanted = several_targets(path, table, labels)
    elif separator is not None:
        wanted = separated_targets(path, labels[0], values, separator, target)
    else:
        wanted = targets_of(path, labels[0], values, task, target)
    notes.append(wanted.remark)
    if public is None:
        notes.append(FROM_DATA_NOTE)
    encoder = TableEncoder(columns, labels, _as_read(table, labels[0], wanted.column))
    federation = Federation.from_arrays(
        encoder.encode(table).inputs,
        wanted.values,
        None if client_column is None else _owners(table.column(client_column)),
        partition=partition,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        holdout=holdout,
        task=wanted.task,
        classes=len(wanted.names) or None,
        class_names=wanted.names,
        features=encoder.features,
        name=title(path),
        notes=tuple(notes),
        seed=seed,
    )
    return replace(
        federation,
        target_scaling=wanted.scaling,
        encoder=encoder,
        bought=bought,
        unprotected=unprotected + wanted.unprotected + federation.unprotected,
        verified=True,
    )


def _cut(values: Any, column: Column, bins: int) -> Column:
    """A column cut at quantiles of its own values; none of this is protected."""
    if column.kind not in (Kind.NUMBER, Kind.DATE):
        return replace(column, missing=True)
    numbers = numbers_of(values, column)
    distinct, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    edges = np.append(distinct, distinct[-1:] + 1.0)
    cuts = cuts_at_quantiles(edges, counts.astype(np.float64), bins)
    return replace(column, cuts=cuts, missing=column.missing or bool(cuts))


def _labels(path: Path, label: str | Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns to predict. A name with commas is one column, if there is such a one."""
    if not isinstance(label, str):
        labels = tuple(map(str, label))
    elif label in names or "," not in label:
        labels = (label,)
    else:
        labels = tuple(part.strip() for part in label.split(","))
    for name in labels:
        need_column(path, names, name, "the label")
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"{path}: labels {', '.join(labels)!r}: name each column once")
    return labels


def _separator(
    path: Path, labels: tuple[str, ...], given: str | None, public: Mapping[str, Column] | None
) -> str | None:
    """What stands between the classes of a cell, as the option or the schema says."""
    for name, column in (public or {}).items():
        if column.separator is not None and name not in labels:
            raise ConfigError(f"{path}: column {name!r} has a separator, which is for the label")
    target = None if public is None else public.get(labels[0])
    said = None if target is None else target.separator
    if (given or said) is not None and len(labels) > 1:
        raise ConfigError(f"{path}: a separator is for one label, and there are {len(labels)}")
    if given is None:
        return said
    check_separator("label_separator", given, () if target is None else target.categories)
    if target is not None and (not target.categories or said not in (None, given)):
        as_known = f" with separator {said!r}" if said else " without a list of categories"
        raise ConfigError(
            f"{path}: label_separator {given!r}, but in the schema label {labels[0]!r} is a "
            f"{target.kind}{as_known}"
        )
    return given


def _known_labels(
    path: Path,
    labels: tuple[str, ...],
    task: Task | str | None,
    classes: Sequence[str],
    separator: str | None,
) -> dict[str, Column]:
    """What is known of the labels before any row is read: classes that were declared, and that of
    several labels each is true or false."""
    if separator is not None and task not in (None, Task.MULTI_LABEL):
        raise ConfigError(
            f"{path}: task={task!r} predicts one class, and a separator means several"
        )
    if len(labels) == 1:
        if not classes:
            return {}
        names = tuple(map(str, classes))
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ConfigError(f"{path}: classes: {twice[0]!r} stands there twice")
        if separator is not None:
            check_separator("label_separator", separator, names)
        return {labels[0]: Column(Kind.CATEGORY, categories=names, separator=separator)}
    if classes:
        raise ConfigError(f"{path}: classes: of several labels each is true or false; leave it out")
    if task not in (None, Task.MULTI_LABEL):
        raise ConfigError(f"{path}: task={task!r} predicts one label, and there are {len(labels)}")
    return dict.fromkeys(labels, Column(Kind.BOOLEAN))


def _check_several(path: Path, labels: tuple[str, ...], public: Mapping[str, Column]) -> None:
    for name in labels if len(labels) > 1 else ():
        kind = public[name].kind if name in public else Kind.BOOLEAN
        if kind is not Kind.BOOLEAN:
            raise ConfigError(
                f"{path}: label {name!r} is a {kind} in the schema; of several labels each is a "
                "boolean"
            )


def _buy(
    source: Path | pa.Table,
    labels: tuple[str, ...],
    client_column: str,
    offer: Offer,
    declared: bool,
    separator: str | None,
    quantity: bool,
) -> tuple[dict[str, Column], Bought, Any]:
    """A schema from noisy votes, and the table: every cell is read by itself, whatever its column
    holds."""
    path, names = path_of(source), set(column_names(source)) - {client_column}
    table = read_table(source, exact=client_column, by_cell=names)
    need_column(path, table.column_names, client_column, "the clients")
    known = {client_column, *(labels if declared else ())}
    # What a column's stored type cannot be read as is seen without its rows.
    known |= {name for name in names if unreadable(table.column(name)) or is_index(name)}
    wanted, label = [name for name in table.column_names if name not in known], labels[0]
    if not set(wanted) - set(labels):  # before anything is paid
        raise ConfigError(f"{path}: no column besides {label!r} can be used as an input")
    mark = (table.schema.metadata or {}).get(DECIMAL, b".").decode()
    named = pc.is_valid(table.column(client_column))  # the others belong to nobody
    cells = {name: table.column(name).filter(named) for name in wanted}
    codes = _owners(table.column(client_column).filter(named)).codes
    columns, bought = buy(cells, label, codes, offer, mark, separator, quantity)
    found = columns.get(label)
    if found is not None and found.kind is Kind.CATEGORY and len(found.categories) < 2:
        raise ConfigError(
            f"{path}: fewer than two values of label {label!r} stand out from the noise; declare "
            "its classes (--classes), or raise privacy.epsilon. (Asking has cost its part of the "
            "budget, and asking again will)"
        )
    named_later = offer.trust is Trust.DISTRIBUTED and not quantity  # classes are declared there
    if found is None and not declared and not named_later:
        raise ConfigError(
            f"{path}: where the values of label {label!r} lie cannot be told from the noise. "
            "Describe it in a schema (--schema), or raise privacy.epsilon. (Asking has cost its "
            "part of the budget, and asking again will)"
        )
    return columns, bought, table


def schema_draft(
    path: Path | str,
    *,
    label: str | Sequence[str] | None = None,
    label_separator: str | None = None,
    client_column: str | None = None,
) -> str:
    """A schema file for this table, every column with a guess that is marked as one."""
    path = Path(path)
    labels = () if label is None else _labels(path, label, column_names(path))
    if client_column is not None:
        need_column(path, column_names(path), client_column, "whose row it is")
    separator = _separator(path, labels, label_separator, None)
    table = _read(path, None, labels, client_column, separator)
    columns, remarks = {}, {}
    for name in table.column_names:
        values = table.column(name)
        if name == client_column:
            columns[name], remarks[name] = Column(Kind.IGNORE), "whose row it is"
        elif len(labels) > 1 and name in labels:
            columns[name], remarks[name] = Column(Kind.BOOLEAN), "a label"
        elif name in labels:
            if separator is None:
                column = targets_of(path, name, values, None, None).column
            else:
                column = separated_targets(path, name, values, separator, None).column
            columns[name], remarks[name] = _guess(_as_read(table, name, column)), "the label"
        elif (found := judge(name, values)).column is None:
            columns[name], remarks[name] = Column(Kind.IGNORE), found.why_not
        else:
            columns[name] = _guess(_as_read(table, name, found.column))
    return draft(columns, remarks)


def _guess(column: Column) -> Column:
    """Marked, and with no more digits than a guess deserves. Booleans leave nothing to guess."""
    if column.mean is not None and column.std is not None:
        digits = 1 - math.floor(math.log10(column.std))  # two of the deviation's
        column = replace(column, mean=round(column.mean, digits), std=round(column.std, digits))
    mark = None if column.decimal == "." else column.decimal
    return replace(column, decimal=mark, guess=column.kind is not Kind.BOOLEAN)


def _public(schema: Path | str | Mapping[str, Any] | None) -> dict[str, Column] | None:
    if schema is None:
        return None
    return parse_schema(schema) if isinstance(schema, Mapping) else read_schema(Path(schema))


def _read(
    source: Path | pa.Table,
    public: Mapping[str, Column] | None,
    labels: tuple[str, ...],
    client_column: str | None,
    separator: str | None,
) -> Any:
    """The table; columns that a schema describes stay as they are written, as do cells with any
    number of classes."""
    path = path_of(source)
    if public is None:
        by_cell = labels if separator is not None else ()
        table = read_table(source, exact=client_column, by_cell=by_cell)
        if any(kind_of(table.column(name)) is Kind.DATE for name in labels):
            # As classes they are named as they are written.
            table = read_table(source, exact=client_column, by_cell=labels)
    else:
        used = {name for name, column in public.items() if column.kind is not Kind.IGNORE}
        used.discard(str(client_column))
        used |= set() if separator is None else set(labels)
        only = {*used, *labels, str(client_column)}
        table = read_table(source, exact=client_column, by_cell=used, only=only)
    if client_column is not None:
        need_column(path, table.column_names, client_column, "the clients")
        if unreadable(owners := table.column(client_column)):
            raise ConfigError(
                f"{path}: client column {client_column!r} holds {owners.type}; clients' names are "
                "text or numbers"
            )
        if owners.null_count == len(owners):
            raise ConfigError(f"{path}: no row has a client (column {client_column!r})")
    return table


def _taken_from_data(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """What the inputs of judged columns owe to the data, one sentence a kind."""
    kinds = [column.kind for column in columns.values()]
    measured = sum(kind in (Kind.NUMBER, Kind.DATE) for kind in kinds)
    named = kinds.count(Kind.CATEGORY)
    said = [COLUMNS]
    if measured:
        said.append(f"means and deviations of {_columns(measured)} were taken from the data")
    if named:
        said.append(f"categories of {_columns(named)} were taken from the data")
    return tuple(said)


def _guessed(columns: Mapping[str, Column], label: Column | None) -> tuple[str, ...]:
    count = sum(column.guess for column in (*columns.values(), *([label] if label else [])))
    said = f"{_columns(count)} of the schema are guesses from the rows that nobody has confirmed"
    return (said,) if count else ()


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _gaps(table: Any, labels: tuple[str, ...], client_column: str | None) -> list[str]:
    """Notes on rows without a label or a client, counted, where nothing is certified anyway."""
    found = ((name, "label", "not used") for name in labels)
    columns = [*found, *([(client_column, "client", "left out")] if client_column else [])]
    counts = [(table.column(name).null_count, name, *said) for name, *said in columns]
    return [
        f"{count} rows without a {what} ({name!r}) were {fate}."
        for count, name, what, fate in counts
        if count
    ]


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
        columns[name] = _as_read(table, name, found.column)
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
    described = _columns_of(public, table)
    columns = {name: column for name, column in described.items() if name not in taken}
    for name, column in columns.items():
        check_stored(path, name, table.column(name), column, "the schema says")
    unused = [name for name in table.column_names if name not in public and name not in taken]
    said = f" Not in it and not used: {_some([repr(name) for name in unused])}." if unused else ""
    return columns, [f"Inputs are scaled by the public schema alone.{said}"]


def _columns_of(public: Mapping[str, Column], table: Any) -> dict[str, Column]:
    """The described columns but those to be ignored, with the decimal mark of the table."""
    mark = (table.schema.metadata or {}).get(DECIMAL, b".").decode()
    return {
        name: replace(column, decimal=column.decimal or mark)
        for name, column in public.items()
        if column.kind is not Kind.IGNORE
    }


def _as_read(table: Any, name: str, column: Column) -> Column:
    """The column with the decimal mark by which its text was read, to read further rows alike."""
    if column.kind is not Kind.NUMBER or column.decimal is not None:
        return column
    mark = (table.field(name).metadata or {}).get(DECIMAL, b".").decode()
    return replace(column, decimal=mark)


def _numbered(names: Any) -> list[str]:
    """A note where clients' names, which are public, are numbers."""
    numbers = pc.match_substring_regex(as_text(names), WHOLE)
    return [NUMBERED_NOTE] if pc.any(numbers).as_py() else []


def _owners(column: Any) -> Owners:
    """Every row's place among the clients' sorted names: one array, no object a client."""
    encoded = pc.dictionary_encode(column).combine_chunks()  # no name: no code
    order = np.asarray(pc.array_sort_indices(encoded.dictionary))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    names = np.asarray(encoded.dictionary.sort())
    codes = np.asarray(pc.fill_null(encoded.indices, -1))
    return Owners(
        np.where(codes < 0, -1, rank[codes]), names.astype(str) if names.dtype == object else names
    )
