"""Turning whatever arrays the user has into the columns of a federation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError

Array = npt.NDArray[np.generic]


def input_column(inputs: npt.ArrayLike, name: str, tokens: bool = False) -> Array:
    """Numbers as stored: uint8, float16 and float32 stay, wider floats and integers become float32.

    Token ids (`tokens=True`) stay integers. Never copies a column that can stay.
    """
    column = _array(inputs, name)
    if tokens:
        if not np.issubdtype(column.dtype, np.integer):
            raise ConfigError(f"{name}: sequences need integer token ids, got {column.dtype}")
        return column
    if column.dtype in (np.uint8, np.float16, np.float32):
        return column
    if column.dtype.kind in "fiub":
        if not hasattr(inputs, "dtype"):  # of a list: rounded once more or not, but all alike
            column = column.astype(np.float64)
        with np.errstate(
            over="ignore"
        ):  # what no float32 holds is reported as infinity, with its row
            return column.astype(np.float32)
    raise ConfigError(
        f"{name}: must hold numbers, got {column.dtype}; read a table with text by from_table"
    )


def label_column(
    targets: npt.ArrayLike, name: str, class_names: tuple[str, ...] = ()
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class numbers, and the classes' names if the labels were not numbers.

    With `class_names`, text labels are looked up there (a test part must use the train part's).
    """
    column = _array(targets, name)
    kind = column.dtype.kind
    if kind in "iub":
        return column.astype(np.int64, copy=False), class_names
    if kind == "f":
        whole = np.isfinite(column) & (column == np.floor(column))
        if not whole.all():
            first = np.unravel_index(int(np.argmin(whole)), whole.shape)
            raise ConfigError(
                f"{name}: {column[first]} of example {first[0]} is not a whole class number; use "
                "task='regression' to predict numbers"
            )
        return column.astype(np.int64), class_names
    missing = np.array([entry is None or entry != entry for entry in column.tolist()])
    if missing.any():
        raise ConfigError(
            f"{name}: example {int(missing.argmax())} has no label; add it or leave the example out"
        )
    text = column.astype(str)
    known = np.unique(text) if not class_names else np.sort(np.array(class_names))
    codes = np.minimum(np.searchsorted(known, text), len(known) - 1)
    strange = known[codes] != text
    if strange.any():
        row = int(strange.argmax())
        raise ConfigError(
            f"{name}: label {str(text[row])!r} of example {row} is not one of class_names"
        )
    if class_names:  # in the order the caller gave
        place = {label: position for position, label in enumerate(class_names)}
        codes = np.array([place[str(label)] for label in known])[codes]
    return codes.astype(np.int64), class_names or tuple(str(label) for label in known)


def number_column(targets: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    column = _array(targets, name)
    if column.dtype.kind not in "fiub":
        raise ConfigError(f"{name}: regression needs numbers, got {column.dtype}")
    return column.astype(np.float32, copy=False)


def take(column: Array, rows: npt.NDArray[np.int64]) -> Array:
    """`column[rows]`, without a copy when the rows are all there in their order."""
    if len(rows) == len(column) and (rows == np.arange(len(rows))).all():
        return column
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return column[rows[0] : rows[-1] + 1]
    return column[rows]


def first_not_finite(column: Array, block: int = 1 << 16) -> int | None:
    """The first row with NaN or infinity, looking at a block of rows at a time.

    Minimum and maximum need no memory of their own, and let NaN through.
    """
    for start in range(0, len(column), block):
        part: npt.NDArray[Any] = column[start : start + block]
        if part.size and not (np.isfinite(part.min()) and np.isfinite(part.max())):
            finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
            return start + int(np.argmin(finite))
    return None


def _array(values: npt.ArrayLike, name: str) -> Array:
    try:
        column = np.asarray(values)
    except ValueError:
        raise ConfigError(f"{name}: all examples must have the same shape") from None
    if column.ndim == 0:
        raise ConfigError(f"{name}: must be an array with one entry for each example")
    return column
