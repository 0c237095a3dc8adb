"""The label column of a table: what is to be predicted, and what of that is publicly known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.declared import CLASS_NAMES, TASK
from fedveil.data.encoder import separated_truths
from fedveil.data.encoding import as_text, category_codes, kind_of, numbers_of, parts_of, scaled
from fedveil.data.federation import Scaling, Task
from fedveil.data.schema import Column, Kind

MOST_CLASSES = 20  # a numeric label with more different values is a quantity
MOST_TEXT_CLASSES = 1000
_TRUTHS = "of several labels each is 0 or 1, true or false, yes or no"
STANDARDISED = "mean and deviation of the label were taken from the data"


@dataclass(frozen=True)
class Targets:
    """Targets, the task they make, the column they are (with class names, or how numbers are
    scaled), a sentence on it, and what was taken from the labels themselves."""

    values: npt.NDArray[Any]
    task: Task
    column: Column
    names: tuple[str, ...]
    scaling: Scaling | None
    remark: str
    unprotected: tuple[str, ...]


def targets_of(
    path: Path, label: str, values: Any, task: Task | str | None, public: Column | None
) -> Targets:
    """What the label column holds; `public` is what a schema says about it."""
    kind = kind_of(values)
    if kind is Kind.IGNORE:
        raise ConfigError(
            f"{path}: label {label!r} holds {values.type}; it must be numbers or text (of lists, "
            "say which label_separator to read them by)"
        )
    if kind is Kind.DATE:  # classes, named as they are written
        values, kind = as_text(values), Kind.CATEGORY
    unprotected: tuple[str, ...] = ()
    if task is None and public is not None:
        classify = public.kind in (Kind.CATEGORY, Kind.BOOLEAN)
        why = "as the schema says"
    elif task is None:
        classify, why = _guess(values, kind)
        unprotected = (TASK,)
    elif task in (Task.CLASSIFICATION, Task.REGRESSION):
        classify, why = task == Task.CLASSIFICATION, "as asked"
    else:
        raise ConfigError(f"task={task!r}: must be classification or regression for a table")
    if classify:
        codes, names, declared = _classes(path, label, values, public)
        said = f"Label {label!r} ({why}): classification into {len(names)} classes."
        unprotected += () if declared else (CLASS_NAMES,)
        boolean = public is not None and public.kind is Kind.BOOLEAN
        named = Column(Kind.BOOLEAN) if boolean else Column(Kind.CATEGORY, categories=names)
        return Targets(codes, Task.CLASSIFICATION, named, names, None, said, unprotected)
    numbers, column = _numbers(path, label, values, kind, public)
    unprotected += () if public is not None else (STANDARDISED,)
    said = (
        f"Label {label!r} ({why}): regression of (label - {column.centre:g}) / {column.width:g}; "
        f"multiply squared errors by {column.width**2:g} for the label's own unit."
    )
    scaling = Scaling(
        np.asarray(column.centre, np.float32), np.asarray(1 / column.width, np.float32)
    )
    far = scaled(numbers, column)
    if public is not None:  # a label as far out as they go: a run that it stopped would tell of it
        most = float(np.finfo(np.float32).max)
        far = np.clip(far, -most, most)
    with np.errstate(over="ignore"):  # what no float32 holds is reported as infinity, with its row
        stored = far.astype(np.float32)
    return Targets(stored, Task.REGRESSION, column, (), scaling, said, unprotected)


def several_targets(path: Path, table: Any, labels: tuple[str, ...]) -> Targets:
    """Targets of several labels, `[rows, labels]`. Each is true or false: nothing about them is
    taken from the rows."""
    columns = []
    for label in labels:
        values = table.column(label)
        truths = numbers_of(values, Column(Kind.BOOLEAN)) if _truth_like(values) else None
        if truths is None:
            raise ConfigError(f"{path}: label {label!r} holds {values.type}; {_TRUTHS}")
        _need_all(path, label, values, ~np.isin(truths, (0, 1)), f"is no truth; {_TRUTHS}")
        columns.append(truths.astype(np.int64))
    said = f"{len(labels)} labels, each true or false: {', '.join(map(repr, labels))}."
    return Targets(
        np.stack(columns, axis=1), Task.MULTI_LABEL, Column(Kind.BOOLEAN), labels, None, said, ()
    )


def separated_targets(
    path: Path, label: str, values: Any, separator: str, public: Column | None, strict: bool
) -> Targets:
    """Targets of one column whose cells name any number of classes, `[rows, classes]`: an empty
    one names none. `strict` refuses a name that is none of the public ones; otherwise it counts for
    nothing."""
    if kind_of(values) in (Kind.IGNORE, Kind.DATE):
        raise ConfigError(
            f"{path}: label {label!r} holds {values.type}; with a separator it must be text"
        )
    names = () if public is None else public.categories
    if public is None:
        rows, parts = parts_of(values, separator)
        if len(np.unique(rows)) == len(rows):
            raise ConfigError(
                f"{path}: label {label!r}: no cell has two classes separated by {separator!r}"
            )
        parts = cells.canonical(parts)
        names = tuple(pc.unique(parts).sort().to_pylist())
        _check_several_names(path, label, names)
    truths, strange = separated_truths(values, names, separator)
    if strict:
        _need_all(path, label, values, strange, "names a class that is not in the schema")
    column = Column(Kind.CATEGORY, categories=names, separator=separator)
    said = f"Label {label!r}: any of {len(names)} classes, separated by {separator!r}."
    taken = () if public is not None else (CLASS_NAMES,)
    return Targets(truths, Task.MULTI_LABEL, column, names, None, said, taken)


def _check_several_names(path: Path, label: str, names: tuple[str, ...]) -> None:
    if len(names) > MOST_TEXT_CLASSES:
        raise ConfigError(
            f"{path}: label {label!r} has {len(names)} different classes, too many; declare those "
            "that count (classes)"
        )
    if len(names) < 2:
        raise ConfigError(
            f"{path}: label {label!r} has {len(names)} different classes with this separator; "
            "there must be two or more"
        )


def _truth_like(values: Any) -> bool:
    return kind_of(values) in (Kind.BOOLEAN, Kind.NUMBER, Kind.CATEGORY)


def _guess(values: Any, kind: Kind) -> tuple[bool, str]:
    """Whether these labels are classes, and a word on why."""
    distinct = pc.count_distinct(values).as_py()
    whole = kind is not Kind.NUMBER or pc.all(pc.equal(values, pc.round(values))).as_py()
    classify = whole and (kind is not Kind.NUMBER or distinct <= MOST_CLASSES)
    words = {Kind.CATEGORY: "text", Kind.BOOLEAN: "true or false"}
    return classify, words.get(kind, "few whole numbers" if classify else "numbers")


def _numbers(
    path: Path, label: str, values: Any, kind: Kind, public: Column | None
) -> tuple[npt.NDArray[np.float64], Column]:
    """The labels as numbers, and what standardises them."""
    if public is not None:
        if public.kind is not Kind.NUMBER:
            raise ConfigError(
                f"{path}: label {label!r} is a {public.kind} in the schema, regression needs "
                "varying numbers"
            )
        numbers = numbers_of(values, public)
        _need_all(path, label, values, np.isnan(numbers), "is not a number")
        return numbers, public
    if kind is not Kind.NUMBER:
        raise ConfigError(f"{path}: label {label!r} holds {values.type}, regression needs numbers")
    numbers = numbers_of(values, Column(Kind.NUMBER))
    if pc.count_distinct(values).as_py() < 2:
        raise ConfigError(f"{path}: label {label!r} is the same in every row: nothing to predict")
    return numbers, Column(Kind.NUMBER, mean=float(numbers.mean()), std=float(numbers.std()))


def _classes(
    path: Path, label: str, values: Any, public: Column | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], bool]:
    """Class numbers, the classes' names, and whether a schema declared them."""
    if public is not None and public.kind is Kind.BOOLEAN:
        truths = numbers_of(values, public)
        _need_all(path, label, values, ~np.isin(truths, (0, 1)), "is not in the schema")
        return truths.astype(np.int64), ("false", "true"), True
    if public is not None and public.kind is Kind.CATEGORY:
        codes = category_codes(values, public.categories)
        _need_all(path, label, values, codes < 0, "is not in the schema")
        return codes, public.categories, True
    names = as_text(pc.unique(values).sort()).to_pylist()
    if len(names) > max(MOST_CLASSES, min(MOST_TEXT_CLASSES, len(values) // 2)):
        raise ConfigError(
            f"{path}: label {label!r} has {len(names)} different values, too many for classes; "
            "use task='regression' or another label"
        )
    if len(names) < 2:
        raise ConfigError(
            f"{path}: label {label!r} has only one value, {names[0]!r}: nothing to predict (NA, "
            "None, null and the like count as missing)"
        )
    return category_codes(values, names), tuple(names), False


def _need_all(path: Path, label: str, values: Any, wrong: npt.NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        strange = as_text(values)[row].as_py()
        raise ConfigError(f"{path}: label {strange!r} of row {row + 1} {what}")
