"""How rows of a table become a model's inputs, kept with the model to read further rows alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.data.encoding import (
    Floats,
    category_codes,
    encode,
    feature_names,
    kind_of,
    numbers_of,
    parts_of,
)
from fedveil.data.schema import Column, Kind, entry_of, parse_schema

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
        return  # text: each cell is read by itself
    number_like = column.kind is Kind.NUMBER and stored in (Kind.DATE, Kind.BOOLEAN)
    undated = column.kind is Kind.DATE and stored is Kind.NUMBER
    if stored is Kind.IGNORE or number_like or undated:
        raise ConfigError(f"{path}: column {name!r} holds {stored}, {says} {column.kind}")
