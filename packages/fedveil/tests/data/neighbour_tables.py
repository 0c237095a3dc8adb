"""Random tables and their neighbours: one client more, fewer or changed, one record replaced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedveil.data.federation import Federation

SPAN = 2**22  # row numbers up to here are exact as float32, scaled by it
COLUMNS = ("who", "number", "amount", "since", "member", "kind", "wish")

# What everybody knows; `number` tells the rows apart, so that every row can be followed.
SCHEMA = {
    "columns": {
        "number": {"type": "number", "min": -SPAN, "max": SPAN},
        "amount": {"type": "number", "min": 0, "max": 4096, "missing": True},
        "since": {"type": "date", "min": "2000-01-01", "max": "2030-01-01"},
        "member": {"type": "boolean"},
        "kind": {"type": "category", "categories": ["1", "2", "3"]},
        "wish": {"type": "category", "categories": ["a", "b", "c"]},
    }
}
LABEL, CLIENT = "wish", "who"

# Each would make a reader that looks at whole columns read other people's cells differently.
NASTY = {
    "amount": ["x", "1,5", "1.234,5", "-", "1e999", "-1e999", "inf", "true", "2020-01-01", ""],
    "since": ["x", "7", "2020-13-01", "1999", "2020-01-01T10:30", "2020-05", ""],
    "member": ["x", "7", "yes", "0.5", "1", ""],
    "kind": ["1.5", "x", "1e300", "01", "true", ""],
}


@dataclass(frozen=True)
class Row:
    who: str
    cells: tuple[str, ...]  # the other columns

    @property
    def line(self) -> str:
        return ",".join(f'"{cell}"' for cell in (self.who, *self.cells))


def some_rows(who: str, count: int, first: int, rng: np.random.Generator, nasty: bool) -> list[Row]:
    """Rows numbered from `first` on; nasty ones have cells of the wrong kind."""
    rows = []
    for number in range(first, first + count):
        cells = {
            "number": str(number),
            "amount": rng.choice(["12", "1,234", "0.5", "+7", "3.", ""]),
            "since": rng.choice(["2020-01-01", "2010-06-30", "2020-02"]),
            "member": rng.choice(["true", "False"]),
            "kind": rng.choice(["1", "2.0", "3"]),
            "wish": rng.choice(["a", "b", "c"]),
        }
        if nasty:
            cells |= {name: str(rng.choice(choices)) for name, choices in NASTY.items()}
        rows.append(Row(who, tuple(str(cell) for cell in cells.values())))
    return rows


def text_of(rows: list[Row]) -> str:
    return "\n".join([",".join(COLUMNS), *(row.line for row in rows)]) + "\n"


def shuffled(rows: list[Row], rng: np.random.Generator) -> list[Row]:
    return [rows[i] for i in rng.permutation(len(rows))]


def training_rows(federation: Federation) -> dict[str, tuple[bytes, bytes]]:
    """Every client's training rows, bit for bit and in their order, by its name."""
    train, offsets, owners = federation.train, federation.offsets, federation.owners
    assert owners is not None
    return {
        str(owner): (
            np.ascontiguousarray(train.inputs[offsets[i] : offsets[i + 1]]).tobytes(),
            np.ascontiguousarray(train.targets[offsets[i] : offsets[i + 1]]).tobytes(),
        )
        for i, owner in enumerate(owners)
    }


def held_out_rows(federation: Federation, whose: dict[int, str]) -> dict[str, list[bytes]]:
    """Every client's rows of the test and validation parts, in their order, by its name."""
    found: dict[str, list[bytes]] = {}
    for part in (federation.test, federation.validation):
        if part is None:
            continue
        for inputs, target in zip(part.inputs, part.targets, strict=True):
            number = round(float(inputs.reshape(-1)[0]) * SPAN)
            where = b"test" if part is federation.test else b"validation"
            found.setdefault(whose[number], []).append(where + inputs.tobytes() + target.tobytes())
    return found


def numbered(rows: list[Row]) -> dict[int, str]:
    """Whose each row number is."""
    return {int(row.cells[0]): row.who for row in rows}
