"""Public knowledge about the columns of a table, so that nothing has to be taken from the data.

A schema is a TOML or JSON file:

    [columns.age]
    type = "number"        # number, date, boolean, category, text or ignore
    min = 17               # either min and max (values are clipped), or mean and std
    max = 90
    cuts = [30, 45, 60]    # optional: four bins with an input each, instead of one scaled number
    missing = true         # optional: one more input that says "no value here"
    decimal = ","          # optional: "1,234" is a little more than one, not a thousand and more
    # of a date: order = "month/day" reads 12/31/2015, "day/month" 31/12/2015

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
from fedveil.data.cells import DAY_FIRST, MONTH_FIRST

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
    order: str | None = None  # of dates such as 12/31/2015: month/day or day/month
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


_RANGE = ("min", "max", "mean", "std")
_TYPES = {"encoder": str, "digest": str, "length": int, "buckets": int, "separator": str}


def _column(entry: Any, where: str) -> Column:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: must be a table")
    known = ["type", *(field.name for field in fields(Column) if field.name != "kind")]
    for key, value in entry.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
        if type(value) is not _TYPES.get(key, type(value)):
            raise ConfigError(f"{where}: {key}={value!r}; must be of type {_TYPES[key].__name__}")
        if key in ("categories", "cuts") and not isinstance(value, list):
            raise ConfigError(f"{where}: {key}={value!r}; must be a list")
    if entry.get("type") not in list(Kind):
        raise ConfigError(f"{where}: type={entry.get('type')!r}; must be one of {', '.join(Kind)}")
    given = {key: value for key, value in entry.items() if key != "type"}
    given |= {key: _number(given[key], f"{where}: {key}") for key in _RANGE if key in given}
    given |= {key: bool(given.get(key, False)) for key in ("missing", "guess")}
    given["cuts"] = tuple(_number(cut, f"{where}: cuts") for cut in given.get("cuts", ()))
    names = (
        str(one).lower() if isinstance(one, bool) else str(one)
        for one in given.get("categories", ())
    )
    column = Column(Kind(entry["type"]), **{**given, "categories": tuple(names)})
    if wrong := _wrong(column):
        raise ConfigError(f"{where}: {wrong}")
    return column


def _wrong(column: Column) -> str:
    """Return what makes no sense about a column, or nothing."""
    kind, names, buckets = column.kind, column.categories, column.buckets
    ordered, category = kind in (Kind.NUMBER, Kind.DATE), kind is Kind.CATEGORY
    told = {key for key in _RANGE if getattr(column, key) is not None}
    of_text = column.encoder or column.digest or column.length
    faults = (
        (column.decimal not in (None, ".", ","), "decimal must be a point or a comma"),
        (
            column.order not in ((None, MONTH_FIRST, DAY_FIRST) if kind is Kind.DATE else (None,)),
            f"order is for type date, {MONTH_FIRST} or {DAY_FIRST}",
        ),
        (len(set(names)) < len(names), "categories must be a list without repetitions"),
        (
            buckets is not None and not 2 <= buckets <= MOST_BUCKETS,
            f"buckets must be a whole number from 2 to {MOST_BUCKETS}",
        ),
        (
            category and bool(names) == (buckets is not None),
            "type category needs a list of categories, or buckets",
        ),
        (
            column.separator is not None and not (category and names),
            "separator is for a label with a list of categories",
        ),
        (
            kind is not Kind.TEXT and of_text is not None,
            "encoder, digest and length are for type text, and fedveil sets them",
        ),
        (
            kind is Kind.TEXT and column.missing,
            "missing is not for type text: no text is a vector of zeros",
        ),
        (bool(column.cuts) and not ordered, f"cuts are for numbers and dates, not for type {kind}"),
        (
            any(later <= cut for cut, later in pairwise(column.cuts)),
            "cuts must increase from one to the next",
        ),
        (
            ordered and told not in ({"min", "max"}, {"mean", "std"}),  # nothing is ignored
            "needs min and max, or mean and std",
        ),
        (ordered and not column.width > 0, "min must be below max, and std positive"),
    )
    if column.separator is not None:
        check_separator("separator", column.separator, names)
    return next((said for fault, said in faults if fault), "")


def check_separator(where: str, separator: str, names: Iterable[str] = ()) -> None:
    """Refuse what separates nothing, or the parts of a name."""
    if not separator:
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
    if isinstance(value, datetime.date):
        return float((datetime.date(value.year, value.month, value.day) - _EPOCH).days)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}={value!r}: must be a finite number")
    return float(value)


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
