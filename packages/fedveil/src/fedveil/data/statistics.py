"""Statistics of a table's columns, bought with noise instead of taken from its rows.

Every unit (a row, or a client) votes once in each column: a row for the bin that its cell falls
into, a client for the bins of all its rows, with shares that add up to one at most. Bins are fixed
in advance, so one Gaussian on all bins of all columns is a release whose sensitivity is the root of
the number of columns. Kinds of columns, centres and deviations are made from noisy votes alone.

Two releases find a scale: a coarse one over all magnitudes, and a fine one within the range that
the coarse one has found. Categories cost nothing: values go to a fixed number of inputs by their
hash. The names of classes do: see `selected`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import ndtri

from fedveil.core.arrays import Ints
from fedveil.data import cells
from fedveil.data.encoding import as_text, numbers_of, parts_of
from fedveil.data.schema import Column, Kind

Floats = npt.NDArray[np.float64]

GRID = 2**20  # a client's whole vote in a column, as an integer
ROW = 2**6  # a row's vote: shares of many clients' noise stay wide beside the grid
BUCKETS = 32
_CLEAR = 4.0  # standard deviations of noise that a bin must stand out by: 3e-5 of empty ones do
FINE = 32
_LEAST, _MOST = -6, 12  # decimal exponents of magnitudes that are told apart
_BY_DECADE = 8
_MAGNITUDES = 10.0 ** (np.arange(_LEAST * _BY_DECADE, _MOST * _BY_DECADE + 1) / _BY_DECADE)
_EDGES = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES])  # of numbers; between the signs is zero
_DAYS = (np.arange(1900, 2101, 10) - 1970) * 365.25  # edges of dates
_GAP, _TEXT, _FIRST_NUMBER = 0, 1, 2
_FIRST_DATE = _FIRST_NUMBER + len(_EDGES) + 1
BINS = _FIRST_DATE + len(_DAYS) + 1

Noisy = Callable[[Ints], Floats]  # votes [columns, bins] in units of the grid to noisy votes


@dataclass(frozen=True)
class Voters:
    """Whose vote each row is: every row's own, or its client's."""

    clients: Ints | None  # of each row; None: rows vote by themselves

    @property
    def whole(self) -> int:
        """What one vote counts, as an integer."""
        return ROW if self.clients is None else GRID

    def votes(self, codes: Ints, bins: int) -> Ints:
        """The sum of all votes `[bins]`; `codes` has a bin for every row, -1 for none."""
        if self.clients is None:
            return np.bincount(codes[codes >= 0], minlength=bins).astype(np.int64) * ROW
        sizes = np.bincount(self.clients)
        cast = codes >= 0
        pairs = self.clients[cast].astype(np.int64) * bins + codes[cast]
        found, counts = np.unique(pairs, return_counts=True)
        # Rounded down: a client's shares never add up to more than its whole vote.
        shares = counts.astype(np.int64) * GRID // sizes[found // bins]
        total = np.zeros(bins, dtype=np.int64)
        np.add.at(total, found % bins, shares)
        return total


def coarse_codes(values: Any, decimal: str) -> Ints:
    """The bin of every cell: a gap, text, a number's magnitude, or a date's decade."""
    codes = np.full(len(values), _TEXT, dtype=np.int64)
    numbers = _numbers(values, decimal)
    known = ~np.isnan(numbers)
    codes[known] = _FIRST_NUMBER + np.searchsorted(_EDGES, numbers[known])
    days = _days(values)
    dated = ~np.isnan(days) & ~known
    codes[dated] = _FIRST_DATE + np.searchsorted(_DAYS, days[dated])
    codes[np.asarray(values.is_null())] = _GAP
    return codes


@dataclass(frozen=True)
class Range:
    """What the coarse votes say of a column: its kind, and where its numbers or days lie."""

    kind: Kind
    missing: bool
    low: float = 0.0
    high: float = 0.0

    def codes(self, values: Any, decimal: str) -> Ints:
        """The fine bin of every cell; -1 for cells outside or of another kind."""
        if self.kind not in (Kind.NUMBER, Kind.DATE):
            return np.full(len(values), -1, dtype=np.int64)
        numbers = _days(values) if self.kind is Kind.DATE else _numbers(values, decimal)
        with np.errstate(over="ignore", invalid="ignore"):
            places = np.floor((numbers - self.low) / (self.high - self.low) * FINE)
        inside = (places >= 0) & (places < FINE)
        return np.where(inside, places, -1).astype(np.int64)


def range_of(votes: Floats, std: float) -> Range:
    """What noisy coarse votes `[BINS]` with noise of this deviation say of a column."""
    clear = np.where(votes > _CLEAR * std, votes, 0.0)
    numbers, days = clear[_FIRST_NUMBER:_FIRST_DATE], clear[_FIRST_DATE:]
    masses = {
        Kind.NUMBER: numbers.sum(),
        Kind.DATE: days.sum(),
        Kind.CATEGORY: clear[_TEXT],
    }
    kind = max(masses, key=lambda one: masses[one])
    missing = bool(clear[_GAP])
    if not masses[kind]:
        return Range(Kind.IGNORE, missing)
    if kind is Kind.CATEGORY:
        return Range(kind, missing)
    edges, bins = (_EDGES, numbers) if kind is Kind.NUMBER else (_DAYS, days)
    outer = np.concatenate([[edges[0]], edges, [edges[-1]]])
    found = np.flatnonzero(bins)
    low, high = float(outer[found[0]]), float(outer[found[-1] + 1])
    return Range(kind, missing, low, high if high > low else low + 1.0)


def column_of(place: Range, votes: Floats, std: float, decimal: str) -> Column | None:
    """The column that coarse range and noisy fine votes `[FINE]` describe; None: leave it out."""
    if place.kind is Kind.CATEGORY:
        return Column(Kind.CATEGORY, buckets=BUCKETS, missing=place.missing)
    if place.kind is Kind.IGNORE:
        return None
    clear = np.where(votes > _CLEAR * std, votes, 0.0)
    width = (place.high - place.low) / FINE
    middles = place.low + width * (np.arange(FINE) + 0.5)
    if not clear.any():
        clear = np.ones(FINE)  # nothing stands out: anywhere in the range
    mean = float(np.average(middles, weights=clear))
    spread = float(np.average((middles - mean) ** 2, weights=clear)) + width**2 / 12
    mark = decimal if place.kind is Kind.NUMBER else None
    deviation = math.sqrt(spread)
    return Column(place.kind, mean=mean, std=deviation, missing=place.missing, decimal=mark)


def bought_columns(
    table: Mapping[str, Any], voters: Voters, noisy: Noisy, std: float, decimal: str
) -> tuple[dict[str, Column], set[str]]:
    """Columns from two noisy releases, and those that seem to hold classes: text, and numbers that
    stand apart. `std` is the noise on each vote, a whole vote being 1."""
    names = list(table)
    coarse = noisy(np.stack([voters.votes(coarse_codes(table[n], decimal), BINS) for n in names]))
    places = {name: range_of(votes, std) for name, votes in zip(names, coarse, strict=True)}
    fine = noisy(np.stack([voters.votes(places[n].codes(table[n], decimal), FINE) for n in names]))
    columns, classes = {}, set()
    for name, votes in zip(names, fine, strict=True):
        column = column_of(places[name], votes, std, decimal)
        if column is not None:
            columns[name] = column
        if places[name].kind is Kind.CATEGORY or _apart(votes, std):
            classes.add(name)
    return columns, classes


def _apart(votes: Floats, std: float) -> bool:
    """Whether values lie in some bins with nothing between them."""
    clear = votes > _CLEAR * std
    return bool(clear.any() and not (clear[1:] & clear[:-1]).any())


def threshold(most: int, std: float, failure: float) -> float:
    """Votes that a value must have to be published, if a unit spreads a vote of L2 norm 1 over at
    most so many values (Gopi et al. 2020, weighted Gaussian).

    A value that one unit alone brings then appears with a probability of at most `failure`.
    """
    t = np.arange(1, most + 1)
    beyond = -np.expm1(np.log1p(-failure) / t)  # 1 - (1 - failure)^(1/t), which may be tiny
    bounds = 1 / np.sqrt(t) + std * -ndtri(beyond)
    return float(bounds.max()) + 1 / GRID  # noise is rounded to the grid, which may lift a vote


def spread_votes(
    values: Any, voters: Voters, most: int, separator: str | None = None
) -> tuple[list[str], Ints]:
    """Let every unit spread a vote of L2 norm 1 equally over its values.

    A unit names at most its `most` most frequent values. A value that nobody has named is no
    candidate and is not returned: noise alone must not publish it, because the threshold bounds
    the failure of at most `most` candidates that one unit brings (`threshold`).

    Args:
        values: one cell for each row.
        voters: whose vote each row is.
        most: how many values one unit may name.
        separator: what stands between the values of a cell, if it may hold several.

    Returns:
        The values that somebody has named, and their votes `[values]` in units of the grid, all of
        them positive.
    """
    rows = np.arange(len(values))
    if separator is not None:
        rows, values = parts_of(values, separator)
    text = pc.dictionary_encode(cells.canonical(as_text(values)))
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    names = [str(name) for name in text.dictionary.to_pylist()]
    codes = np.asarray(pc.fill_null(text.indices, -1)).astype(np.int64)
    held = codes >= 0
    units = rows if voters.clients is None else voters.clients[rows].astype(np.int64)
    pairs, counts = np.unique(units[held] * max(1, len(names)) + codes[held], return_counts=True)
    votes = np.zeros(len(names), dtype=np.int64)
    owners, places = pairs // len(names), pairs % len(names)
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=lambda place: names[place])] = np.arange(len(names))
    # Ties by name, so that nobody else's values decide.
    order = np.lexsort((rank[places], -counts, owners))
    _, first, held_by = np.unique(owners, return_index=True, return_counts=True)
    named = np.arange(len(owners)) - np.repeat(first, held_by) < most
    each = np.floor(GRID / np.sqrt(np.repeat(np.minimum(held_by, most), held_by)))
    np.add.at(votes, places[order][named], each[named].astype(np.int64))
    candidates = np.flatnonzero(votes > 0)
    return [names[place] for place in candidates], votes[candidates]


def _numbers(values: Any, decimal: str) -> Floats:
    if not (pa.types.is_string(values.type) or _numeric(values.type)):
        return np.full(len(values), np.nan)
    return numbers_of(values, Column(Kind.NUMBER, decimal=decimal))


def _days(values: Any) -> Floats:
    if _numeric(values.type) or pa.types.is_boolean(values.type):
        return np.full(len(values), np.nan)
    if pa.types.is_string(values.type):
        values = cells.days(values)
    return numbers_of(values, Column(Kind.DATE))


def _numeric(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
