"""How the line is cut into cells, and the exact decision whether a point lies under the curve."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fedveil.core.randomness import Stream
from fedveil.privacy.noise.curves import Curve, density_bounds

CELLS_PER_WIDTH = 64


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
    shift = _floor_log2(curve.width / CELLS_PER_WIDTH)
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


@dataclass
class LazyUniform:
    """A uniform real in [0, 1) of which `bits` binary digits are known: `digits` / 2^bits."""

    digits: int
    bits: int

    def extend(self, stream: Stream) -> None:
        self.digits = (self.digits << 64) | int(stream.words(1)[0])
        self.bits += 64


def under_cell(
    layout: CellLayout,
    height: int,
    cell: int,
    slab: int,
    place: LazyUniform,
    trial: LazyUniform,
    stream: Stream,
) -> bool:
    """Whether the point at `place` along the cell and at `slab + trial` upwards is under the curve.

    The curve's height is `height` at zero. `place` and `trial` take more digits as needed.
    """
    low, _ = layout.ends(cell)
    if not layout.continuous:
        x = low + (place.digits >> (place.bits - layout.shift))
        return _is_under(layout.curve, height, 0, slab, trial, stream, x, Fraction(0), None)
    return _is_under(layout.curve, height, 0, slab, trial, stream, low, layout.size, place)


def draw_tail(
    layout: CellLayout, height: int, slab: int, trial: LazyUniform, stream: Stream
) -> int | None:
    """A tail point, or None if it is rejected.

    The envelope gives the b-th block of 2^tail_shift units on either side 2^-(b+2) of the tail
    slabs' area. A point of density f is therefore kept if slab + trial is below
    height * f * 2^(b + 2 + tail_shift - shift), which never exceeds the number of tail slabs.
    """
    sign_and_block = LazyUniform(0, 0)
    sign_and_block.extend(stream)
    negative = sign_and_block.digits >> 63
    sign_and_block.digits &= (1 << 63) - 1
    while sign_and_block.digits == 0:
        sign_and_block.extend(stream)
    block = sign_and_block.bits - 1 - sign_and_block.digits.bit_length()
    place = LazyUniform(0, 0)
    place.extend(stream)

    size = Fraction(2) ** layout.tail_shift
    start = block * size  # distance of the block from the last cell
    if layout.tail_shift >= 0:
        whole = int(start) + (place.digits >> (64 - layout.tail_shift))
    else:
        whole = int(start // 1)
    border = int(layout.cells * layout.size)
    value = -border - 1 - whole if negative else border + whole

    boost = block + 2 + layout.tail_shift - layout.shift
    if not layout.continuous:
        x, size, lazy = Fraction(value), Fraction(0), None
    else:
        half = Fraction(1, 2)
        x = -border - half - start if negative else border - half + start
        size, lazy = (-size if negative else size), place
    kept = _is_under(layout.curve, height, boost, slab, trial, stream, x, size, lazy)
    return value if kept else None


def _is_under(
    curve: Curve,
    height: int,
    boost: int,
    slab: int,
    trial: LazyUniform,
    stream: Stream,
    origin: Fraction,
    size: Fraction,
    place: LazyUniform | None,
) -> bool:
    """Whether slab + trial < height * 2^boost * f(x) at x = origin + size * place, f the density.

    `place=None` stands for x = origin. Each turn encloses both sides in rigorous bounds; turns
    double the digits until the enclosures part, which they do with probability one.
    """
    while True:
        if place is None:
            near = far = abs(origin)
        else:
            step = size / (1 << place.bits)
            ends = sorted((origin + place.digits * step, origin + (place.digits + 1) * step))
            near, far = distances(*ends)
        bits = trial.bits + height.bit_length() + boost + 8
        least = height * density_bounds(curve, far, bits)[0] << boost
        most = height * density_bounds(curve, near, bits)[1] << boost
        below = (slab << bits) + (trial.digits << (bits - trial.bits))
        if below + (1 << (bits - trial.bits)) <= least:
            return True
        if below >= most:
            return False
        trial.extend(stream)
        if place is not None:
            place.extend(stream)
