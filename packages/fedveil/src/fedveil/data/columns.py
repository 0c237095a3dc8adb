"""Turning whatever arrays the user has into the columns of a federation.

The type of an array is its owner's declaration, and holds for all entries alike. A list, and an
array of Python's objects, has no type but what its entries suggest: these are read one by one to
the type that is declared for them, so that none decides how others are read. An entry that cannot
be read becomes NaN, or -1 where class numbers are wanted, and makes its example unusable
(`data.unusable`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError

Array = npt.NDArray[np.generic]

MISSING_CLASS = -1
_LARGEST_CODE = 2.0**53


def untyped(values: npt.ArrayLike) -> bool:
    """Whether the type of these values is decided by their entries: a list, or Python's objects."""
    return not hasattr(values, "dtype") or np.asarray(values).dtype == object


def input_column(inputs: npt.ArrayLike, name: str, tokens: bool = False) -> Array:
    """Numbers as stored: uint8, float16 and float32 stay, wider floats and integers become float32.

    Token ids (`tokens=True`) stay integers. Never copies a column that can stay.
    """
    column = _together(inputs, name)
    if tokens:
        if untyped(inputs) and column.dtype.kind not in "iub":
            return _by_entry(column.astype(object), code_of)
        column = column.astype(np.int64) if untyped(inputs) else column
        if not np.issubdtype(column.dtype, np.integer):
            raise ConfigError(f"{name}: sequences need integer token ids, got {column.dtype}")
        return column
    if untyped(inputs):  # all become double precision before they are rounded, whatever there is
        plain = column.dtype.kind in "fiub"
        column = column.astype(np.float64) if plain else _by_entry(column, number_of)
        with np.errstate(over="ignore"):
            return column.astype(np.float32)
    if column.dtype in (np.uint8, np.float16, np.float32):
        return column
    if column.dtype.kind in "fiub":
        with np.errstate(over="ignore"):  # what no float32 holds becomes infinite, and unusable
            return column.astype(np.float32)
    raise ConfigError(
        f"{name}: must hold numbers, got {column.dtype}; read a table with text by from_table"
    )


def label_column(
    targets: npt.ArrayLike, name: str, class_names: tuple[str, ...] = (), declared: bool = False
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Read class numbers.

    Args:
        targets: Class numbers or names, `[examples]` or `[examples, labels]`.
        name: What error messages call them.
        class_names: The classes' names, if they are known. A test part must use the train part's.
        declared: Whether at least the number of classes is known. Otherwise entries without a type
            decide together whether they are numbers or names.

    Returns:
        Class numbers, -1 where there is none, and the classes' names: those that were given, or, of
        labels that are text, the labels themselves.
    """
    column = _entries(targets, name)
    if untyped(targets) and (declared or class_names):
        place = {label: position for position, label in enumerate(class_names)}
        return _by_entry(column, lambda entry: code_of(entry, place)), class_names
    if not hasattr(targets, "dtype"):
        column = _together(targets, name)
    kind = column.dtype.kind
    if kind in "iub":
        return column.astype(np.int64, copy=False), class_names
    if kind == "f":
        whole = (np.abs(column) < _LARGEST_CODE) & (column == np.floor(column))
        return np.where(whole, column, MISSING_CLASS).astype(np.int64), class_names
    missing = np.array([_is_missing(entry) for entry in column.ravel().tolist()], dtype=np.bool_)
    text = column.astype(str).ravel()
    names = class_names or tuple(map(str, np.unique(text[~missing])))
    place = {label: position for position, label in enumerate(names)}
    codes = np.array([place.get(label, MISSING_CLASS) for label in text.tolist()], dtype=np.int64)
    codes[missing] = MISSING_CLASS
    return codes.reshape(column.shape), names


def number_column(targets: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    """Read numbers to predict; NaN where there is none."""
    column = _entries(targets, name)
    if untyped(targets):
        column = _by_entry(column, number_of)
    if column.dtype.kind not in "fiub":
        raise ConfigError(f"{name}: regression needs numbers, got {column.dtype}")
    with np.errstate(over="ignore"):
        return column.astype(np.float32, copy=False)


def truth_rows(targets: npt.ArrayLike, name: str, width: int) -> npt.NDArray[np.int64]:
    """Read `width` labels for each example of a list, 0 or 1 each; -1 where there is none."""
    column = _entries(targets, name)
    found = np.full((len(column), width), MISSING_CLASS, dtype=np.int64)
    for place, row in enumerate(column):
        if isinstance(row, list | tuple | np.ndarray) and len(row) == width:
            found[place] = [code_of(entry) for entry in row]
    return found


def number_of(entry: Any) -> float:
    """Read one entry as a number; NaN if it is none. The text "1.5" is 1.5, and so is [1.5]."""
    if isinstance(entry, list | tuple | np.ndarray):
        return number_of(entry[0]) if len(entry) == 1 else math.nan
    if isinstance(entry, bytes | bytearray | complex | np.complexfloating) or _is_missing(entry):
        return math.nan  # of a complex number NumPy would drop a part, with a warning
    try:
        return float(entry)
    except OverflowError:
        return math.inf
    except Exception:  # whatever an object of somebody's own may raise
        return math.nan


def code_of(entry: Any, place: Mapping[str, int] | None = None) -> int:
    """Read one entry as a class number or token id; -1 if it is none.

    Args:
        entry: A name, or a whole number: 1, 1.0, True and "1" are the same.
        place: Class numbers by name, which come first: where "2" is the name of the first class,
            2 is the number 0.
    """
    number = number_of(entry)
    whole = abs(number) < _LARGEST_CODE and number == math.floor(number)
    code = int(number) if whole else MISSING_CLASS
    for spelt in (entry if isinstance(entry, str) else "", str(code)):
        if place and spelt in place and (whole or isinstance(entry, str)):
            return place[spelt]
    return code


def _is_missing(entry: Any) -> bool:
    try:
        return entry is None or bool(entry != entry)
    except Exception:  # pandas.NA is neither the same nor another
        return True


def _by_entry(column: npt.NDArray[Any], read: Callable[[Any], Any]) -> npt.NDArray[Any]:
    """Each entry of a column, read by itself."""
    found = np.array([read(entry) for entry in column.ravel()], dtype=type(read(None)))
    return found.reshape(column.shape)


def _entries(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Targets in an array; of a list, its entries as they are, whatever they are."""
    if not isinstance(values, list | tuple):
        return _needs_axis(np.asarray(values), name)
    column = np.empty(len(values), dtype=object)
    for place, entry in enumerate(values):
        column[place] = entry
    return column


def _together(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """An array of the type that all entries suggest, or that it has."""
    try:
        return _needs_axis(np.asarray(values), name)
    except ValueError:
        raise ConfigError(f"{name}: all examples must have the same shape") from None


def _needs_axis(column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if column.ndim == 0:
        raise ConfigError(f"{name}: must be an array with one entry for each example")
    return column


def take(column: Array, rows: npt.NDArray[np.int64]) -> Array:
    """`column[rows]`, without a copy when the rows are all there in their order."""
    if len(rows) == len(column) and (rows == np.arange(len(rows))).all():
        return column
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return column[rows[0] : rows[-1] + 1]
    return column[rows]
