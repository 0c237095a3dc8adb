"""Statistics of a table's columns, bought with noise instead of taken from its rows.

Every unit (a row, a person or a client) votes once in each column: a row for the bin that its cell
falls into, others for the bins of all their rows, with shares that add up to one at most. Bins are
fixed in advance, so one Gaussian on all bins of all columns is a release whose sensitivity is the
root of the number of columns. Kinds of columns, centres and deviations are made from noisy votes
alone.

Two releases find a scale: a coarse one over all magnitudes, and a fine one within the range that
the coarse one has found. Where most of the fine votes drown in the noise, the scale comes from the
coarse ones; where most of those do too, the column is left out. Categories cost nothing: values go
to a fixed number of inputs by their hash. The names of classes do: see `spread_votes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arrays import Ints
from fedveil.data import cells
from fedveil.data.arrow import pa, pc
from fedveil.data.bins import cuts_at_quantiles
from fedveil.data.encoder import as_text, bucket_codes, numbers_of, parts_of
from fedveil.data.schema import Column, Kind

Floats = npt.NDArray[np.float64]

GRID = 2**20  # the whole vote of a client or person in a column, as an integer
ROW = 2**6  # a row's vote: shares of many clients' noise stay wide beside the grid
BUCKETS = 32
_CLEAR = 4.0  # standard deviations of noise that a bin must stand out by: 3e-5 of empty ones do
_ALONE = 6.5  # of a bin far from all others, which would stretch the scale: 4e-11 of empty ones do
FINE = 64  # cells: some equally wide, the others where the coarse votes lie
_EACH = FINE // 2
_ENOUGH = 0.5  # of all votes that must stand out from the noise, to say where a column lies,
_NEARLY_ALL = 0.9  # and of those that fine cells must hold to say more
_LEAST, _MOST = -6, 12  # decimal exponents of magnitudes that are told apart
_BY_DECADE = 8
_MAGNITUDES = 10.0 ** (np.arange(_LEAST * _BY_DECADE, _MOST * _BY_DECADE + 1) / _BY_DECADE)
_EDGES = np.concatenate([-_MAGNITUDES[::-1], _MAGNITUDES])  # of numbers; between the signs is zero
_DAYS = (np.arange(1900, 2101, 10) - 1970) * 365.25  # edges of dates
_DECADES = np.concatenate([_DAYS[:1] - 3652.5, _DAYS, _DAYS[-1:] + 3652.5])
_EVEN = 1.25  # times the least sum of squared shares: 250 equally frequent values have as much
_WIDER = (1, 2, 4, 8)  # bins of magnitudes that are taken together if they drown by themselves
_GAP, _TEXT, _FIRST_NUMBER = 0, 1, 2
_FIRST_DATE = _FIRST_NUMBER + len(_EDGES) + 1
BINS = _FIRST_DATE + len(_DAYS) + 1

Noisy = Callable[[Ints], Floats]  # votes [columns, bins] in units of the grid to noisy votes


@dataclass(frozen=True)
class Voters:
    """Whose vote each row is: every row's own, or its client's or person's."""

    units: Ints | None  # of each row; None: rows vote by themselves

    @property
    def whole(self) -> int:
        """The weight of one vote as an integer."""
        return ROW if self.units is None else GRID

    def votes(self, codes: Ints, bins: int) -> Ints:
        """The sum of all votes `[bins]`; `codes` has a bin for every row, -1 for none."""
        if self.units is None:
            return np.bincount(codes[codes >= 0], minlength=bins).astype(np.int64) * ROW
        sizes = np.bincount(self.units)
        cast = codes >= 0
        pairs = self.units[cast].astype(np.int64) * bins + codes[cast]
        found, counts = np.unique(pairs, return_counts=True)
        # Rounded down: a unit's shares never add up to more than its whole vote.
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
class Histogram:
    """Noisy votes in cells between increasing edges, without those that do not stand out."""

    edges: Floats  # [cells + 1]
    masses: Floats  # [cells]

    def codes(self, numbers: Floats) -> Ints:
        """The cell of every number; -1 for those outside, and for NaN."""
        places = np.searchsorted(self.edges, numbers, side="right") - 1
        return np.where(places < len(self.edges) - 1, places, -1).astype(np.int64)

    def finer(self, cells: int) -> Histogram:
        """Return the histogram with each cell divided into equal ones."""
        edges = [np.linspace(*pair, cells + 1)[:-1] for pair in pairwise(self.edges)]
        return Histogram(
            np.concatenate([*edges, self.edges[-1:]]), np.repeat(self.masses, cells) / cells
        )

    def moments(self) -> tuple[float, float]:
        """Mean and deviation, if votes are spread evenly inside each cell."""
        widths, middles = np.diff(self.edges), (self.edges[1:] + self.edges[:-1]) / 2
        mean = float(np.average(middles, weights=self.masses))
        spread = np.average((middles - mean) ** 2 + widths**2 / 12, weights=self.masses)
        return mean, math.sqrt(float(spread))

    def quantile(self, share: float) -> float:
        """The number below which this share of the votes lies."""
        reached = np.concatenate([[0.0], np.cumsum(self.masses)])
        return float(np.interp(share * reached[-1], reached, self.edges))


@dataclass(frozen=True)
class Summary:
    """A column's statistics from noisy votes.

    Attributes:
        column: How to encode it; None if it cannot be told from noise.
        histogram: Where its numbers, or its days since 1970-01-01, lie.
        units: How many units have voted.
        missing: How many of them have no value.
        classes: Whether it seems to hold classes: text, or numbers that stand apart.
    """

    column: Column | None
    histogram: Histogram | None
    units: float
    missing: float
    classes: bool


@dataclass(frozen=True)
class Range:
    """A column's kind and the range of its numbers or days, from the coarse votes."""

    kind: Kind
    missing: bool
    coarse: Histogram | None = None

    def cells(self) -> Floats:
        """Edges of the fine cells: equally wide ones, and others that follow the coarse votes."""
        if self.coarse is None:
            return np.zeros(0)
        edges, masses = self.coarse.edges, self.coarse.masses
        # The root lets cells with few votes have their share of edges.
        reached = np.concatenate([[0.0], np.cumsum(np.sqrt(masses))])
        within = np.interp(np.linspace(0, reached[-1], _EACH)[1:-1], reached, edges)
        zero = edges[np.abs(edges) <= _MAGNITUDES[0]]
        return np.unique(np.concatenate([self._level(), within, zero]))

    def _level(self) -> Floats:
        """Edges of the cells that are equally wide."""
        if self.coarse is None:
            return np.zeros(0)
        return np.linspace(self.coarse.edges[0], self.coarse.edges[-1], _EACH + 1)

    def apart(self, votes: Floats, std: float) -> bool:
        """Whether values lie in some of the equally wide cells with nothing between them."""
        if self.coarse is None:
            return False
        starts = np.searchsorted(self.cells(), self._level()[:-1])
        merged = np.add.reduceat(votes[: len(self.cells()) - 1], starts)
        sizes = np.diff(np.append(starts, len(self.cells()) - 1))
        clear = merged > _CLEAR * std * np.sqrt(sizes)
        return bool(clear.any() and not (clear[1:] & clear[:-1]).any())

    def codes(self, values: Any, decimal: str) -> Ints:
        """The fine cell of every value; -1 for values outside or of another kind."""
        if self.kind is Kind.CATEGORY:
            return bucket_codes(values, FINE)
        if self.coarse is None:
            return np.full(len(values), -1, dtype=np.int64)
        numbers = _days(values) if self.kind is Kind.DATE else _numbers(values, decimal)
        cells = self.cells()
        return Histogram(cells, np.zeros(len(cells) - 1)).codes(numbers)


def range_of(votes: Floats, std: float, units: float) -> Range:
    """Return a column's kind and range from noisy coarse votes `[BINS]`.

    Where single bins of numbers drown in the noise, wider ones are tried.
    """
    missing = bool(votes[_GAP] > _CLEAR * std)
    enough = _ENOUGH * (units - max(0.0, float(votes[_GAP])))
    if votes[_TEXT] > max(_CLEAR * std, enough):
        return Range(Kind.CATEGORY, missing)
    numbers, days = votes[_FIRST_NUMBER:_FIRST_DATE], votes[_FIRST_DATE:]
    tried = [(Kind.NUMBER, *_merged(numbers, wide), std * math.sqrt(wide)) for wide in _WIDER]
    for kind, edges, masses, noise in (*tried, (Kind.DATE, _DECADES, days, std)):
        clear = np.where(_clear(masses, noise), masses, 0.0)
        found = np.flatnonzero(clear)
        if len(found) and clear.sum() >= enough:
            low, high = found[0], found[-1] + 1
            drowned = 2 * enough - float(clear.sum())
            if drowned > (1 - _NEARLY_ALL) * 2 * enough:
                # Votes that do not stand out lie somewhere near: scales must not be too small.
                low, high = max(0, low - 1), min(len(clear), high + 1)
                clear[[low, high - 1]] += drowned / 2
            return Range(kind, missing, Histogram(edges[low : high + 1], clear[low:high]))
    return Range(Kind.IGNORE, missing)


def _clear(masses: Floats, noise: float) -> npt.NDArray[np.bool_]:
    """Return which bins stand out from the noise; one without a neighbour must do so by more."""
    clear = np.pad(masses > _CLEAR * noise, 1)
    beside = clear[:-2] | clear[2:]
    return clear[1:-1] & (beside | (masses > _ALONE * noise))


def _merged(votes: Floats, wide: int) -> tuple[Floats, Floats]:
    """Edges and votes of bins of numbers, so many together, counted from zero outwards."""
    zero = len(_MAGNITUDES)  # the bin between the signs
    starts = {0, *range(zero, 0, -wide), *range(zero + 1, len(votes), wide)}
    places = np.array(sorted(starts))
    outer = np.concatenate([[10 * _EDGES[0]], _EDGES, [10 * _EDGES[-1]]])
    return outer[[*places, len(votes)]], np.add.reduceat(votes, places)


def column_of(
    place: Range, votes: Floats, std: float, decimal: str, bins: int | None
) -> tuple[Column | None, Histogram | None]:
    """Return the column that coarse range and noisy fine votes `[FINE]` describe, and where its
    numbers lie; None: leave it out."""
    if place.kind is Kind.CATEGORY:
        # Of values that are nearly all different, each bucket has the same share of the votes.
        squares = float((votes**2).sum()) - FINE * std**2
        certain = votes.sum() > _CLEAR * FINE * std
        if certain and squares < _EVEN / FINE * votes.sum() ** 2:
            return None, None
        # With bins every row must have one input in each column.
        missing = place.missing or bins is not None
        return Column(Kind.CATEGORY, buckets=BUCKETS, missing=missing), None
    if place.coarse is None:
        return None, None
    cells = place.cells()
    clear = np.where(votes > _CLEAR * std, votes, 0.0)[: len(cells) - 1]
    trusted = clear.sum() >= _NEARLY_ALL * place.coarse.masses.sum()
    histogram = Histogram(cells, clear) if trusted else place.coarse.finer(bins or 1)
    mean, deviation = histogram.moments()
    cuts: tuple[float, ...] = ()
    if bins is not None:
        cuts = cuts_at_quantiles(histogram.edges, histogram.masses, bins)
    mark = decimal if place.kind is Kind.NUMBER else None
    missing = place.missing or bool(cuts)
    column = Column(place.kind, mean=mean, std=deviation, cuts=cuts, missing=missing, decimal=mark)
    return column, histogram


def summaries(
    table: Mapping[str, Any],
    voters: Voters,
    noisy: Noisy,
    std: float,
    units: int | None,
    decimal: str,
    bins: Mapping[str, int],
) -> dict[str, Summary]:
    """Buy a description of columns with two noisy releases.

    Args:
        table: The columns' values, by name.
        voters: Whose vote each row is.
        noisy: Adds noise to votes, and accounts for it.
        std: The noise on each vote, a whole vote being 1.
        units: How many votes there are in a column, for all to know; None: as the noisy votes say.
        decimal: The decimal mark of numbers in text.
        bins: For columns that are cut into bins, how many.

    Returns:
        What the votes say, by column.
    """
    names = list(table)
    coarse = noisy(np.stack([voters.votes(coarse_codes(table[n], decimal), BINS) for n in names]))
    known = float(coarse.sum(axis=1).mean()) if units is None else units
    places = {n: range_of(votes, std, known) for n, votes in zip(names, coarse, strict=True)}
    fine = noisy(np.stack([voters.votes(places[n].codes(table[n], decimal), FINE) for n in names]))
    found = {}
    for name, first, votes in zip(names, coarse, fine, strict=True):
        place = places[name]
        column, histogram = column_of(place, votes, std, decimal, bins.get(name))
        classes = place.kind is Kind.CATEGORY or place.apart(votes, std)
        found[name] = Summary(column, histogram, known, float(first[_GAP]), classes)
    return found


def threshold(most: int, std: float, failure: float) -> float:
    """Votes that a value must have to be published, if a unit spreads a vote of L2 norm 1 over at
    most so many values (Gopi et al. 2020, weighted Gaussian).

    A value that one unit alone brings then appears with a probability of at most `failure`.
    """
    from scipy.special import ndtri  # see `bins`: a site that waits does without it

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
    units = rows if voters.units is None else voters.units[rows].astype(np.int64)
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
