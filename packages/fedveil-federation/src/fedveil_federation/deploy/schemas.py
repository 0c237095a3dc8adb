"""What is publicly known about everybody's rows: the columns of a table, or arrays of one shape."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.encoder import TableEncoder, numbers_of
from fedveil.data.federation import Examples, Federation, Scaling, Task
from fedveil.data.partition import IID
from fedveil.data.rows import read_table
from fedveil.data.schema import Column, Kind, parse_schema, read_columns
from fedveil.data.table import from_table

ARRAYS = "arrays"
_ARRAY_TASKS = {"tokens": Task.SEQUENCE, "labels": Task.MULTI_LABEL, "classes": Task.CLASSIFICATION}


def rows_of(
    schema: RowSchema, path: Path, holdout: float, person_column: str | None = None
) -> Federation:
    """One owner's rows: a file, or a folder that `Federation.save` wrote, with persons or not."""
    if not path.is_dir():
        return schema.from_file(path, holdout, person_column)
    if person_column is not None:
        raise ConfigError(
            f"--person-column {person_column}: {path} is a folder, which says itself whose rows "
            "are whose. Leave it out, and give persons= to Federation.from_arrays."
        )
    found = Federation.open(path)
    known = (schema.task, len(schema.classes), schema.shape)
    if (found.task, found.classes, found.input_shape) != known or found.clients != 1:
        raise ConfigError(f"data {path}: not one owner's rows of the agreed schema")
    if found.class_names not in ((), schema.classes):
        raise ConfigError(f"data {path}: its classes are not those of the agreed schema, in order")
    if wrong := schema.wrong_with(found):
        raise ConfigError(f"data {path}: {wrong}")
    return schema.named(found)


@dataclass(frozen=True)
class TableSchema:
    """`columns` as the schema's file has them; `label` names the one to predict, or several with
    commas between them that are true or false each."""

    label: str
    columns: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        one = self.label in self.columns or "," not in self.label
        return (self.label,) if one else tuple(part.strip() for part in self.label.split(","))

    @cached_property
    def encoder(self) -> TableEncoder:
        known = parse_schema({"columns": self.columns})
        if guessed := [name for name, column in known.items() if column.guess]:
            raise ConfigError(
                f"schema: column {guessed[0]!r} is a guess from somebody's rows; everybody is to "
                "know it, so make it what everybody may know, and delete the mark"
            )
        if texts := [name for name, column in known.items() if column.kind is Kind.TEXT]:
            raise ConfigError(
                f"schema: column {texts[0]!r} is free text, which sites do not read. Leave it out."
            )
        several = len(self.labels) > 1
        kinds = (Kind.BOOLEAN,) if several else (Kind.CATEGORY, Kind.BOOLEAN, Kind.NUMBER)
        found = [known.pop(label, Column(Kind.IGNORE)) for label in self.labels]
        for label, target in zip(self.labels, found, strict=True):
            if target.kind not in kinds or target.buckets is not None:
                said = "a boolean, named once" if several else "categories, boolean or a number"
                raise ConfigError(f"schema: the label {label!r} must be in it: {said}")
        inputs = {name: column for name, column in known.items() if column.kind is not Kind.IGNORE}
        if divided := [name for name, column in inputs.items() if column.separator is not None]:
            raise ConfigError(f"schema: {divided[0]!r} has a separator, which is for the label")
        if not inputs:
            raise ConfigError(f"schema: no column besides {self.label!r} can be used as an input")
        return TableEncoder(inputs, self.labels, found[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.encoder.features),)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.encoder.class_names

    @property
    def task(self) -> Task:
        return self.encoder.task

    @property
    def unit(self) -> float:
        return 1.0 if self.classes else self.encoder.target.width

    def named(self, plain: Federation) -> Federation:
        return replace(
            plain,
            class_names=self.classes,
            features=self.encoder.features,
            encoder=self.encoder,
            target_scaling=self.encoder.target_scaling,
        )

    def from_file(self, path: Path, holdout: float, person_column: str | None) -> Federation:
        if person_column in self.encoder.columns:
            raise ConfigError(
                f"--person-column {person_column}: it is an input of the agreed schema, and a "
                'name is no input. Found the federation with type = "ignore" for it.'
            )
        return from_table(
            path,
            label=self.encoder.labels,
            person_column=person_column,
            schema={"columns": self.columns},
            partition=IID(1),
            test_fraction=holdout,
        )

    def remarks(self, path: Path, person_column: str | None = None) -> list[str]:
        if path.is_dir():
            return []
        columns, said = self.encoder.columns, []
        used = {*columns, *self.labels}
        if person_column is not None:
            used.add(person_column)
        table = read_table(path, used)
        encoded, rows = self.encoder.encode(table), table.num_rows
        if person_column is not None and (count := table.column(person_column).null_count):
            said.append(f"{count} of {rows} rows name no person and are left out")
        if (count := int(self.encoder.targets(table)[1].sum())) and not self.encoder.separated:
            lack = "lack a label" if len(self.labels) > 1 else "have no label"
            said.append(f"{count} of {rows} rows {lack} of the agreed kind and contribute nothing")
        for name, column in columns.items():
            if count := int(encoded.unknown.get(name, np.zeros(0)).sum()):
                known = ", ".join(map(repr, column.categories[:8]))  # the hub's words
                said.append(f"column {name!r}: {count} of {rows} values are none of {known}")
            if not column.missing and (count := int(encoded.gaps[name].sum())):
                said.append(
                    f"column {name!r}: {count} of {rows} values are missing or no {column.kind}"
                )
            low, high = column.min, column.max
            if column.kind is Kind.NUMBER and low is not None and high is not None:
                numbers = numbers_of(table.column(name), column)
                if count := int(((numbers < low) | (numbers > high)).sum()):
                    limits = f"{low:g} to {high:g}, and count as the nearer end"
                    said.append(f"column {name!r}: {count} of {rows} are outside {limits}")
        return said

    def wrong_with(self, found: Federation) -> str:
        named = found.features in ((), self.encoder.features)
        return "" if named else "its inputs are not those of the agreed schema"


@dataclass(frozen=True)
class ArraySchema:
    """Images or signals: numbers from `low` to `high`, which models see as 0 to 1, with classes, or
    with labels that are true or false each. Texts: `tokens` instead of classes and numbers, of
    which the next one is predicted at every place."""

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    low: float
    high: float
    task: Task = Task.CLASSIFICATION
    unit: float = 1.0

    @staticmethod
    def of(given: Mapping[str, Any]) -> ArraySchema:
        kind = next((key for key in _ARRAY_TASKS if key in given), "classes")
        text = kind == "tokens"
        names = {"shape", kind} if text else {"shape", kind, "min", "max"}
        try:
            shape, classes = tuple(given["shape"]), tuple(given[kind])
            limits = (0, len(classes) - 1) if text else (given["min"], given["max"])
            low, high = map(float, limits)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                "schema: [arrays] needs shape, classes or labels, min and max; or shape and tokens"
            ) from None
        if not shape or any(type(one) is not int or one < 1 for one in shape):
            raise ConfigError(f"schema: shape = {list(shape)}: need whole numbers above zero")
        if text and len(shape) != 1:
            raise ConfigError(f"schema: shape = {list(shape)}: texts need their length alone")
        different = {one for one in classes if isinstance(one, str) and one}
        if len(different) != len(classes) or len(classes) < 2:
            raise ConfigError(f"schema: {kind} need two different names or more")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"schema: min = {low:g}, max = {high:g}: need a range")
        if extra := set(given) - names:
            raise ConfigError(f"schema: [arrays] does not know {sorted(extra)[0]!r}")
        return ArraySchema(shape, classes, low, high, _ARRAY_TASKS[kind])

    def named(self, plain: Federation) -> Federation:
        if self.task is Task.SEQUENCE:
            return replace(plain, class_names=self.classes)
        factor = np.asarray(1 / (self.high - self.low), np.float32)
        scaling = Scaling(np.asarray(self.low, np.float32), factor)
        return replace(plain, class_names=self.classes, scaling=scaling)

    def from_file(self, path: Path, holdout: float, person_column: str | None) -> Federation:
        raise ConfigError(f"data {path}: arrays come from a folder that Federation.save wrote")

    def remarks(self, path: Path, person_column: str | None = None) -> list[str]:
        return []

    def wrong_with(self, found: Federation) -> str:
        own_rows = (part.only_usable() for part in (found.train, found.test))
        parts = [part.inputs for part in own_rows if len(part)]
        inside = all(self.low <= own.min() <= own.max() <= self.high for own in parts)
        return "" if inside else f"it has values outside {self.low:g} to {self.high:g}"


RowSchema = (
    TableSchema | ArraySchema
)  # how an owner's rows become examples, by what everybody knows


def read_schema_file(path: Path) -> dict[str, Any]:
    """Read a schema's file: `columns`, or `arrays`."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        found = {}  # what is wrong is said below
    if set(found) == {ARRAYS}:
        return {ARRAYS: found[ARRAYS]}
    return {"columns": read_columns(path)}


def public_examples(found: Federation) -> Examples:
    """All usable rows of somebody's, who shows them to everybody."""
    parts = [part.only_usable() for part in (found.train, found.test)]
    inputs, targets = zip(*((part.inputs, part.targets) for part in parts), strict=True)
    return Examples(np.concatenate(inputs), np.concatenate(targets))
