"""What two federations may differ in: the changed unit's own examples, and nothing else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedveil import Federation
from fedveil.data.federation import HELD_OUT_NOTE
from fedveil.planning.limits import taken_from_records

from ..checks import Violation
from ..worlds import scratch
from .rows import Sheet, draw_places, draw_sheet, filled
from .sources import DOORS, Opened, open_rows

# All that a plan, a guarantee, a model file or a terminal shows of a federation.
_PUBLIC = (
    *("name", "task", "classes", "class_names", "features", "notes", "unprotected", "clients"),
    *("input_shape", "elsewhere"),
)


def examine_sheet(seed: int, counts: tuple[int, ...]) -> Iterator[tuple[str, str, list[Violation]]]:
    """Read the sheet of this number in all its worlds: kind, which, and what is wrong.

    So many values are drawn for each of three units, and every combination is a world. Each is
    compared with those that have the first value at one place. All that is compared is equality,
    so pairs of other values would say nothing new.
    """
    sheet, rows = draw_sheet(seed, tuple(DOORS))
    places = draw_places(sheet, rows, counts)
    folder = Path(tempfile.mkdtemp(prefix="neighbours-", dir=scratch()))
    worlds: dict[tuple[int, ...], Opened] = {}
    try:
        for pick in product(*(range(len(place.values)) for place in places)):
            for path in folder.iterdir():  # every world finds the same empty folder
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            worlds[pick] = open_rows(sheet, filled(rows, places, pick), folder)
            for number, place in enumerate(places):
                if pick[number]:
                    first = worlds[(*pick[:number], 0, *pick[number + 1 :])]
                    laws = [*differences(sheet, first, worlds[pick], place.owner)]
                    which = f"{sheet.door}, {pick} at {number}: {place.owner}"
                    yield _kind(sheet, first, worlds[pick]), which, laws
    finally:
        shutil.rmtree(folder)


def _kind(sheet: Sheet, *worlds: Opened) -> str:
    """How a pair is counted: only where something is claimed can it be wrong."""
    if any(opened.end for opened in worlds):
        return "read, refused"
    claimed = any(claims(opened.federation, sheet) for opened in worlds)
    return f"read {sheet.door}" if claimed else "read, not claimed"


def differences(sheet: Sheet, one: Opened, two: Opened, owner: str) -> Iterator[Violation]:
    if one.end or two.end:
        if one.end != two.end:
            ended = [opened.end or "reads" for opened in (one, two)]
            if all(
                sheet.claimable if opened.end else claims(opened.federation, sheet)
                for opened in (one, two)
            ):
                yield Violation("r", f"one world {ended[0]!r}, the other {ended[1]!r}")
        return
    first, second = one.federation, two.federation
    claimed = [claims(first, sheet), claims(second, sheet)]
    if not any(claimed):
        return
    if claimed[0] != claimed[1]:
        said = second.unprotected if claimed[0] else first.unprotected
        yield Violation("c", f"only one world is certified; the other says {said}")
    if one.warnings != two.warnings:
        yield Violation("f", f"warnings differ: {one.warnings} and {two.warnings}")
    yield from _public(first, second)
    yield from _others(sheet, first, second, owner)


def claims(federation: Federation, sheet: Sheet) -> bool:
    """Whether a plan with this federation would be certified, of rows that are not public."""
    if federation.public:  # which every guarantee says
        return False
    return not taken_from_records(federation)


def _public(one: Federation, two: Federation) -> Iterator[Violation]:
    for what in _PUBLIC:
        first, second = getattr(one, what), getattr(two, what)
        if first != second:
            yield Violation("c", f"{what} differs: {first} and {second}")
    for what in ("scaling", "target_scaling", "encoder"):
        first, second = (_described(getattr(federation, what)) for federation in (one, two))
        if first != second:
            yield Violation("c", f"{what} differs: {first} and {second}")
    if HELD_OUT_NOTE not in one.notes:  # then they are taken to be public
        for what in ("test", "validation"):
            first, second = (_columns(getattr(federation, what)) for federation in (one, two))
            if first != second:
                yield Violation("c", f"{what} examples, said to be public, differ")
    for what in ("inputs", "targets"):
        first, second = (getattr(federation.train, what).dtype for federation in (one, two))
        if first != second:
            yield Violation("c", f"type of the {what} differs: {first} and {second}")


def _columns(examples: Any) -> Any:
    """All columns of some examples: inputs, targets, and whether they can be used."""
    if examples is None:
        return None
    columns = (getattr(examples, name, None) for name in ("inputs", "targets", "usable"))
    return tuple(None if column is None else column.tobytes() for column in columns)


def _described(part: Any) -> Any:
    if part is None:
        return None
    if hasattr(part, "to_dict"):
        return part.to_dict()
    return tuple(np.asarray(value).tobytes() for value in (part.shift, part.factor))


def parts_of(federation: Federation) -> dict[str, tuple[Any, ...]]:
    """Every client's examples by its name, or by its number where none has a name."""
    names = range(federation.clients) if federation.owners is None else federation.owners
    ends = zip(federation.offsets, federation.offsets[1:], strict=False)
    train = federation.train
    usable = getattr(train, "usable", None)
    usable = np.ones(len(train), np.bool_) if usable is None else usable
    return {
        str(name): (train.inputs[begin:end], train.targets[begin:end], usable[begin:end])
        for name, (begin, end) in zip(names, ends, strict=True)
    }


def _others(sheet: Sheet, one: Federation, two: Federation, owner: str) -> Iterator[Violation]:
    first, second = parts_of(one), parts_of(two)
    if first.keys() != second.keys():
        gone = sorted(first.keys() ^ second.keys())
        yield Violation("c", f"clients come and go with values: {', '.join(gone)}")
    moved = [
        name
        for name in first.keys() & second.keys()
        if any(
            ours.dtype != theirs.dtype or ours.tobytes() != theirs.tobytes()
            for ours, theirs in zip(first[name], second[name], strict=True)
        )
    ]
    if sheet.artificial:  # a share has changed: whose, the dealing says
        if len(moved) > 1:
            yield Violation("a", f"one row changes the examples of {len(moved)} shares")
        owner = moved[0] if moved else owner
    elif strangers := [name for name in moved if name != owner]:
        yield Violation("a", f"examples of {', '.join(sorted(strangers))} differ")
    if sheet.by_record and owner in first and owner in second:
        yield from _one_row(first[owner], second[owner])


def _one_row(one: tuple[Any, ...], two: tuple[Any, ...]) -> Iterator[Violation]:
    if len(one[1]) != len(two[1]):
        yield Violation("a", f"a client with {len(one[1])} examples has {len(two[1])}")
        return
    rows = [
        place
        for place in range(len(one[1]))
        if any(a[place].tobytes() != b[place].tobytes() for a, b in zip(one, two, strict=True))
    ]
    if len(rows) > 1:
        yield Violation("a", f"one row changes {len(rows)} examples")
