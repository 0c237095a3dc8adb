"""Owners and rows in plain Python values, which each door turns into what it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Generator = np.random.Generator

# What people write into a cell, and what breaks readers that look at a whole column.
TEXTS = (
    *("", " ", "NA", "null", "abc", "1,234", "1,5", "true", "2020-01-01", " 5 ", "1e300", "1e400"),
    *(
        "-0",
        "007",
        "1_0",
        "inf",
        "-Infinity",
        "nan",
        "0x10",
        "1e-400",
        "１",
        "\u00a03",
        '"',
        "a\nb",
    ),
    *("k0 ", "K0", "0.0", "1", "x" * 300, "12:30", "€5", "5%", "None", "False"),
)
NUMBERS = (math.nan, math.inf, -math.inf, 1e300, -3.5e38, 3e38, 1e-320, -0.0, 2.0**53 + 1, 65504.5)
# Names that look like numbers, dates or each other.
NAMES = (
    "1",
    "01",
    "1.5",
    "1e3",
    "-0",
    "+1",
    "true",
    "2020-01-01",
    "é",
    "e\u0301",
    "c 1",
    "C 1",
    "１",
)
# Labels that no class has, or no number is.
STRANGE = (None, "", "k9", "K0", " k0", "1", "1.5", -1, 7, 2**31, 2**63, 0.5, math.nan, math.inf)


@dataclass(frozen=True)
class Row:
    """One record. `label` is a class number, a number to predict, or something strange."""

    place: float  # orders the rows of all owners
    owner: str
    inputs: tuple[Any, ...]  # numbers, or texts in their places
    word: str | None
    label: Any
    cells: int = 0  # in a file: so many more than the header, or fewer


@dataclass(frozen=True)
class Sheet:
    """Public settings of a reading, which both worlds share."""

    seed: int
    door: str
    columns: int
    classes: int  # 0: numbers are predicted
    by_record: bool  # whom a guarantee would be about
    dealing: dict[str, Any] = field(default_factory=dict)  # partition, hold-out
    types: str = "float64"  # of what clients hold, at doors that take anything
    objects: bool = False  # columns of Python objects
    declared: bool = True  # classes or task are said, not taken from the rows
    test: str = ""  # "rows": the training rows themselves are given as test examples
    public: bool = False  # the rows are declared to be public

    @property
    def claimable(self) -> bool:
        """Whether anything may be certified: nothing is taken from rows, no owner is left out."""
        sized = self.door != "pictures" or self.types != "float64"  # a size for all is given
        return (
            self.declared
            and sized
            and not {"at_least", "clients", "examples_per_client"} & {*self.dealing}
        )

    @property
    def artificial(self) -> bool:
        """Rows are dealt to shares, and a client is a share."""
        return "iid" in self.dealing


def draw_sheet(seed: int, doors: tuple[str, ...]) -> tuple[Sheet, tuple[Row, ...]]:
    draw = np.random.default_rng([seed, 11])
    door = str(draw.choice(doors))
    sheet = Sheet(
        seed,
        door,
        int(draw.integers(1, 4)),
        int(draw.choice((0, 2, 3))),
        bool(draw.random() < 0.35),
        _dealing(draw),
        str(draw.choice(("float64", "float32", "int64", "uint8"))),
        bool(draw.random() < 0.4),
        bool(draw.random() < 0.9),
        "rows" if draw.random() < 0.2 and door in ("arrays", "stored") else "",
        bool(draw.random() < 0.05),
    )
    owners = [f"c{number:02d}" for number in range(int(draw.integers(2, 6)))]
    way = draw.random()
    if way < 0.3:
        owners = [str(number) for number in range(len(owners))]
    elif way < 0.5:
        owners = [str(name) for name in draw.permutation(NAMES)[: len(owners)]]
    rows = [row for owner in owners for row in _rows(draw, sheet, owner, int(draw.integers(1, 6)))]
    if sheet.classes:  # every class is there, or nothing could be taken from the rows
        rows += [
            replace(row, label=number % sheet.classes)
            for number, row in enumerate(_rows(draw, sheet, owners[0], sheet.classes))
        ]
    if draw.random() < 0.1:  # a column that nobody has filled in
        rows = [replace(row, inputs=(None, *row.inputs[1:])) for row in rows]
    return sheet, tuple(rows)


def _dealing(draw: Generator) -> dict[str, Any]:
    dealing: dict[str, Any] = {"seed": int(draw.integers(3))}
    if draw.random() < 0.7:
        dealing["test_fraction"] = float(draw.choice((0.0, 0.0, 0.2, 0.5)))
        dealing["holdout"] = str(draw.choice(("within", "within", "latest", "pooled", "clients")))
    way = draw.random()
    if way < 0.25:
        dealing["iid"] = int(draw.integers(2, 4))
        dealing.pop("holdout", None)
    elif way < 0.4:
        dealing["cap"] = int(draw.integers(1, 5))
    elif way < 0.5:
        dealing["examples_per_client"] = int(draw.integers(1, 3))
    elif way < 0.55:
        dealing["at_least"] = int(draw.integers(1, 4))
    elif way < 0.6:
        dealing["clients"] = int(draw.integers(1, 3))
    return dealing


def _rows(draw: Generator, sheet: Sheet, owner: str, count: int) -> list[Row]:
    """Ordinary ones."""
    return [_row(draw, sheet, owner) for _ in range(count)]


def _row(draw: Generator, sheet: Sheet, owner: str) -> Row:
    inputs = tuple(round(float(x), 3) for x in draw.standard_normal(sheet.columns) * 2)
    if sheet.types in ("int64", "uint8"):
        inputs = tuple(float(abs(round(x))) for x in inputs)
    label = int(draw.integers(sheet.classes)) if sheet.classes else float(draw.integers(-3, 4)) / 2
    return Row(float(draw.random()), owner, inputs, str(draw.choice(("a", "b", "z"))), label)


@dataclass(frozen=True)
class Place:
    """A client or one row, and what can stand there; the first value is what the sheet has.

    A value is some rows, and the type in which they are held at doors that take anything.
    """

    owner: str
    values: tuple[tuple[tuple[Row, ...], str | None], ...]


@dataclass(frozen=True)
class Filled:
    """The rows of one world, and who holds them in another type than the sheet says."""

    rows: tuple[Row, ...]
    types: dict[str, str]


def draw_places(sheet: Sheet, rows: tuple[Row, ...], counts: tuple[int, ...]) -> list[Place]:
    """Units of the sheet, each with so many values."""
    draw = np.random.default_rng([sheet.seed, 12])
    single = sheet.by_record or sheet.artificial
    units: list[tuple[Row, ...]] = [(row,) for row in rows]
    if not single:
        owners = sorted({row.owner for row in rows})
        units = [tuple(row for row in rows if row.owner == owner) for owner in owners]
    chosen = draw.permutation(len(units))[: len(counts)]
    return [
        Place(
            units[unit][0].owner,
            (
                (units[unit], None),
                *(
                    ((_changed(draw, sheet, units[unit][0]),), None)
                    if single
                    else _client(draw, sheet, units[unit])
                    for _ in range(count - 1)
                ),
            ),
        )
        for unit, count in zip(chosen, counts, strict=False)
    ]


def filled(rows: tuple[Row, ...], places: list[Place], pick: tuple[int, ...]) -> Filled:
    """The sheet with the picked value at each place."""
    gone = {id(row) for place in places for row in place.values[0][0]}
    picked = [
        (place.owner, *place.values[value]) for place, value in zip(places, pick, strict=True)
    ]
    return Filled(
        (*(row for _, own, _ in picked for row in own), *(r for r in rows if id(r) not in gone)),
        {owner: types for owner, _, types in picked if types},
    )


def _client(
    draw: Generator, sheet: Sheet, rows: tuple[Row, ...]
) -> tuple[tuple[Row, ...], str | None]:
    own, owner = list(rows), rows[0].owner
    way, types = draw.random(), None
    if way < 0.35:  # one of its rows
        place = int(draw.integers(len(own)))
        own[place] = _changed(draw, sheet, own[place])
    elif way < 0.55:  # nothing that can be used
        empty = str(draw.choice(("label", "label", "inputs", "all", "strange")))
        own = [_emptied(draw, row, empty) for row in own]
    elif way < 0.75:
        own = [_changed(draw, sheet, row) for row in _rows(draw, sheet, owner, len(own))]
    else:
        own = _rows(draw, sheet, owner, int(draw.integers(1, 9)))
        types = str(draw.choice(("float32", "float16", "int64", "bool", "object", "str", "uint8")))
    return tuple(own), types


def _emptied(draw: Generator, row: Row, what: str) -> Row:
    if what == "strange":
        return replace(row, label=_any(draw, STRANGE))
    inputs = row.inputs if what == "label" else (None,) * len(row.inputs)
    label = row.label if what == "inputs" else None
    return replace(row, inputs=inputs, word=None if what != "label" else row.word, label=label)


def _changed(draw: Generator, sheet: Sheet, row: Row) -> Row:
    """The row with something strange in one place, or an ordinary one."""
    way = draw.random()
    if way < 0.3:
        return replace(row, label=_any(draw, STRANGE))
    if way < 0.4 and sheet.door in ("csv", "files"):
        return replace(row, cells=_any(draw, (-3, -1, -1, 1, 2)))
    if way < 0.8:
        place = int(draw.integers(sheet.columns))
        value = _any(draw, TEXTS) if draw.random() < 0.6 else _any(draw, (*NUMBERS, None))
        return replace(row, inputs=(*row.inputs[:place], value, *row.inputs[place + 1 :]))
    if way < 0.9:
        return replace(row, word=_any(draw, (*TEXTS, None)))
    return replace(_row(draw, sheet, row.owner), place=row.place)


def _any(draw: Generator, values: tuple[Any, ...]) -> Any:
    """One of them as it is: NumPy would make one type of all."""
    return values[int(draw.integers(len(values)))]
