"""Public knowledge about the columns of a table, so that nothing has to be taken from the data.

A schema is a TOML or JSON file:

    [columns.age]
    type = "number"        # number, date, boolean, category, text or ignore
    min = 17               # either min and max (values are clipped), or mean and std
    max = 90
    cuts = [30, 45, 60]    # optional: four bins with an input each, instead of one scaled number
    missing = true         # optional: one more input that says "no value here"
    decimal = ","          # optional: "1,234" is a little more than one, not a thousand and more

    [columns.state]
    type = "category"
    categories = ["CA", "NY", "TX"]   # anything else has no input of its own
    # or, if nobody knows them: buckets = 32; each value has one of so many inputs, by its hash
    guess = true                      # in a draft: taken from the rows; delete once it is public

    [columns.tags]                    # a label with any number of classes in a cell: "red; large"
    type = "category"
    categories = ["red", "large"]
    separator = ";"

    [columns.notes]                   # free text: a vector by a frozen public sentence encoder
    type = "text"

The label and the client column may stand in it too. Columns that do not stand in it are not used.
"""

from __future__ import annotations

import datetime
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError

BOUGHT = "bought"  # key of a schema's file: what its statistics have cost
MOST_BUCKETS = 1024
_EPOCH = datetime.date(1970, 1, 1)


class Kind(StrEnum):
    NUMBER = "number"
    DATE = "date"  # days since 1970-01-01
    BOOLEAN = "boolean"
    CATEGORY = "category"
    TEXT = "text"  # free text, a vector by a public encoder (`data.texts`)
    IGNORE = "ignore"


@dataclass(frozen=True)
class Column:
    """One column: numbers become `(clip(x) - centre) / width`, categories one input each.

    A number or date with `cuts` has an input for each bin between them, of which exactly one is 1,
    and one more for "no value here".
    """

    kind: Kind
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    cuts: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    missing: bool = False
    decimal: str | None = None  # None: as the file's form suggests
    buckets: int | None = None  # of categories that nobody has listed
    separator: str | None = None  # of a label: between the classes of a cell, of which it has any
    guess: bool = False  # taken from the rows, and nobody has said that it is public
    encoder: str | None = None  # of text: what turns it into a vector, as in `data.text_encoder`
    digest: str | None = None  # of text: SHA-256 of the encoder; another one is refused
    length: int | None = None  # of text: numbers in the encoder's vectors

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


def read_columns(path: Path) -> dict[str, Any]:
    """Return the columns that a public schema file describes, as the file has them."""
    document = read_schema(path)
    if BOUGHT in document:
        raise ConfigError(
            f"schema {path}: its statistics were bought with a privacy budget, which only fedveil "
            "run counts. Write a schema of what is public."
        )
    return dict(_tables(document, f"schema {path}"))


def read_schema(path: Path) -> dict[str, Any]:
    """Return what a schema file says: `columns`, and what they have cost, if they were bought."""
    if not path.is_file():
        raise ConfigError(f"schema {path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema {path}: {error}") from None
    _tables(document, f"schema {path}")
    return dict(document)


def parse_schema(document: Any, where: str = "schema") -> dict[str, Column]:
    return {
        str(name): _column(entry, f"{where}, column {name!r}")
        for name, entry in _tables(document, where).items()
    }


def _tables(document: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping) or not isinstance(document.get("columns"), Mapping):
        raise ConfigError(f"{where}: needs a table [columns.NAME] for every column")
    columns: Mapping[str, Any] = document["columns"]
    return columns


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
    cuts = entry.get("cuts", [])
    if not isinstance(cuts, list):
        raise ConfigError(f"{where}: cuts={cuts!r}; must be a list of numbers or dates")
    column = Column(
        kind,
        **numbers,
        cuts=tuple(_number(cut, f"{where}: cuts") for cut in cuts),
        categories=tuple(_name(category) for category in categories),
        missing=bool(entry.get("missing", False)),
        decimal=entry.get("decimal"),
        buckets=entry.get("buckets"),
        separator=entry.get("separator"),
        guess=bool(entry.get("guess", False)),
        encoder=entry.get("encoder"),
        digest=entry.get("digest"),
        length=entry.get("length"),
    )
    _check(column, where)
    return column


def _check(column: Column, where: str) -> None:
    if column.decimal not in (None, ".", ","):
        raise ConfigError(f"{where}: decimal={column.decimal!r}; must be a point or a comma")
    buckets = column.buckets
    if buckets is not None and (type(buckets) is not int or not 2 <= buckets <= MOST_BUCKETS):
        raise ConfigError(f"{where}: buckets must be a whole number from 2 to {MOST_BUCKETS}")
    if column.kind is Kind.CATEGORY and bool(column.categories) == (buckets is not None):
        raise ConfigError(f"{where}: type category needs a list of categories, or buckets")
    if column.separator is not None:
        check_separator(f"{where}: separator", column.separator, column.categories)
        if column.kind is not Kind.CATEGORY or buckets is not None:
            raise ConfigError(f"{where}: separator is for a label with a list of categories")
    of_text = {"encoder": str, "digest": str, "length": int}
    for key, kind in of_text.items():
        value = getattr(column, key)
        if value is not None and (column.kind is not Kind.TEXT or type(value) is not kind):
            raise ConfigError(f"{where}: {key}={value!r}; it is of type text, and fedveil sets it")
    if column.kind is Kind.TEXT and column.missing:
        raise ConfigError(f"{where}: missing is not for type text: no text is a vector of zeros")
    if column.cuts and column.kind not in (Kind.NUMBER, Kind.DATE):
        raise ConfigError(f"{where}: cuts are for numbers and dates, not for type {column.kind}")
    if any(later <= cut for cut, later in pairwise(column.cuts)):
        raise ConfigError(f"{where}: cuts must increase from one to the next")
    if column.kind in (Kind.NUMBER, Kind.DATE):
        told = {k for k in ("min", "max", "mean", "std") if getattr(column, k) is not None}
        if told not in ({"min", "max"}, {"mean", "std"}):  # nothing is ignored
            raise ConfigError(f"{where}: needs min and max, or mean and std")
        if not column.width > 0:
            raise ConfigError(f"{where}: min must be below max, and std positive")


def check_separator(where: str, separator: Any, names: Iterable[str] = ()) -> None:
    """Refuse what separates nothing, or the parts of a name."""
    if not isinstance(separator, str) or not separator:
        raise ConfigError(f"{where} = {separator!r}: must be text, as ';'")
    if split := [name for name in names if separator in name]:
        raise ConfigError(f"{where} = {separator!r}: class {split[0]!r} contains it")


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
        return float((value - _EPOCH).days)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}={value!r}: must be a finite number")
    return float(value)


def _name(category: Any) -> str:
    if isinstance(category, bool):
        return str(category).lower()
    return str(category)


def entry_of(column: Column) -> dict[str, Any]:
    """A column as a schema file writes it."""
    entry: dict[str, Any] = {"type": str(column.kind)}
    for each in fields(Column):
        value = getattr(column, each.name)
        unset = value is None or value is False or value == ()
        if each.name != "kind" and not unset:
            entry[each.name] = list(value) if isinstance(value, tuple) else value
    return entry


def draft(columns: Mapping[str, Column], remarks: Mapping[str, str]) -> str:
    """A schema file to check: what was guessed from the rows is marked as a guess."""
    lines = [
        "# What is publicly known about the columns. Everything marked `guess = true` was taken",
        "# from the rows: as long as the mark is there, the guarantee is not certified. Replace a",
        "# guess by what everybody knows anyway (or see that it is that), and delete the mark.",
        '# type = "ignore" leaves a column out.',
    ]
    for name, column in columns.items():
        remark = f"  # {remarks[name]}" if name in remarks else ""
        lines += ["", f"[columns.{json.dumps(name, ensure_ascii=False)}]{remark}"]
        entry = entry_of(column)
        if column.kind is Kind.DATE and column.mean is not None:  # as people write it
            entry["mean"] = str(_EPOCH + datetime.timedelta(days=round(column.mean)))
        lines += [
            f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()
        ]
    return "\n".join(lines) + "\n"
