"""Encode the rows of a table: numbers scaled or cut, categories one-hot, texts as vectors.

What becomes of a row is a pure function of that row and of the schema. The same `TableEncoder`
reads rows in training, in prediction and at the sites of a federation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.arrow import pa, pc
from fedveil.data.examples import Scaling, Task
from fedveil.data.schema import Column, Kind, entry_of, parse_schema

FARTHEST = 5.0  # inputs are clipped there: one outlier must not rule a client's gradient
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # in a second
_LARGEST = float(np.finfo(np.float32).max)

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

Marked = dict[str, npt.NDArray[np.bool_]]  # by column, `[rows]`


@dataclass(frozen=True)
class Encoded:
    """Inputs `[rows, features]`; which rows of each column have no value of its kind, and which
    have a category that is none of the column's."""

    inputs: Floats
    gaps: Marked
    unknown: Marked


@dataclass(frozen=True)
class OneHot:
    """Inputs of one column, of which at most one is 1 in every row, and the others 0.

    Attributes:
        start: The first input.
        stop: One after the last input.
        ordered: How many of the first inputs are bins of a number, in their order.
        complete: Whether exactly one is 1 in every row.
    """

    start: int
    stop: int
    ordered: int
    complete: bool


@dataclass(frozen=True)
class TableEncoder:
    """The columns that are inputs, in their order, and the label: its classes, or its scale. Of
    several labels each is true or false."""

    columns: Mapping[str, Column]
    labels: tuple[str, ...]
    target: Column

    @property
    def separated(self) -> bool:
        """Whether a cell of the label holds any number of classes, or none."""
        return self.target.separator is not None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of several labels; none if numbers are predicted."""
        if len(self.labels) > 1:
            return self.labels
        return ("false", "true") if self.target.kind is Kind.BOOLEAN else self.target.categories

    @property
    def task(self) -> Task:
        """The task that the label asks for."""
        if len(self.labels) > 1 or self.separated:
            return Task.MULTI_LABEL
        return Task.REGRESSION if self.target.kind is Kind.NUMBER else Task.CLASSIFICATION

    @property
    def target_scaling(self) -> Scaling | None:
        """How a number that is predicted is standardised."""
        if self.task is not Task.REGRESSION:
            return None
        shift, factor = self.target.centre, 1 / self.target.width
        return Scaling(np.asarray(shift, np.float32), np.asarray(factor, np.float32))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(
            feature
            for name, column in self.columns.items()
            for feature in feature_names(name, column)
        )

    @property
    def one_hot(self) -> tuple[OneHot, ...]:
        """The columns that became one input for each bin or category."""
        found, start = [], 0
        for name, column in self.columns.items():
            stop = start + len(feature_names(name, column))
            if column.cuts:
                found.append(OneHot(start, stop, len(column.cuts) + 1, complete=True))
            elif column.kind is Kind.CATEGORY:
                complete = column.buckets is not None and column.missing
                found.append(OneHot(start, stop, 0, complete))
            start = stop
        return tuple(found)

    def encode(self, table: Any) -> Encoded:
        """The rows of a table as inputs, each by itself."""
        widths = [len(feature_names(name, column)) for name, column in self.columns.items()]
        matrix = np.empty((table.num_rows, sum(widths)), dtype=np.float32)
        start = 0
        gaps: Marked = {}
        unknown: Marked = {}
        for (name, column), width in zip(self.columns.items(), widths, strict=True):
            block = matrix[:, start : start + width]
            gaps[name] = encode(table.column(name), column, block)
            if column.kind is Kind.CATEGORY and column.buckets is None:
                unknown[name] = ~(block.any(1) | gaps[name])
            start += width
        return Encoded(matrix, gaps, unknown)

    def examples(self, pieces: Iterable[Any]) -> tuple[Floats, Array]:
        """Encode the rows of a table as training sees them.

        Args:
            pieces: The rows, as tables with all columns and labels.

        Returns:
            Inputs `[rows, features]`, and targets: class numbers, -1 where there is none; or
            standardised numbers, NaN where there is none; or 0 and 1 `[rows, labels]`.
        """
        inputs, targets = [], []
        for piece in pieces:
            inputs.append(self.encode(piece).inputs)
            values, _ = self.targets(piece)
            if self.task is Task.REGRESSION:
                values = np.clip(scaled(values, self.target), -_LARGEST, _LARGEST)
                values = values.astype(np.float32)
            targets.append(values)
        return np.concatenate(inputs), np.concatenate(targets)

    def targets(self, table: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Class numbers, or numbers in the label's own unit, and which rows have neither; of
        several labels `[rows, labels]`, and which rows lack any, or have one that is none of
        them."""
        if self.target.separator is not None:
            values = table.column(self.labels[0])
            return separated_truths(values, self.target.categories, self.target.separator)
        found = [self._target(table.column(label)) for label in self.labels]
        if len(found) == 1:
            return found[0]
        values, wrong = (np.stack(parts) for parts in zip(*found, strict=True))
        return values.T, np.any(wrong, axis=0)

    def _target(self, values: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        if self.target.kind is Kind.CATEGORY:
            codes = category_codes(values, self.target.categories)
            return codes, codes < 0
        numbers = numbers_of(values, self.target)
        if self.target.kind is Kind.BOOLEAN:
            wrong = ~np.isin(numbers, (0, 1))
            return np.where(wrong, -1, numbers).astype(np.int64), wrong
        return numbers, ~np.isfinite(numbers)

    def to_dict(self) -> dict[str, Any]:
        columns = {name: entry_of(column) for name, column in self.columns.items()}
        label = self.labels[0] if len(self.labels) == 1 else list(self.labels)
        return {"columns": columns, "label": label, "target": entry_of(self.target)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TableEncoder:
        columns = parse_schema({"columns": document["columns"]}, "encoder")
        target = parse_schema({"columns": {"target": document["target"]}}, "encoder")["target"]
        label = document["label"]
        return cls(columns, (label,) if isinstance(label, str) else tuple(label), target)


def separated_truths(
    values: Any, classes: Sequence[str], separator: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Which classes each cell names, `[rows, classes]`, and which cells name anything else."""
    rows, parts = parts_of(values, separator)
    codes = category_codes(parts, classes)
    truths, strange = np.zeros((len(values), len(classes)), np.int64), np.zeros(len(values), bool)
    truths[rows[codes >= 0], codes[codes >= 0]] = 1
    strange[rows[codes < 0]] = True
    return truths, strange


def check_stored(path: Path | str, name: str, values: Any, column: Column, says: str) -> None:
    """Refuse values whose stored type cannot be read as this kind of column."""
    stored = kind_of(values)
    if stored is Kind.CATEGORY:
        return  # each cell is read by itself
    number_like = column.kind is Kind.NUMBER and stored in (Kind.DATE, Kind.BOOLEAN)
    undated = column.kind is Kind.DATE and stored is Kind.NUMBER
    if stored is Kind.IGNORE or number_like or undated:
        raise ConfigError(f"{path}: column {name!r} holds {stored}, {says} {column.kind}")


def kind_of(values: Any) -> Kind:
    """Return the kind that a stored type implies, before any value is read."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return Kind.BOOLEAN
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Kind.DATE
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Kind.NUMBER
    return Kind.CATEGORY if pa.types.is_string(kind) else Kind.IGNORE


def unreadable(values: Any) -> bool:
    """Whether values are stored as what is neither numbers, dates, text nor nothing."""
    return kind_of(values) is Kind.IGNORE and not pa.types.is_null(values.type)


def is_list(values: Any) -> bool:
    """Whether values are stored as lists of text or of whole numbers."""
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        return False
    entries = values.type.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(holds(entries) for holds in (*texts, pa.types.is_integer))


def joined(values: Any, separator: str) -> Any:
    """Return lists of text or of whole numbers as one text each, and all else as it is."""
    return (
        pc.binary_join(values.cast(pa.list_(pa.string())), separator) if is_list(values) else values
    )


def feature_names(name: str, column: Column) -> list[str]:
    gap = [f"{name} (missing)"] if column.missing else []
    if column.kind is Kind.TEXT:
        return [f"{name} #{place}" for place in range(column.length or 0)]
    if column.kind is Kind.CATEGORY:
        values = column.categories or [f"#{bucket}" for bucket in range(column.buckets or 0)]
        return [*(f"{name}={value}" for value in values), *gap]
    if column.cuts:
        cuts = [f"{cut:.6g}" for cut in column.cuts]
        inner = (f"{name} {low} to {high}" for low, high in pairwise(cuts))
        bins = [f"{name} below {cuts[0]}", *inner, f"{name} from {cuts[-1]}"]
        return [*bins, f"{name} (missing)"]
    return [name, *gap]


def encode(values: Any, column: Column, out: Floats) -> npt.NDArray[np.bool_]:
    """Write the inputs of one column into `out [examples, features of the column]`, each row's by
    itself; which of its values are missing."""
    gaps: npt.NDArray[np.bool_]
    if column.kind is Kind.TEXT:
        from fedveil.data.texts import encoder_of  # brings torch

        out[:] = encoder_of(column).vectors(as_text(values).to_pylist())
        return np.zeros(len(values), bool)  # an empty text is a text
    if column.kind is Kind.CATEGORY:
        if column.buckets is None:
            codes = category_codes(values, column.categories)
        else:
            codes = bucket_codes(values, column.buckets)
        out[:] = 0
        known = np.flatnonzero(codes >= 0)
        out[known, codes[known]] = 1
        gaps = np.asarray(values.is_null())
    elif column.cuts:
        numbers = numbers_of(values, column)
        gaps = np.isnan(numbers)
        places = np.searchsorted(np.array(column.cuts), numbers, side="right")
        out[:] = 0
        out[np.arange(len(numbers)), np.where(gaps, len(column.cuts) + 1, places)] = 1
        return gaps
    else:
        numbers = np.clip(scaled(numbers_of(values, column), column), -FARTHEST, FARTHEST)
        gaps = np.isnan(numbers)
        out[:, 0] = np.where(gaps, 0.0, numbers)  # the centre: neither high nor low
    if column.missing:
        out[:, -1] = gaps
    return gaps


def scaled(numbers: npt.NDArray[np.float64], column: Column) -> npt.NDArray[np.float64]:
    if column.kind is Kind.BOOLEAN:
        return numbers
    if column.min is not None and column.max is not None:
        numbers = np.clip(numbers, column.min, column.max)
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of such a number
        return (numbers - column.centre) / column.width


def category_codes(values: Any, categories: Sequence[str]) -> npt.NDArray[np.int64]:
    """Position of every value among the categories, -1 if missing or not among them.

    A value in another spelling than the category's (2.0 for 2, True for true, and if there is no
    such category, 2% for 2) counts as it.
    """
    text, names = as_text(values), pa.array(list(categories), pa.string())
    found = pc.index_in(text, value_set=names)
    for spelt in (cells.canonical, lambda one: cells.canonical(cells.undressed(one))):
        if found.null_count > text.null_count:
            found = pc.coalesce(found, pc.index_in(spelt(text), value_set=spelt(names)))
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def parts_of(values: Any, separator: str) -> tuple[npt.NDArray[np.int64], Any]:
    """The parts of all cells, trimmed and without empty ones, and the row that each is from."""
    text = as_text(joined(values, separator))
    text = pc.replace_substring(pc.fill_null(text, ""), cells.BETWEEN, separator)
    lists = pc.split_pattern(text, pattern=separator)
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    parts = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    rows = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
    named = np.asarray(pc.not_equal(parts, ""))
    return rows[named], parts.filter(pa.array(named))


def bucket_codes(values: Any, buckets: int) -> npt.NDArray[np.int64]:
    """A number below `buckets` for every value, by a public hash of its text; -1 if missing."""
    coded = pc.dictionary_encode(cells.canonical(as_text(values)))
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    hashed = [zlib.crc32(text.encode()) % buckets for text in coded.dictionary.to_pylist()]
    places = np.asarray(pc.fill_null(coded.indices, len(hashed))).astype(np.int64)
    return np.array([*hashed, -1], dtype=np.int64)[places]


def as_text(values: Any) -> Any:
    """Values as categories are written: whole numbers without a decimal point."""
    if pa.types.is_floating(values.type):
        return cells.number_text(values)
    return values.cast(pa.string())


def numbers_of(values: Any, column: Column) -> npt.NDArray[np.float64]:
    """Floats with NaN for missing values; dates as days since 1970-01-01."""
    if pa.types.is_string(values.type):
        if column.kind is Kind.DATE:
            values = cells.days(values, column.order)
        elif column.kind is Kind.BOOLEAN:
            values = cells.truths(values)
        else:
            values = cells.numbers(values, column.decimal or ".")
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        ticks = values.cast(pa.int64()).cast(pa.float64(), safe=False)
        values = pc.divide(ticks, 86_400.0 * _TICKS[getattr(values.type, "unit", "ms")])
    floats = values.cast(pa.float64(), safe=False)
    return np.asarray(floats.to_numpy(), dtype=np.float64)
