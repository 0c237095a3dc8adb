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
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedveil.core.randomness import Stream, Words

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

ENTRY_BITS = 16
MARGIN = 2.0**-42  # the test in double precision errs by less than 2^-45 (height + 1)
MAX_SHIFT = 40  # up to here every place along a cell is exact in double precision

_CELLS_PER_WIDTH = 64
_LN2_ABOVE = Fraction(7, 10)
_TABLE_BITS = 64
_TESTED = np.iinfo(np.int64).min  # marks the entries that a lookup cannot decide
_LARGEST_GROWTH = 0.25  # of the exponent along one cell: the Taylor sum is proved up to here
_TAYLOR_TERMS = 12
_BLOCK = 1 << 15  # words that stay in the second-level cache
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Curve:
    """A shape of noise: exp(-x^2 / (2 width^2)) if `bell`, else exp(-|x| / width).

    `width` is in grid units: the length over which the density changes noticeably. The exponent is
    y(x), a rational number: the exponential is the only transcendental one that a sampler needs.
    """

    width: Fraction
    bell: bool

    @property
    def reach(self) -> Fraction:
        """How far a table goes: beyond lies less than 1e-10 of a bell, 1e-6 of a tent."""
        return self.width * (Fraction(13, 2) if self.bell else 14)

    @cached_property
    def curvature(self) -> Fraction:
        return 1 / (2 * self.width**2) if self.bell else Fraction(0)

    def slope(self, x: Fraction) -> Fraction:
        """With `curvature`: y(x + d) - y(x) = d * (slope(x) + curvature * d) for x, d >= 0."""
        return 2 * x * self.curvature if self.bell else 1 / self.width

    def exponent(self, x: Fraction) -> Fraction:
        return abs(x) * (self.slope(abs(x)) - self.curvature * abs(x))

    def halving(self, x: Fraction) -> Fraction:
        """A length over which the density at least halves, anywhere beyond `x > 0`."""
        return _LN2_ABOVE / (2 * x * self.curvature if self.bell else 1 / self.width)


def density_bounds(curve: Curve, x: Fraction, bits: int) -> tuple[int, int]:
    """Integers enclosing 2^bits times the density at `x`."""
    exponent = curve.exponent(x)
    return exp_bounds(exponent.numerator, exponent.denominator, bits)


def exp_bounds(numerator: int, denominator: int, bits: int) -> tuple[int, int]:
    """Integers with `low <= 2^bits * exp(-numerator/denominator) <= high`, a few units apart.

    Every operation is on Python integers and rounds outwards, so the bounds hold by construction:
    e^-y = (1 / e^(y/2^r))^(2^r), where the reduced exponential is a Taylor sum of positive terms
    whose remainder is below twice the next term (the reduced argument is below 1/32).
    """
    if numerator < 0 or denominator <= 0:
        raise ValueError(f"exponent: need a value >= 0, got {numerator}/{denominator}")
    if numerator == 0:
        return 1 << bits, 1 << bits
    if numerator > (bits + 1) * denominator:  # e^-y < 2^-bits
        return 0, 1
    halvings = (numerator // denominator).bit_length() + 6
    work = bits + halvings + 12
    one = 1 << work
    argument_low = (numerator << work) // (denominator << halvings)
    argument_high = argument_low + 1
    sum_low, sum_high = one, one
    term_low, term_high, order = one, one, 0
    while term_low:
        order += 1
        term_low = term_low * argument_low // (order << work)
        term_high = -(-term_high * argument_high // (order << work))
        sum_low += term_low
        sum_high += term_high
    sum_high += 2 * term_high
    low = (one << work) // sum_high
    high = -(-(one << work) // sum_low)
    for _ in range(halvings):
        low = low * low >> work
        high = -(-high * high >> work)
    return low >> (work - bits), -(-high >> (work - bits))


@dataclass(frozen=True)
class CellLayout:
    """Where the cells lie.

    Cell c covers [c * 2^shift, (c+1) * 2^shift) for `-cells <= c < cells`. A lattice cell holds the
    integers there. If `continuous`, it holds the reals there moved by -1/2, so that flooring a
    point's distance along the cell yields the integer nearest to the point.
    """

    curve: Curve
    continuous: bool
    shift: int
    cells: int

    @cached_property
    def size(self) -> Fraction:
        return Fraction(2) ** self.shift

    def ends(self, cell: int) -> tuple[Fraction, Fraction]:
        """An interval that holds every point of a cell."""
        low = cell * self.size
        if self.continuous:
            return low - Fraction(1, 2), low + self.size - Fraction(1, 2)
        return (low, low + self.size) if self.shift else (low, low)

    def first_integer(self, cell: int) -> int:
        return (cell << self.shift) if self.shift >= 0 else (cell >> -self.shift)

    @property
    def edge(self) -> Fraction:
        """The distance of the nearest point outside all cells."""
        return self.cells * self.size - (Fraction(1, 2) if self.continuous else 0)

    @property
    def tail_shift(self) -> int:
        """The tails' envelope halves every 2^tail_shift grid units; so does at least the curve."""
        return max(self.shift, _floor_log2(self.curve.halving(self.edge)) + 1)


def lay_out(curve: Curve, *, continuous: bool, reach: Fraction | None = None) -> CellLayout:
    """Cells of a 64th to a 128th of the curve's width, at least as far as its reach."""
    shift = _floor_log2(curve.width / _CELLS_PER_WIDTH)
    if not continuous:
        shift = max(shift, 0)
    unit = max(Fraction(2) ** shift, Fraction(1))  # the table ends on a whole number
    distance = curve.reach if reach is None else reach
    if continuous:
        distance += Fraction(1, 2)
    return CellLayout(
        curve, continuous, shift, int(-(-distance // unit) * unit / Fraction(2) ** shift)
    )


def _floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def distances(low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """The smallest and the largest |x| over [low, high]."""
    ends = abs(low), abs(high)
    return (Fraction(0) if low < 0 < high else min(ends)), max(ends)


class LazyUniform:
    """A uniform real in [0, 1) of which `bits` binary digits are known: `digits` / 2^bits."""

    def __init__(self, stream: Stream, digits: int = 0, bits: int = 0) -> None:
        self.digits, self.bits, self._stream = digits, bits, stream

    def extend(self) -> LazyUniform:
        """Draw 64 more digits, and return self."""
        self.digits = (self.digits << 64) | int(self._stream.words(1)[0])
        self.bits += 64
        return self


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

        along: Reals = whole.astype(np.float64)
        if self.layout.continuous:
            along = places.astype(np.float64) * 2.0 ** (self.layout.shift - self._place_bits)
        heights = self._heights(rows, along)
        gap = heights - slabs - (trials >> np.uint64(11)) * 2.0**-53
        slack = self._margin * (heights + 1.0)
        tail = rows == self._tail_row
        accepted = (gap > slack) & ~tail
        rejected = gap < -slack
        out[positions[accepted]] = self._start[rows[accepted]] + whole[accepted]

        for index in np.flatnonzero(~(accepted | rejected)):
            row, slab = int(rows[index]), int(slabs[index])
            trial = LazyUniform(stream, int(trials[index]), 64)
            value: int | None = None
            if row == self._tail_row:
                value = self.draw_tail(slab, trial, stream)
            elif row < self._tail_row:
                place = LazyUniform(stream, int(places[index]), self._place_bits)
                if self.under_cell(row - self.layout.cells, slab, place, trial):
                    value = int(self._start[row] + whole[index])
            rejected[index] = value is None
            out[positions[index]] = value or 0
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

    def under_cell(self, cell: int, slab: int, place: LazyUniform, trial: LazyUniform) -> bool:
        """Whether the point at `place` along a cell and at `slab + trial` upwards is under the
        curve, whose height is `height` at zero. Both take more digits as needed."""
        layout = self.layout
        low, _ = layout.ends(cell)
        if layout.continuous:
            return self._is_under(slab, trial, low, place, layout.size)
        return self._is_under(slab, trial, low + (place.digits >> (place.bits - layout.shift)))

    def draw_tail(self, slab: int, trial: LazyUniform, stream: Stream) -> int | None:
        """A tail point, or None if it is rejected.

        The envelope gives the b-th block of 2^tail_shift units on either side 2^-(b+2) of the tail
        slabs' area. A point of density f is therefore kept if slab + trial is below
        height * f * 2^(b + 2 + tail_shift - shift), which never exceeds the number of tail slabs.
        """
        layout, drawn = self.layout, LazyUniform(stream).extend()  # the sign and the block
        negative = drawn.digits >> 63
        drawn.digits &= (1 << 63) - 1
        while drawn.digits == 0:
            drawn.extend()
        block = drawn.bits - 1 - drawn.digits.bit_length()
        place, shift = LazyUniform(stream).extend(), layout.tail_shift
        size = Fraction(2) ** shift
        start = block * size  # distance of the block from the last cell
        whole = int(start) + (place.digits >> (64 - shift) if shift >= 0 else 0)
        border = int(layout.cells * layout.size)
        value = -border - 1 - whole if negative else border + whole
        boost = block + 2 + shift - layout.shift
        if not layout.continuous:
            return value if self._is_under(slab, trial, Fraction(value), boost=boost) else None
        x, half = border + start, Fraction(1, 2)
        x, size = (-x - half, -size) if negative else (x - half, size)
        return value if self._is_under(slab, trial, x, place, size, boost) else None

    def _is_under(
        self,
        slab: int,
        trial: LazyUniform,
        origin: Fraction,
        place: LazyUniform | None = None,
        size: Fraction = Fraction(0),
        boost: int = 0,
    ) -> bool:
        """Whether slab + trial < height * 2^boost * f(x) at x = origin + size * place, f the
        density.

        `place=None` stands for x = origin. Each turn encloses both sides in rigorous bounds; turns
        double the digits until the enclosures part, which they do with probability one.
        """
        while True:
            near = far = abs(origin)
            if place is not None:
                step = size / (1 << place.bits)
                ends = sorted((origin + place.digits * step, origin + (place.digits + 1) * step))
                near, far = distances(*ends)
            bits = trial.bits + self.height.bit_length() + boost + 8
            least = self.height * density_bounds(self.layout.curve, far, bits)[0] << boost
            most = self.height * density_bounds(self.layout.curve, near, bits)[1] << boost
            below = (slab << bits) + (trial.digits << (bits - trial.bits))
            if below + (1 << (bits - trial.bits)) <= least:
                return True
            if below >= most:
                return False
            trial.extend()
            if place is not None:
                place.extend()
