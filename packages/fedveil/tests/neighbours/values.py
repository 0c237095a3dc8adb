"""Clients' data: ordinary numbers, and those that break floating-point programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Draw = np.random.Generator

# Overflow, underflow, signs of zero; an error of 2.5e-23 times an input of 1.8e19 is a gradient
# whose square exists in single precision although the square of the error does not.
NASTY = (3e38, -3e38, 1e38, 1.8e19, -1.8e19, 1e10, 1e-38, -1e-38, 1e-42, 2.5e-23, 0.0, -0.0, 1e4)
# What people write into a column of numbers.
CELLS = ("", "NA", "abc", "1,234", "1,5", "true", "2020-01-01", " 5 ", "1e300", "-0", "007", "1_0")
COLUMNS = 50  # that odd text may stand in, modulo a table's own; in the last, the label is missing
SIZES = (*(1, 1, 2, 3, 4, 5, 6, 7, 8, 9) * 4, 17, 33)
BATCHES = (3, 4, 4, 5, 6, 7, 8, 8, 12)  # where single records count


@dataclass(frozen=True, eq=False)
class Client:
    """One owner and its records. `places` order the rows of all clients in a file."""

    name: str
    inputs: npt.NDArray[np.float32]  # [records, ...]
    targets: npt.NDArray[np.generic]  # [records], or [records, labels]
    places: npt.NDArray[np.float64]
    cells: tuple[tuple[float, tuple[int, str]], ...] = ()  # by place: a column, and odd text in it
    persons: npt.NDArray[np.int64] | None = None  # [records], rising: whose they are

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Kind:
    """What records look like. `finite` where the way in refuses NaN and infinity."""

    task: str  # classification, regression, sequence or multi-label
    shape: tuple[int, ...]
    classes: int
    finite: bool
    tame: bool = False  # no nasty numbers at all: ordinary training is tested too
    by_record: bool = False  # one record is protected: clients have several


def client(
    draw: Draw, kind: Kind, name: str, size: int | None = None, most: int | None = None
) -> Client:
    """A client with records of one mood: all ordinary, all nasty, or a few nasty ones."""
    usual = BATCHES if kind.by_record else SIZES
    size = int(draw.choice(usual)) if size is None else size
    size = size if most is None else min(size, most)
    inputs, targets = records(draw, kind, size)
    if draw.random() < 0.25 and kind.task == "classification":
        targets[:] = targets[0]
    places = draw.random(size)
    odd = () if kind.tame or draw.random() < 0.5 else (_odd_cell(draw, places),)
    return Client(name, inputs, targets, places, odd)


def _odd_cell(draw: Draw, places: npt.NDArray[np.float64]) -> tuple[float, tuple[int, str]]:
    return float(draw.choice(places)), (int(draw.integers(COLUMNS)), str(draw.choice(CELLS)))


def records(
    draw: Draw, kind: Kind, size: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.generic]]:
    if kind.task == "sequence":
        tokens = draw.integers(0, kind.classes, (2, size, *kind.shape))
        return tokens[0], tokens[1]  # type: ignore[return-value]
    inputs = draw.standard_normal((size, *kind.shape)).astype(np.float32)
    if kind.task == "regression":
        targets: npt.NDArray[np.generic] = draw.standard_normal(size).astype(np.float32)
    elif kind.task == "multi-label":
        targets = draw.integers(0, 2, (size, kind.classes))
    else:
        targets = draw.integers(0, kind.classes, size)
    if kind.tame:
        return inputs, targets
    mood = draw.random()
    rows = np.flatnonzero(draw.random(size) < 0.3) if mood < 0.3 else np.arange(size)
    if mood < 0.5:
        for row in rows:
            inputs[row], number = _nasty(draw, kind)
            if kind.task == "regression":
                targets[row] = number
    return inputs, targets


def _nasty(draw: Draw, kind: Kind) -> tuple[npt.NDArray[np.float32], np.float32]:
    """One record's inputs, and a target for regression."""
    inputs = np.zeros(kind.shape, dtype=np.float32)
    way = draw.random()
    if way < (0.3 if kind.by_record and kind.task == "regression" else 0.1):
        inputs.flat[draw.integers(inputs.size)] = 1.8e19
        return inputs, np.float32(draw.choice((2.5e-23, -2.5e-23)))
    if way < 0.4:  # one nasty number among ordinary ones
        inputs[...] = draw.standard_normal(kind.shape)
        inputs.flat[draw.integers(inputs.size)] = draw.choice(NASTY)
    elif way < 0.6:  # one among zeros
        inputs.flat[draw.integers(inputs.size)] = draw.choice(NASTY)
    elif way < 0.8 or kind.finite:
        inputs[...] = draw.choice(NASTY, kind.shape)
    else:
        inputs[...] = draw.choice((np.nan, np.inf, -np.inf, 1.0), kind.shape)
    target = draw.choice(NASTY) if draw.random() < 0.5 else draw.standard_normal()
    return inputs, np.float32(target)


def with_persons(draw: Draw, one: Client) -> Client:
    """The same client, its records dealt to persons with one or several each."""
    starts = np.append(True, draw.random(len(one) - 1) < 0.6)
    return replace(one, persons=np.cumsum(starts) - 1)


@dataclass(frozen=True, eq=False)
class Person:
    """All records of one person, that can stand in the place of another's."""

    inputs: npt.NDArray[np.float32]  # [records, ...]
    targets: npt.NDArray[np.generic]
    places: npt.NDArray[np.float64]
    zeroed: bool = False


def other_person(draw: Draw, kind: Kind, one: Client, number: int, zeroed: bool) -> Person:
    """Other records for this person, perhaps more or fewer; or such as count as zero."""
    own = np.flatnonzero(one.persons == number)
    if zeroed:
        return Person(one.inputs[own] * np.nan, one.targets[own], one.places[own], True)
    inputs, targets = records(draw, kind, int(draw.choice((1, 2, 3, 5))))
    return Person(inputs, targets, draw.random(len(targets)))


def with_person(one: Client, number: int, person: Person) -> Client:
    """The same client with other records of this person."""
    own = np.flatnonzero(one.persons == number)
    sides = slice(None, own[0]), slice(own[-1] + 1, None)

    def joined(column: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([column[sides[0]], new, column[sides[1]]])

    return replace(
        one,
        inputs=joined(one.inputs, person.inputs),
        targets=joined(one.targets, person.targets),
        places=joined(one.places, person.places),
        cells=tuple(cell for cell in one.cells if cell[0] not in one.places[own]),
        persons=joined(one.persons, np.full(len(person.targets), number)),
    )


@dataclass(frozen=True, eq=False)
class Record:
    """One record that can stand in the place of another."""

    inputs: npt.NDArray[np.float32]
    target: np.generic
    cell: tuple[float, tuple[int, str]] | None  # odd text in one of its columns
    zeroed: bool = False


def other_record(draw: Draw, kind: Kind, one: Client, row: int, zeroed: bool) -> Record:
    """Another record for this row, or one whose gradient is not finite, which counts as zero."""
    inputs, target = one.inputs[row].copy(), one.targets[row]
    if zeroed:
        inputs[...] = np.nan
    elif draw.random() < 0.7 and kind.task != "sequence" and not kind.tame:
        inputs, number = _nasty(draw, kind)
        if kind.task == "regression":
            target = number
    else:
        fresh = records(draw, kind, 1)
        inputs, target = fresh[0][0], fresh[1][0]
    odd = not kind.tame and draw.random() < 0.5
    cell = _odd_cell(draw, one.places[row : row + 1]) if odd else None
    return Record(inputs, target, cell, zeroed)


def with_record(one: Client, row: int, record: Record) -> Client:
    """The same client with another record in this row."""
    inputs, targets = one.inputs.copy(), one.targets.copy()
    inputs[row], targets[row] = record.inputs, record.target
    odd = tuple(cell for cell in one.cells if cell[0] != one.places[row])
    if record.cell is not None:
        odd = (*odd, record.cell)
    return replace(one, inputs=inputs, targets=targets, cells=odd)
