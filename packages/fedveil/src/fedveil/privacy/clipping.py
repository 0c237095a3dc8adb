"""Clipping in L1 and L2 that keeps its promise in floating point.

Formal guarantee: whatever goes in, the norm of what comes out, measured in exact arithmetic, is at
most the bound. A vector inside the bound comes back bit for bit. One with a NaN or an infinity
contributes exactly zero and is flagged. What becomes of a row depends on that row alone, bit for
bit, whatever the others are (see `privacy.lanes`).

Works on numpy arrays and torch tensors (through their memory) of float32 or float64; whoever uses
numpy alone never loads torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import above_zero, check_fields, one_of, plain_numbers
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil.privacy.elementwise import tree_sum

Array = TypeVar("Array")  # numpy.ndarray or torch.Tensor
Floating = npt.NDArray[Any]
Reals = npt.NDArray[np.float64]

_BLOCK = 1 << 15  # columns that are summed together: norms of long rows are sums of such sums
_ROWS = 1 << 18  # numbers of short rows that are summed together; changes no result
_SMALL = 2.0**-100  # far above any number that loses digits by underflow


@dataclass(frozen=True)
class Clip:
    """A bound on what one unit contributes: its `order`-norm (1 or 2) is at most `norm`.

    >>> Clip(0.8).sensitivity(Adjacency.ZERO_OUT), Clip(0.8).sensitivity(Adjacency.REPLACE)
    (0.8, 1.6)
    """

    norm: float
    order: int = 2

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, "clip_", norm=above_zero)
        check_fields(self, order=one_of((1, 2)))

    def sensitivity(self, adjacency: Adjacency) -> float:
        """The most a sum of clipped contributions moves, in the same norm, when one unit does."""
        return adjacency.sensitivity_factor * self.norm


@dataclass(frozen=True)
class ClippedRows(Generic[Array]):
    """`factors` are what each row was multiplied by: 1 if inside, 0 if not `finite`.

    `norms` are those before clipping, float64 [rows]; not finite where the row is not.
    """

    values: Array
    factors: Reals  # [rows]
    finite: npt.NDArray[np.bool_]
    norms: Reals

    @property
    def rejected(self) -> int:
        """How many rows held a NaN or an infinity and now hold zeros."""
        return int((~self.finite).sum())


def clip_rows(rows: Array, clip: Clip, *, in_place: bool = False) -> ClippedRows[Array]:
    """Clip each row of [rows, d] on its own. Unchanged rows may come back as `rows` itself."""
    clipped = _clip(as_numpy("rows", rows, 2, in_place), clip, in_place)
    unchanged = in_place or bool(np.all(clipped.factors == 1.0))
    result = rows if unchanged else like(rows, clipped.values)
    return ClippedRows(result, clipped.factors, clipped.finite, clipped.norms)


def row_norms(rows: Array, order: int = 2) -> Reals:
    """The norm of each row of [rows, d], float64: each from its own numbers alone."""
    root, exponent, _ = _norms(as_numpy("rows", rows, 2, False), order)
    with np.errstate(over="ignore"):
        return np.ldexp(root, exponent)


def surely_inside(rows: Array, clip: Clip) -> bool:
    """Return whether quick sums prove that every row of [rows, d] is within the bound.

    They prove nothing about rows of float64, whose squares may underflow.
    """
    values = as_numpy("rows", rows, 2, False)
    if values.dtype != np.float32 or not clip.norm < 1e150:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float64)
        sums = np.abs(wide).sum(axis=1) if clip.order == 1 else np.einsum("ij,ij->i", wide, wide)
        # Terms are exact, and a sum is off by less than one unit in 2^52 for each of them.
        largest = sums * (1.0 + (values.shape[1] + 8) * 2.0**-52)
        return bool((largest <= clip.norm**clip.order).all())


def clip_factors(norms: Array, clip: Clip, *, relative_error: float = 0.0) -> Array:
    """Return the factors that clip examples, given only their norms [examples] (ghost norms).

    The true norms may exceed `norms` by `relative_error`. A factor times such a vector, rounded
    to nearest in the dtype of `norms` and barring underflow, stays within the bound. Norms that
    are no finite number >= 0 get factor 0.
    """
    values = as_numpy("norms", norms, 1, False)
    if not 0.0 <= relative_error < math.inf:
        raise ConfigError(f"relative_error: need a finite number >= 0, got {relative_error}")
    dtype = values.dtype.type
    growth = (1.0 + relative_error) * (1.0 + 2.0**-50)
    least, most = float(values.min(initial=math.inf)), float(values.max(initial=0.0))  # or NaN
    if least >= 0.0 and most * growth <= clip.norm:  # all are within the bound
        return like(norms, np.ones_like(values))
    wide = values.astype(np.float64)
    shrink = (1.0 - 2.0**-50) / (1.0 + _rounding(dtype)) ** 2
    # The usual case in few passes, and what may over- or underflow there again.
    tight = shrink * (1.0 - 2.0**-23) if dtype is np.float32 else shrink  # more than rounding adds
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        grown = wide * growth
        usual = (wide >= 0.0) & (grown < clip.norm / _SMALL) & (clip.norm > _SMALL)
        factors = clip.norm * tight / np.maximum(grown, clip.norm)
        factors[grown <= clip.norm] = 1.0
        if not usual.all():
            odd = np.flatnonzero(~usual)
            factors[odd] = _odd_factors(grown[odd], clip, shrink, dtype)
    return like(norms, factors.astype(dtype, copy=False))


def _odd_factors(largest: Reals, clip: Clip, shrink: float, dtype: Any) -> Floating:
    """Factors of norms that are not finite, or far from the bound."""
    valid = np.isfinite(largest) & (largest >= 0.0)
    outside = valid & (largest > clip.norm)
    factors = np.where(outside, clip.norm / np.where(outside, largest, 1.0) * shrink, 1.0)
    return _round_down(np.where(valid, factors, 0.0), dtype)


def _clip(rows: Floating, clip: Clip, in_place: bool) -> ClippedRows[Floating]:
    dimension = rows.shape[1]
    dtype = rows.dtype.type
    root, exponent, finite = _norms(rows, clip.order)

    # `root * 2^exponent` is the norm up to this relative error, whatever the order of summation.
    slack = (dimension + 8) * 2.0**-52
    with np.errstate(over="ignore"):
        norms = np.ldexp(root, exponent)
        inside = norms * (1.0 + slack) <= clip.norm
    for row in np.flatnonzero(~inside & finite & (norms * (1.0 - slack) <= clip.norm)):
        inside[row] = _is_inside(rows[row], clip)

    # The result is rounded at most twice: each value grows by (1 + u)^2 and less than two of the
    # dtype's least steps.
    underflow = 2.0 * float(np.finfo(dtype).smallest_subnormal)
    room = clip.norm - underflow * (dimension if clip.order == 1 else math.sqrt(dimension))
    shrink = (1.0 - 2.0**-48) / ((1.0 + slack) * (1.0 + _rounding(dtype)) ** 2)
    factors = np.where(inside, 1.0, 0.0)
    scaled = ~inside & finite
    if scaled.any():
        # The factor is ideal * 2^power, kept apart so that neither underflows. If it lies below the
        # dtype's normal numbers it is applied in two steps, the first a power of two.
        mantissa, power = np.frexp(np.where(scaled, root, 1.0))
        room_mantissa, room_power = math.frexp(max(0.0, room))
        ideal = room_mantissa * shrink / mantissa
        power = np.where(scaled, room_power - power - exponent, 0)
        smallest = int(np.finfo(dtype).minexp)
        first = np.where(np.frexp(ideal)[1] - 1 + power < smallest, smallest, 0)
        second = _round_down(np.where(scaled, np.ldexp(ideal, power - first), 1.0), dtype)
        factors[scaled] = np.ldexp(second.astype(np.float64), first)[scaled]
        with np.errstate(invalid="ignore", under="ignore"):
            for multiplier in (np.ldexp(dtype(1), first), second):
                if np.any(multiplier != 1):
                    rows = np.multiply(rows, multiplier[:, None], out=rows if in_place else None)
                    in_place = True
    if not finite.all():
        if not in_place:
            rows = rows.copy()
        rows[~finite] = 0
    return ClippedRows(rows, factors, finite, norms)


def _norms(
    rows: Floating, order: int
) -> tuple[Reals, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Norms as `root * 2^exponent` (each sum rounded in any order), and which rows are finite."""
    sums = _power_sums(rows, order)
    exponent = np.zeros(len(rows), dtype=np.int64)
    finite = np.isfinite(sums)
    if rows.dtype == np.float64:
        # Doubles may overflow or underflow on the way: such rows are measured again, scaled by a
        # power of two.
        for row in np.flatnonzero(~finite | (sums < 2.0**-600)):
            finite[row] = bool(np.isfinite(rows[row]).all())
            if finite[row] and rows.shape[1]:
                exponent[row] = np.frexp(np.max(np.abs(rows[row])))[1]
                sums[row] = _power_sums(np.ldexp(rows[row : row + 1], -exponent[row]), order)[0]
    return np.sqrt(sums) if order == 2 else sums, exponent, finite


def _power_sums(rows: Floating, order: int) -> Reals:
    """Sum of |x| or x^2 along each row, in double precision; squares of float32 are exact there."""
    count, dimension = rows.shape
    sums = np.zeros(count)
    step = max(1, _ROWS // max(1, min(dimension, _BLOCK)))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for row in range(0, count, step):
            for column in range(0, dimension, _BLOCK):
                part = rows[row : row + step, column : column + _BLOCK].astype(np.float64)
                np.abs(part, out=part) if order == 1 else np.multiply(part, part, out=part)
                sums[row : row + step] += tree_sum(part.T)
    return sums


def _is_inside(row: Floating, clip: Clip) -> bool:
    """Whether the exact norm is at most the bound: for the rare row too close to tell otherwise."""
    bound = Fraction(clip.norm) ** clip.order
    if row.dtype == np.float32:
        # |x| and x^2 are exact in double precision, and fsum rounds the exact sum only once, so
        # its sign is right. The bound is the sum of two or three doubles.
        terms = np.abs(row.astype(np.float64)) ** clip.order
        pieces = []
        while bound:
            pieces.append(-float(bound))
            bound += Fraction(pieces[-1])
        return math.fsum([*terms.tolist(), *pieces]) <= 0.0
    mantissas, exponents = np.frexp(row[row != 0.0])
    least = int(exponents.min(initial=0))
    total = 0
    for mantissa, exponent in zip(
        np.ldexp(mantissas, 53).astype(np.int64).tolist(), exponents.tolist(), strict=True
    ):
        total += (abs(mantissa) << (exponent - least)) ** clip.order
    return total * Fraction(2) ** (clip.order * (least - 53)) <= bound


def _rounding(dtype: Any) -> float:
    """The largest relative error of rounding to nearest."""
    return float(np.finfo(dtype).eps) / 2.0


def _round_down(values: Reals, dtype: Any) -> Floating:
    """The largest numbers of the dtype that are not above `values` >= 0."""
    rounded = values.astype(dtype)
    return np.where(rounded > values, np.nextafter(rounded, dtype(0)), rounded)


def as_numpy(name: str, array: Any, dimensions: int, in_place: bool) -> Floating:
    """The array's own memory as numpy (a copy only from another device)."""
    values = array
    if not isinstance(array, np.ndarray):
        if not hasattr(array, "detach"):
            raise ConfigError(f"{name}: need a numpy array or a torch tensor, got {type(array)}")
        if in_place and array.device.type != "cpu":
            raise ConfigError(f"in_place: need a tensor on the CPU, got one on {array.device}")
        if str(array.dtype) in ("torch.float32", "torch.float64"):
            values = array.detach().cpu().numpy()
    if not isinstance(values, np.ndarray) or values.dtype not in (np.float32, np.float64):
        raise ConfigError(f"{name}: need float32 or float64, got {array.dtype}")
    if values.ndim != dimensions:
        raise ConfigError(f"{name}: need {dimensions} dimension(s), got shape {tuple(array.shape)}")
    return values


def like(array: Array, values: Floating) -> Array:
    """`values` as the kind of array that was given."""
    if isinstance(array, np.ndarray):
        return values  # type: ignore[return-value]
    import torch  # loaded already: a tensor came in

    tensor: Any = array
    return torch.from_numpy(values).to(tensor.device)  # type: ignore[return-value]
