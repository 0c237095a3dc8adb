"""Columns of a table as inputs of a model: numbers scaled, categories one-hot, gaps marked."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedveil.data import cells
from fedveil.data.schema import Column, Kind

MOST_CATEGORIES = 100  # a text column with more is no category
FARTHEST = 5.0  # inputs are clipped there: one outlier must not rule a client's gradient
NUMERIC_SHARE = 0.9  # text of which this share are numbers is a number with gaps
_TICKS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # in a second
_ID_NAMES = ("", "id", "index", "row", "key", "uuid")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Judged:
    """What a column was found to be, or why it is left out, and what the user should know."""

    column: Column | None
    why_not: str = ""
    remark: str = ""


def kind_of(values: Any) -> Kind:
    """What the stored type says, before looking at any value."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return Kind.BOOLEAN
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Kind.DATE
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Kind.NUMBER
    return Kind.CATEGORY if pa.types.is_string(kind) else Kind.IGNORE


def unreadable(values: Any) -> bool:
    """Whether values are stored as what is neither numbers, dates, text nor nothing."""
    return kind_of(values) is Kind.IGNORE and not pa.types.is_null(values.type)


def is_index(name: str) -> bool:
    """Whether this is the nameless index of a frame, as pandas stores it beside the columns."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def judge(name: str, values: Any) -> Judged:
    """Decide from the data themselves what a column is; none of this is protected."""
    if is_index(name):
        return Judged(None, "row numbers")
    if values.null_count == len(values):
        return Judged(None, "no values at all")
    kind = kind_of(values)
    if kind is Kind.IGNORE:
        return Judged(None, f"{values.type} values")
    missing = values.null_count > 0
    distinct = pc.count_distinct(values).as_py()
    if distinct == 1 and not missing:
        return Judged(None, "the same value everywhere")
    if kind is Kind.CATEGORY:
        return _judge_text(values, distinct, missing)
    if kind is Kind.BOOLEAN:
        return Judged(Column(kind, missing=missing))
    whole = pa.types.is_integer(values.type) or (
        kind is Kind.NUMBER and pc.all(pc.equal(values, pc.round(values))).as_py()
    )
    everywhere = distinct == len(values) and whole  # 7.0 as a spreadsheet may write 7
    plain = name.casefold().replace("-", "_")
    named = plain in _ID_NAMES or plain.endswith(("_id", " id")) or plain.startswith("unnamed:")
    if everywhere and named:
        return Judged(None, "an identifier")
    column = Column(kind, missing=missing)
    return Judged(_measured(column, numbers_of(values, column)))


def _judge_text(values: Any, distinct: int, missing: bool) -> Judged:
    present = len(values) - values.null_count
    if distinct > MOST_CATEGORIES or distinct > max(20, present // 2):
        strange = cells.numbers(values).null_count - values.null_count
        if strange <= (1 - NUMERIC_SHARE) * present:
            column = Column(Kind.NUMBER, missing=True)
            remark = f"{strange} entries that are no numbers count as missing"
            return Judged(_measured(column, numbers_of(values, column)), "", remark)
        return Judged(None, f"text with {distinct} different values{_unclear(values)}")
    categories = sorted(pc.unique(values.drop_null()).to_pylist())
    column = Column(Kind.CATEGORY, categories=tuple(categories), missing=missing)
    hint = _unclear(values).removeprefix("; ")
    return Judged(column, "", f"{distinct} categories; {hint}" if hint else "")


def _unclear(values: Any) -> str:
    """How to write dates, where text seems to be dates of which nobody knows which."""
    unclear = pc.all(pc.match_substring_regex(values, cells.UNCLEAR_DATE)).as_py()
    return f"; {cells.DATES_ARE}" if unclear else ""


def _measured(column: Column, numbers: npt.NDArray[np.float64]) -> Column:
    known = numbers[np.isfinite(numbers)]
    deviation = float(known.std())
    return replace(column, mean=float(known.mean()), std=deviation if deviation > 0 else 1.0)


def feature_names(name: str, column: Column) -> list[str]:
    gap = [f"{name} (missing)"] if column.missing else []
    if column.kind is Kind.CATEGORY:
        values = column.categories or [f"#{bucket}" for bucket in range(column.buckets or 0)]
        return [*(f"{name}={value}" for value in values), *gap]
    if column.cuts:
        cuts = [f"{cut:.6g}" for cut in column.cuts]
        inner = (f"{name} {low} to {high}" for low, high in pairwise(cuts))
        bins = [f"{name} below {cuts[0]}", *inner, f"{name} from {cuts[-1]}"]
        return [*bins, f"{name} (missing)"]
    return [name, *gap]


def encode(values: Any, column: Column, out: Floats) -> npt.NDArray[np.bool_]:
    """Write the inputs of one column into `out [examples, features of the column]`, each row's by
    itself; which of its values are missing."""
    gaps: npt.NDArray[np.bool_]
    if column.kind is Kind.CATEGORY:
        if column.buckets is None:
            codes = category_codes(values, column.categories)
        else:
            codes = bucket_codes(values, column.buckets)
        out[:] = 0
        known = np.flatnonzero(codes >= 0)
        out[known, codes[known]] = 1
        gaps = np.asarray(values.is_null())
    elif column.cuts:
        numbers = numbers_of(values, column)
        gaps = np.isnan(numbers)
        places = np.searchsorted(np.array(column.cuts), numbers, side="right")
        out[:] = 0
        out[np.arange(len(numbers)), np.where(gaps, len(column.cuts) + 1, places)] = 1
        return gaps
    else:
        numbers = np.clip(scaled(numbers_of(values, column), column), -FARTHEST, FARTHEST)
        gaps = np.isnan(numbers)
        out[:, 0] = np.where(gaps, 0.0, numbers)  # the centre: neither high nor low
    if column.missing:
        out[:, -1] = gaps
    return gaps


def scaled(numbers: npt.NDArray[np.float64], column: Column) -> npt.NDArray[np.float64]:
    if column.kind is Kind.BOOLEAN:
        return numbers
    if column.min is not None and column.max is not None:
        numbers = np.clip(numbers, column.min, column.max)
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of such a number
        return (numbers - column.centre) / column.width


def category_codes(values: Any, categories: Sequence[str]) -> npt.NDArray[np.int64]:
    """Position of every value among the categories, -1 if missing or not among them.

    A value in another spelling than the category's (2.0 for 2, True for true, and if there is no
    such category, 2% for 2) counts as it.
    """
    text, names = as_text(values), pa.array(list(categories), pa.string())
    found = pc.index_in(text, value_set=names)
    for spelt in (cells.canonical, lambda one: cells.canonical(cells.undressed(one))):
        if found.null_count > text.null_count:
            found = pc.coalesce(found, pc.index_in(spelt(text), value_set=spelt(names)))
    return np.asarray(pc.fill_null(found, -1)).astype(np.int64)


def parts_of(values: Any, separator: str) -> tuple[npt.NDArray[np.int64], Any]:
    """The parts of all cells, trimmed and without empty ones, and the row that each is from."""
    text = pc.replace_substring(pc.fill_null(as_text(values), ""), cells.BETWEEN, separator)
    lists = pc.split_pattern(text, pattern=separator)
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    parts = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    rows = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
    named = np.asarray(pc.not_equal(parts, ""))
    return rows[named], parts.filter(pa.array(named))


def bucket_codes(values: Any, buckets: int) -> npt.NDArray[np.int64]:
    """A number below `buckets` for every value, by a public hash of its text; -1 if missing."""
    coded = pc.dictionary_encode(cells.canonical(as_text(values)))
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    hashed = [zlib.crc32(text.encode()) % buckets for text in coded.dictionary.to_pylist()]
    places = np.asarray(pc.fill_null(coded.indices, len(hashed))).astype(np.int64)
    return np.array([*hashed, -1], dtype=np.int64)[places]


def as_text(values: Any) -> Any:
    """Values as categories are written: whole numbers without a decimal point."""
    if pa.types.is_floating(values.type):
        return cells.number_text(values)
    return values.cast(pa.string())


def numbers_of(values: Any, column: Column) -> npt.NDArray[np.float64]:
    """Floats with NaN for missing values; dates as days since 1970-01-01."""
    if pa.types.is_string(values.type):
        if column.kind is Kind.DATE:
            values = cells.days(values)
        elif column.kind is Kind.BOOLEAN:
            values = cells.truths(values)
        else:
            values = cells.numbers(values, column.decimal or ".")
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        ticks = values.cast(pa.int64()).cast(pa.float64(), safe=False)
        values = pc.divide(ticks, 86_400.0 * _TICKS[getattr(values.type, "unit", "ms")])
    floats = values.cast(pa.float64(), safe=False)
    return np.asarray(floats.to_numpy(), dtype=np.float64)
