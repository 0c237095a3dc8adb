"""Exact integer noise at the speed of a table lookup.

The area under a curve is cut into *cells* (intervals of 2^shift grid units) and each cell into
horizontal *slabs* of equal area. A table of 2^16 entries holds one entry for each slab: the top 16
bits of a random word choose a slab, the other 48 bits a place along it.

* A slab that lies wholly under the curve is accepted outright: nearly every draw ends there.
* A slab that the curve crosses is tested against one more word, in double precision with a proved
  error bound, and where this does not decide, in integers with as many more bits as it takes.
* The tails beyond the cells have slabs too, placed by a geometric envelope and tested in integers.

What is accepted is uniform under the curve whatever the table's resolution: the table decides how
fast a draw is, never how it is distributed. docs/noise.md has the argument in full.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedveil.core.randomness import Stream, Words
from fedveil.privacy.noise.curves import density_bounds
from fedveil.privacy.noise.layout import CellLayout, LazyUniform, distances, draw_tail, under_cell

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

ENTRY_BITS = 16
MARGIN = 2.0**-42  # the test in double precision errs by less than 2^-45 (height + 1)
MAX_SHIFT = 40  # up to here every place along a cell is exact in double precision

_TABLE_BITS = 64
_TESTED = np.iinfo(np.int64).min  # marks the entries that a lookup cannot decide
_LARGEST_GROWTH = 0.25  # of the exponent along one cell: the Taylor sum is proved up to here
_TAYLOR_TERMS = 12
_BLOCK = 1 << 15  # words that stay in the second-level cache
_CHUNK = 1 << 20


class SlabSampler:
    """Draws integers with probability proportional to a curve, exactly, from a stream's words.

    `entry_bits` and `margin` change the speed only; tests shrink and widen them to see every path.
    """

    def __init__(
        self, layout: CellLayout, *, entry_bits: int = ENTRY_BITS, margin: float = MARGIN
    ) -> None:
        if layout.shift > MAX_SHIFT:
            raise ValueError(f"layout: cells of 2^{layout.shift} grid units are not supported")
        self.layout = layout
        self._margin = margin
        self._entry_bits = entry_bits
        self._place_bits = 64 - entry_bits
        self._build()

    def _build(self) -> None:
        layout, entries = self.layout, 1 << self._entry_bits
        numbers = range(-layout.cells, layout.cells)
        cells = len(numbers)
        spans = [layout.ends(cell) for cell in numbers]
        nearest, farthest = zip(*(distances(*span) for span in spans), strict=True)
        density = {x: density_bounds(layout.curve, x, _TABLE_BITS) for x in {*nearest, *farthest}}
        tail = density_bounds(layout.curve, layout.edge, _TABLE_BITS)[1]
        tail <<= 2 + layout.tail_shift - layout.shift

        # The largest height for which the cells and the tail fit, each rounded up to whole slabs.
        peaks = [density[x][1] for x in nearest] + [tail]
        self.height = ((entries - cells - 1) << _TABLE_BITS) // sum(peaks)
        if self.height < 1:
            raise ValueError(f"entry_bits: {self._entry_bits} are too few for {cells} cells")
        slabs = [-(-self.height * peak >> _TABLE_BITS) for peak in peaks]
        whole = [self.height * density[x][0] >> _TABLE_BITS for x in farthest] + [0]

        # Rows are the cells, then the tail, then the void that fills the rest of the table.
        self._tail_row = cells
        slabs.append(entries - sum(slabs))
        whole.append(0)
        self._row = np.repeat(np.arange(cells + 2, dtype=np.int64), slabs)
        self._slab = np.arange(entries) - np.repeat(np.cumsum(slabs) - slabs, slabs)
        starts = [layout.first_integer(cell) for cell in numbers]
        self._start = np.array([*starts, 0, 0], dtype=np.int64)
        decided = self._slab < np.array(whole)[self._row]
        self._lookup = np.where(decided, self._start[self._row], _TESTED)

        # For the test in double precision. The height over a point at distance d outwards from the
        # cell's point nearest to zero is peak * exp(-d * (slope + curvature * d)); the place p
        # along the cell has d = |origin + direction * p|. The void has no height.
        self._peak = np.array([self.height * peak / 2.0**_TABLE_BITS for peak in peaks] + [-1.0])
        self._slope = np.array([float(layout.curve.slope(x)) for x in nearest] + [0.0, 0.0])
        self._curvature = float(layout.curve.curvature)
        inwards = [high <= 0 for _, high in spans]
        self._direction = np.array([-1.0 if left else 1.0 for left in inwards] + [0.0, 0.0])
        origins = [high - low if high <= 0 else min(low, Fraction(0)) for low, high in spans]
        self._origin = np.array([float(x) for x in origins] + [0.0, 0.0])
        # The exponent is convex: it grows most along an outermost cell.
        growth = max(
            layout.curve.exponent(farthest[row]) - layout.curve.exponent(nearest[row])
            for row in (0, -1)
        )
        if growth > _LARGEST_GROWTH:
            raise ValueError(f"layout: the exponent grows by {float(growth):.3g} along one cell")

    def draw(self, stream: Stream, count: int) -> Integers:
        """The next `count` independent draws."""
        out = np.empty(count, dtype=np.int64)
        words = np.empty(min(count, _BLOCK), dtype=np.uint64)
        undecided = np.empty(min(count, _BLOCK), dtype=np.bool_)
        for chunk in range(0, count, _CHUNK):
            positions, tested = [], []
            for start in range(chunk, min(chunk + _CHUNK, count), _BLOCK):
                block = out[start : min(start + _BLOCK, chunk + _CHUNK)]
                where, theirs = self._look_up(stream, block, words[: len(block)], undecided)
                positions.append(where + start)
                tested.append(theirs)
            self._settle(stream, out, np.concatenate(positions), np.concatenate(tested))
        return out

    def _look_up(
        self, stream: Stream, out: Integers, words: Words, undecided: npt.NDArray[np.bool_]
    ) -> tuple[Integers, Words]:
        """Fill `out` where a lookup decides; the other positions, and their words."""
        stream.fill(words.view(np.uint8))
        entries = words >> np.uint64(self._place_bits)
        np.take(self._lookup, entries.view(np.int64), out=out, mode="clip")
        undecided = np.equal(out, _TESTED, out=undecided[: len(out)])
        positions = np.flatnonzero(undecided)
        tested = words[positions]
        if self.layout.shift > 0:
            out += self._whole_place(words).view(np.int64)
        return positions, tested

    def _whole_place(self, words: Words) -> Words:
        """How many whole grid units along its cell a word falls; overwrites `words`."""
        if self.layout.shift <= 0:
            words[:] = 0
            return words
        np.left_shift(words, np.uint64(self._entry_bits), out=words)
        return np.right_shift(words, np.uint64(64 - self.layout.shift), out=words)

    def _settle(self, stream: Stream, out: Integers, positions: Integers, words: Words) -> None:
        """Test the undecided draws; draw again what is rejected."""
        if not len(positions):
            return
        entries = (words >> np.uint64(self._place_bits)).view(np.int64)
        rows, slabs = self._row[entries], self._slab[entries]
        places = words & np.uint64((1 << self._place_bits) - 1)
        whole = self._whole_place(words).view(np.int64)
        trials = stream.words(len(positions))

        along: Reals
        if self.layout.continuous:
            along = places.astype(np.float64) * 2.0 ** (self.layout.shift - self._place_bits)
        else:
            along = whole.astype(np.float64)
        heights = self._heights(rows, along)
        gap = heights - slabs - (trials >> np.uint64(11)) * 2.0**-53
        slack = self._margin * (heights + 1.0)
        tail = rows == self._tail_row
        accepted = (gap > slack) & ~tail
        rejected = gap < -slack
        out[positions[accepted]] = self._start[rows[accepted]] + whole[accepted]

        for index in np.flatnonzero(~(accepted | rejected)):
            value = self._decide(
                stream,
                int(rows[index]),
                int(slabs[index]),
                LazyUniform(int(places[index]), self._place_bits),
                LazyUniform(int(trials[index]), 64),
                int(whole[index]),
            )
            if value is None:
                rejected[index] = True
            else:
                out[positions[index]] = value
        again = positions[rejected]
        out[again] = self.draw(stream, len(again))

    def _heights(self, rows: Integers, along: Reals) -> Reals:
        """The curve over each place, by additions and multiplications only."""
        distance = np.abs(self._origin[rows] + self._direction[rows] * along)
        growth = distance * (self._slope[rows] + self._curvature * distance)
        series = np.full(len(rows), 1.0 / math.factorial(_TAYLOR_TERMS))
        for order in range(_TAYLOR_TERMS - 1, -1, -1):
            series = 1.0 / math.factorial(order) - growth * series
        heights: Reals = self._peak[rows] * series
        return heights

    def _decide(
        self,
        stream: Stream,
        row: int,
        slab: int,
        place: LazyUniform,
        trial: LazyUniform,
        whole: int,
    ) -> int | None:
        """The exact outcome of one draw; None if it is rejected."""
        if row > self._tail_row:
            return None
        if row == self._tail_row:
            return draw_tail(self.layout, self.height, slab, trial, stream)
        cell = row - self.layout.cells
        kept = under_cell(self.layout, self.height, cell, slab, place, trial, stream)
        return int(self._start[row]) + whole if kept else None
