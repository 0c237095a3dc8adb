"""The label column of a table: what is to be predicted, and what of that is publicly known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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
    """Read the label column; `public` is what a schema says about it.

    A label that is missing, or does not fit what is known about it, has the class number -1 or the
    number NaN: its row is unusable.
    """
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if public is None and values.null_count == len(values):
        raise ConfigError(f"{path}: no row has a label (column {label!r})")
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
    most = float(np.finfo(np.float32).max)
    stored = np.clip(scaled(numbers, column), -most, most).astype(np.float32)
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
        columns.append(_truth_codes(truths))
    said = f"{len(labels)} labels, each true or false: {', '.join(map(repr, labels))}."
    return Targets(
        np.stack(columns, axis=1), Task.MULTI_LABEL, Column(Kind.BOOLEAN), labels, None, said, ()
    )


def separated_targets(
    path: Path, label: str, values: Any, separator: str, public: Column | None
) -> Targets:
    """Targets of one column whose cells name any number of classes, `[rows, classes]`: an empty
    one names none. A name that is none of the public ones counts for nothing."""
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
    truths, _ = separated_truths(values, names, separator)
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
        return numbers_of(values, public), public
    if kind is not Kind.NUMBER:
        raise ConfigError(f"{path}: label {label!r} holds {values.type}, regression needs numbers")
    numbers = numbers_of(values, Column(Kind.NUMBER))
    if pc.count_distinct(values).as_py() < 2:
        raise ConfigError(f"{path}: label {label!r} is the same in every row: nothing to predict")
    mean, std = float(np.nanmean(numbers)), float(np.nanstd(numbers))
    return numbers, Column(Kind.NUMBER, mean=mean, std=std)


def _classes(
    path: Path, label: str, values: Any, public: Column | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], bool]:
    """Class numbers, the classes' names, and whether a schema declared them."""
    if public is not None and public.kind is Kind.BOOLEAN:
        return _truth_codes(numbers_of(values, public)), ("false", "true"), True
    if public is not None and public.kind is Kind.CATEGORY:
        return category_codes(values, public.categories), public.categories, True
    names = as_text(pc.unique(values.drop_null()).sort()).to_pylist()
    if len(names) > max(MOST_CLASSES, min(MOST_TEXT_CLASSES, len(values) // 2)):
        raise ConfigError(
            f"{path}: label {label!r} has {len(names)} different values, too many for classes; "
            "use task='regression' or another label"
        )
    if len(names) < 2:
        raise ConfigError(
            f"{path}: label {label!r} has fewer than two classes: nothing to predict (NA, None, "
            "null and the like count as missing)"
        )
    return category_codes(values, names), tuple(names), False


def _truth_codes(truths: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """1 for true, 0 for false, -1 for what is neither."""
    return np.where(np.isin(truths, (0, 1)), truths, -1).astype(np.int64)
