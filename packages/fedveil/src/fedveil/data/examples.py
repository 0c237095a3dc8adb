"""Examples as columns, and how whatever arrays the user has become them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError
from fedveil.data.columns import (
    Array,
    input_column,
    label_column,
    number_column,
    take,
    truth_rows,
)


class Task(StrEnum):
    """The kind of answer that a model learns to give.

    `CLASSIFICATION`: targets are int64 in [0, classes). `REGRESSION`: targets are float32.
    `SEQUENCE`: inputs and targets are token ids in [0, classes), both `[examples, length]`.
    `MULTI_LABEL`: targets are int64, 0 or 1 for each of `classes` labels: `[examples, labels]`.
    """

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    SEQUENCE = "sequence"
    MULTI_LABEL = "multi-label"


@dataclass(frozen=True, eq=False)
class Scaling:
    """Affine map from stored inputs to what a model sees: `(inputs - shift) * factor`, float32.

    Lets images stay uint8 in memory. Both parts broadcast against one example's shape.
    """

    shift: npt.NDArray[np.float32]
    factor: npt.NDArray[np.float32]

    def __call__(self, inputs: Array) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of such a number
            scaled: npt.NDArray[np.float32] = inputs.astype(np.float32)
            scaled -= self.shift
            scaled *= self.factor
        return scaled


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs `[examples, ...]` and targets `[examples]` (sequences: `[examples, length]`, several
    labels: `[examples, labels]`).

    `usable` `[examples]` says which examples count. The others hold zeros in the place of values
    that were missing or made no sense (`data.unusable`). None means that all count. `persons`
    `[examples]` numbers the persons that examples belong to; the same number is the same person,
    at other clients too. None means that nobody has said who they are.

    >>> len(fv.Examples(np.zeros((3, 2), np.float32), np.array([0, 1, 1])).targets)
    3
    """

    inputs: Array
    targets: Array
    usable: npt.NDArray[np.bool_] | None = None
    persons: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:  # never the data themselves: they end up in logs
        return f"Examples({len(self)}, inputs {self.inputs.dtype}{list(self.inputs.shape[1:])})"

    def take(self, rows: npt.NDArray[np.int64]) -> Examples:
        persons = None if self.persons is None else self.persons[rows]
        return Examples(
            take(self.inputs, rows), take(self.targets, rows), some(self.usable, rows), persons
        )

    def only_usable(self) -> Examples:
        """Return the examples that count."""
        return self if self.usable is None else self.take(np.flatnonzero(self.usable))


def some(
    usable: npt.NDArray[np.bool_] | None, rows: npt.NDArray[np.int64] | slice
) -> npt.NDArray[np.bool_] | None:
    """Return which of these rows are usable; None if all of them are."""
    own = None if usable is None else usable[rows]
    return None if own is None or own.all() else own


def task_of(task: Task | str | None, targets: npt.ArrayLike) -> Task:
    """The task asked for; otherwise floating-point targets mean regression, and whole numbers or
    truths in several columns several labels, as in scikit-learn."""
    if task is None:
        try:
            found = np.asarray(targets)
        except ValueError:
            raise ConfigError("targets: all examples must have the same shape") from None
        if found.ndim == 2 and found.shape[1] != 1 and found.dtype.kind in "iub":
            return Task.MULTI_LABEL
        return Task.REGRESSION if found.dtype.kind == "f" else Task.CLASSIFICATION
    return one_of(Task)("task", task)


def highest_code(task: Task, examples: Examples) -> int:
    """The largest class number or token id."""
    columns = (examples.inputs, examples.targets) if task is Task.SEQUENCE else (examples.targets,)
    return max(int(column.max(initial=0)) for column in columns)


def examples_of(
    task: Task,
    inputs: npt.ArrayLike,
    targets: npt.ArrayLike,
    class_names: tuple[str, ...],
    part: str,
    classes: int | None = None,
) -> tuple[Examples, tuple[str, ...]]:
    """Columns as a federation stores them, and the classes' names as far as known.

    `classes` is the declared number of classes or labels. What cannot be read as an input or a
    target is NaN or a negative code.
    """
    stored = input_column(inputs, f"{part}inputs", tokens=task is Task.SEQUENCE)
    wanted: Array
    if task is Task.REGRESSION:
        wanted = number_column(targets, f"{part}targets")
    elif task is Task.SEQUENCE:
        tokens = input_column(targets, f"{part}targets", tokens=True)
        wanted = tokens.astype(np.int64, copy=False)
    elif task is Task.MULTI_LABEL:
        if classes is not None and not hasattr(targets, "dtype"):
            wanted = truth_rows(targets, f"{part}targets", classes)
        else:
            wanted, _ = label_column(np.asarray(targets), f"{part}targets")
        if wanted.ndim != 2 or not wanted.shape[1]:
            raise ConfigError(
                f"{part}targets: several labels need a column each, 0 or 1, got shape "
                f"{list(wanted.shape)}"
            )
    else:
        declared = classes is not None
        wanted, class_names = label_column(targets, f"{part}targets", class_names, declared)
    if wanted.ndim == 2 and wanted.shape[1] == 1 and task in (Task.CLASSIFICATION, Task.REGRESSION):
        wanted = wanted[:, 0]  # one number for each example, in a column
    if len(stored) != len(wanted):
        raise ConfigError(f"{len(stored)} {part}inputs but {len(wanted)} {part}targets")
    return Examples(stored, wanted), class_names
