"""Public knowledge about the columns of a table, so that nothing has to be taken from the data.

A schema is a TOML or JSON file:

    [columns.age]
    type = "number"        # number, date, boolean, category or ignore
    min = 17               # either min and max (values are clipped), or mean and std
    max = 90
    missing = true         # optional: one more input that says "no value here"
    decimal = ","          # optional: "1,234" is a little more than one, not a thousand and more

    [columns.state]
    type = "category"
    categories = ["CA", "NY", "TX"]   # anything else has no input of its own

The label and the client column may stand in it too. Columns that do not stand in it are not used.
"""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError


class Kind(StrEnum):
    NUMBER = "number"
    DATE = "date"  # days since 1970-01-01
    BOOLEAN = "boolean"
    CATEGORY = "category"
    IGNORE = "ignore"


@dataclass(frozen=True)
class Column:
    """One column: numbers become `(clip(x) - centre) / width`, categories one input each."""

    kind: Kind
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    categories: tuple[str, ...] = ()
    missing: bool = False
    decimal: str | None = None  # None: as the file's form suggests

    @property
    def centre(self) -> float:
        if self.min is not None and self.max is not None:
            return (self.min + self.max) / 2
        return self.mean or 0.0

    @property
    def width(self) -> float:
        if self.min is not None and self.max is not None:
            return (self.max - self.min) / 2
        return self.std or 1.0


def read_schema(path: Path) -> dict[str, Column]:
    """The columns that a schema file describes."""
    if not path.is_file():
        raise ConfigError(f"schema {path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema {path}: {error}") from None
    return parse_schema(document, f"schema {path}")


def parse_schema(document: Any, where: str = "schema") -> dict[str, Column]:
    if not isinstance(document, Mapping) or not isinstance(document.get("columns"), Mapping):
        raise ConfigError(f"{where}: needs a table [columns.NAME] for every column")
    return {
        str(name): _column(entry, f"{where}, column {name!r}")
        for name, entry in document["columns"].items()
    }


def _column(entry: Any, where: str) -> Column:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: must be a table")
    known = ["type", *(field.name for field in fields(Column) if field.name != "kind")]
    for key in entry:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
    if entry.get("type") not in list(Kind):
        raise ConfigError(f"{where}: type={entry.get('type')!r}; must be one of {', '.join(Kind)}")
    kind = Kind(entry["type"])
    numbers = {
        key: _number(entry[key], f"{where}: {key}")
        for key in ("min", "max", "mean", "std")
        if key in entry
    }
    categories = entry.get("categories", [])
    if not isinstance(categories, list) or len(set(map(str, categories))) != len(categories):
        raise ConfigError(f"{where}: categories must be a list without repetitions")
    column = Column(
        kind,
        **numbers,
        categories=tuple(_name(category) for category in categories),
        missing=bool(entry.get("missing", False)),
        decimal=entry.get("decimal"),
    )
    _check(column, where)
    return column


def _check(column: Column, where: str) -> None:
    if column.decimal not in (None, ".", ","):
        raise ConfigError(f"{where}: decimal={column.decimal!r}; must be a point or a comma")
    if column.kind is Kind.CATEGORY and not column.categories:
        raise ConfigError(f"{where}: type category needs a list of categories")
    if column.kind in (Kind.NUMBER, Kind.DATE):
        told = {k for k in ("min", "max", "mean", "std") if getattr(column, k) is not None}
        if told not in ({"min", "max"}, {"mean", "std"}):  # nothing is ignored
            raise ConfigError(f"{where}: needs min and max, or mean and std")
        if not column.width > 0:
            raise ConfigError(f"{where}: min must be below max, and std positive")


def _number(value: Any, where: str) -> float:
    """Numbers as they are, dates as days since 1970-01-01."""
    if isinstance(value, str):
        try:
            value = datetime.date.fromisoformat(value)
        except ValueError:
            raise ConfigError(f"{where}={value!r}: neither a number nor a date") from None
    if isinstance(value, datetime.datetime):
        value = value.date()
    if isinstance(value, datetime.date):
        return float((value - datetime.date(1970, 1, 1)).days)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}={value!r}: must be a finite number")
    return float(value)


def _name(category: Any) -> str:
    if isinstance(category, bool):
        return str(category).lower()
    return str(category)


def template(kinds: Mapping[str, Kind], remarks: Mapping[str, str]) -> str:
    """A schema file to fill in: names and types only, nothing that was measured."""
    lines = [
        "# What is publicly known about the columns. Fill in the blanks from public knowledge,",
        "# not from the data: whatever stands here is treated as known to everybody.",
        '# type = "ignore" leaves a column out.',
    ]
    blanks = {
        Kind.NUMBER: ["min = ", "max = "],
        Kind.DATE: ["min = ", "max = "],
        Kind.CATEGORY: ["categories = [ ]"],
    }
    for name, kind in kinds.items():
        remark = f"  # {remarks[name]}" if name in remarks else ""
        lines += ["", f"[columns.{json.dumps(name, ensure_ascii=False)}]{remark}"]
        lines += [f'type = "{kind}"', *(f"# {blank}" for blank in blanks.get(kind, []))]
    return "\n".join(lines) + "\n"
