"""Draft a schema from the rows themselves, where nobody has described the columns.

All cells of a column decide what it is. None of this is protected: a run with a draft is not
certified, and mistakes in a file may be shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.arrow import pa, pc
from fedveil.data.bins import cuts_at_quantiles
from fedveil.data.encoder import as_text, kind_of, numbers_of, parts_of
from fedveil.data.federation import Task
from fedveil.data.schema import Column, Kind

MOST_CLASSES = 20  # a numeric label with more different values is a quantity
_MOST_TEXT_CLASSES = 1000
_MOST_CATEGORIES = 100  # a text column with more is no category
_NUMERIC_SHARE = 0.9  # text of which this share are numbers is a number with gaps
COLUMNS = "which columns are inputs, and of what kind, was decided from the data"
_ID_NAMES = ("", "id", "index", "row", "key", "uuid")
_NUMBERS = (
    (".", cells.NUMBER),
    (".", cells.THOUSANDS),
    (",", "|".join((cells.COMMA, cells.POINTS))),
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Draft:
    """A column's guessed description, or why it is left out, with a note for the user."""

    column: Column | None
    why_not: str = ""
    remark: str = ""

    def with_gap(self, missing: bool) -> Draft:
        """Return the draft with an input that says "no value here", or without."""
        column = self.column and replace(self.column, missing=missing)
        return replace(self, column=column)


@dataclass(frozen=True)
class Rows:
    """A table to draft from.

    Attributes:
        path: What error messages call it.
        table: All rows.
        typed: Whether the source stores types: text without signs is meant as text then.
    """

    path: Path
    table: Any
    typed: bool

    def column(self, name: str, bins: int | None = None) -> Draft:
        """Decide what a column is, and where to cut its numbers into so many bins."""
        values = self.table.column(name)
        if is_index(name):
            return Draft(None, "row numbers")
        if values.null_count == len(values):
            return Draft(None, "no values at all")
        column = self._kind(values)
        if column.kind is Kind.IGNORE:
            return Draft(None, f"{values.type} values")
        column, remark = replace(column, missing=values.null_count > 0), ""
        if pc.count_distinct(values).as_py() == 1 and not column.missing:
            return Draft(None, "the same value everywhere")
        if column.kind is Kind.CATEGORY:
            found = _text_column(values, column)
            if found.column is None or found.column.kind is Kind.CATEGORY:
                missing = column.missing or bins is not None
                return found if found.column is None else found.with_gap(missing)
            column, remark = found.column, found.remark
        numbers = self._numbers(name, column)
        if column.kind is Kind.NUMBER and _numbers_rows(name, numbers):
            return Draft(None, "an identifier")
        if column.kind is Kind.BOOLEAN:
            return Draft(column).with_gap(column.missing or bins is not None)
        known = numbers[np.isfinite(numbers)]
        column = replace(column, mean=float(known.mean()), std=float(known.std()) or 1.0)
        if bins is not None:
            distinct, counts = np.unique(known, return_counts=True)
            edges = np.append(distinct, distinct[-1:] + 1.0)
            cuts = cuts_at_quantiles(edges, counts.astype(np.float64), bins)
            column = replace(column, cuts=cuts, missing=column.missing or bool(cuts))
        return Draft(column, "", remark)

    def target(
        self, label: str, task: Task | str | None = None, separator: str | None = None
    ) -> Column:
        """Decide what is to be predicted: the label's classes, or its scale."""
        values = self.table.column(label)
        if separator is not None:
            _, parts = parts_of(values, separator)
            names = tuple(pc.unique(cells.canonical(parts)).sort().to_pylist())
            _check_names(self.path, label, names, 2 * _MOST_TEXT_CLASSES)
            return Column(Kind.CATEGORY, categories=names, separator=separator)
        if values.null_count == len(values):
            raise ConfigError(f"{self.path}: no row has a label (column {label!r})")
        column = self._kind(values)
        if column.kind is Kind.NUMBER:
            numbers = self._numbers(label, column)
            known = numbers[~np.isnan(numbers)]
            few = _whole(known) and len(np.unique(known)) <= MOST_CLASSES
            if task == Task.REGRESSION or (task is None and not few):
                if not known.std() > 0:
                    raise ConfigError(
                        f"{self.path}: label {label!r} is the same in every row: nothing to predict"
                    )
                return replace(column, mean=float(known.mean()), std=float(known.std()))
        elif task == Task.REGRESSION:
            raise ConfigError(
                f"{self.path}: label {label!r} holds {values.type}, regression needs numbers"
            )
        names = _class_names(values, column)
        _check_names(self.path, label, names, len(values))
        return Column(Kind.CATEGORY, categories=names)

    def _kind(self, values: Any) -> Column:
        """Return what all cells of a column are, with the decimal mark of numbers."""
        kind = kind_of(values)
        if kind is not Kind.CATEGORY:
            return Column(kind, decimal="." if kind is Kind.NUMBER else None)
        text = values.drop_null()
        if _all_match(text, cells.DATED) and not cells.days(text).null_count:
            return Column(Kind.DATE)
        bare = cells.undressed(text)
        if self.typed and bare.equals(text):
            return Column(Kind.CATEGORY)
        for mark, pattern in _NUMBERS:
            if _all_match(bare, pattern):
                return Column(Kind.NUMBER, decimal=mark)
        if not self.typed and not cells.days(text).null_count:
            return Column(Kind.DATE)
        if not self.typed and (order := cells.slashed_order(text)) is not None:
            return Column(Kind.DATE, order=order)
        if not self.typed and _all_match(pc.utf8_lower(text), "^(true|false|0|1)$"):
            return Column(Kind.BOOLEAN)
        return Column(Kind.CATEGORY)

    def _numbers(self, name: str, column: Column) -> Floats:
        """Return the numbers of a column with NaN for gaps."""
        numbers = numbers_of(self.table.column(name), column)
        if np.isinf(numbers).any():
            row = int(np.argmax(np.isinf(numbers))) + 1
            raise ConfigError(
                f"{self.path}: column {name!r} holds infinity in row {row}; replace it or leave "
                "it blank"
            )
        return numbers


def is_index(name: str) -> bool:
    """Whether this is the nameless index of a frame, as pandas stores it beside the columns."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def is_identifier(name: str) -> bool:
    """Whether a column numbers its rows, by its name."""
    plain = name.casefold().replace("-", "_")
    return plain in _ID_NAMES or plain.endswith(("_id", " id")) or plain.startswith("unnamed:")


def guess(column: Column) -> Column:
    """Return a column marked as a guess, with no more digits than a guess deserves."""
    if column.mean is not None and column.std is not None:
        digits = 1 - math.floor(math.log10(column.std))  # two of the deviation's
        column = replace(column, mean=round(column.mean, digits), std=round(column.std, digits))
    mark = None if column.decimal == "." else column.decimal
    # Booleans leave nothing to guess.
    return replace(column, decimal=mark, guess=column.kind is not Kind.BOOLEAN)


def draft_inputs(
    rows: Rows, taken: Collection[str | None], bins: int | None
) -> tuple[dict[str, Column], dict[str, str], list[str]]:
    """Draft all columns but those that are taken.

    Returns:
        The inputs by name, why each other column is none, and sentences on what was decided.
    """
    drafts = {n: rows.column(n, bins) for n in rows.table.column_names if n not in taken}
    columns = {name: one.column for name, one in drafts.items() if one.column is not None}
    gaps = {name: rows.table.column(name).null_count for name in columns}
    dates = [repr(name) for name, column in columns.items() if column.kind is Kind.DATE]
    notes = []
    left_out = {name: one.why_not for name, one in drafts.items() if one.column is None}
    if missing := [f"{name!r} ({count})" for name, count in gaps.items() if count]:
        notes.append(
            f"Missing values in {some(missing)}: numbers became the mean, and an input of its "
            "own says that the value was missing."
        )
    if dates:
        notes.append(f"Dates became days since 1970-01-01: {some(dates)}.")
    notes += [f"{name!r}: {one.remark}." for name, one in drafts.items() if one.remark]
    return columns, left_out, notes


def taken_from_data(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return what the inputs of drafted columns owe to the data, one sentence a kind."""
    kinds = [column.kind for column in columns.values()]
    said = [COLUMNS]
    if measured := sum(kind in (Kind.NUMBER, Kind.DATE) for kind in kinds):
        said.append(f"means and deviations of {counted(measured)} were taken from the data")
    if named := kinds.count(Kind.CATEGORY):
        said.append(f"categories of {counted(named)} were taken from the data")
    return tuple(said)


def counted(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def some(names: list[str], most: int = 12) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _text_column(values: Any, column: Column) -> Draft:
    """Decide whether text is a category, a number with oddities among it, or left out."""
    distinct, present = pc.count_distinct(values).as_py(), len(values) - values.null_count
    unclear = pc.all(pc.match_substring_regex(values, cells.UNCLEAR_DATE)).as_py()
    hint = f"; {cells.DATES_ARE}" if unclear else ""
    if distinct <= _MOST_CATEGORIES and distinct <= max(20, present // 2):
        names = tuple(sorted(pc.unique(values.drop_null()).to_pylist()))
        remark = f"{distinct} categories{hint}" if hint else ""
        return Draft(replace(column, categories=names), "", remark)
    strange = cells.numbers(values).null_count - values.null_count
    if strange > (1 - _NUMERIC_SHARE) * present:
        return Draft(None, f"text with {distinct} different values{hint}")
    remark = f"{strange} entries that are no numbers count as missing"
    return Draft(Column(Kind.NUMBER, missing=True, decimal="."), "", remark)


def _numbers_rows(name: str, numbers: Floats) -> bool:
    """Whether a column numbers its rows: by its name, and because all are whole and different."""
    return is_identifier(name) and len(np.unique(numbers)) == len(numbers) and _whole(numbers)


def _class_names(values: Any, column: Column) -> tuple[str, ...]:
    """Return the different labels in order: numbers by size, text by letters."""
    values = values.drop_null()
    if pa.types.is_string(values.type) and column.kind is Kind.NUMBER:
        texts = pc.unique(cells.canonical(cells.undressed(values)))
        return tuple(texts.take(np.argsort(numbers_of(texts, column))).to_pylist())
    if column.kind is Kind.BOOLEAN:
        values = cells.canonical(as_text(values))
    return tuple(as_text(pc.unique(values).sort()).to_pylist())


def _check_names(path: Path, label: str, names: tuple[str, ...], rows: int) -> None:
    if len(names) > max(MOST_CLASSES, min(_MOST_TEXT_CLASSES, rows // 2)):
        raise ConfigError(
            f"{path}: label {label!r} has {len(names)} different values, too many for classes; "
            "declare those that count (classes), or use task='regression' or another label"
        )
    if len(names) < 2:
        raise ConfigError(
            f"{path}: label {label!r} has fewer than two classes: nothing to predict (NA, None, "
            "null and the like count as missing)"
        )


def _whole(numbers: Floats) -> bool:
    return bool((numbers == np.round(numbers)).all())


def _all_match(text: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(text, pattern)).as_py())
