"""The protective path: clipped vectors snapped to a grid, and integer noise on their integer sum.

Formal guarantee: every snapped vector is integer, and its norm times the granularity, in exact
arithmetic, is at most the clip norm (`snap_rows`) or the bound that its mechanism is accounted with
(`snap_conditional`). Sums of such vectors are exact.

A granularity is a power of two, so that dividing by it is exact too.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count, positive
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.clipping import Array, Clip, as_numpy, clip_rows, like, surely_inside
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.integers import (
    Ahead,
    discrete_gaussian,
    rounded_gaussian,
    rounded_laplace,
)
from fedveil.privacy.noise.slabs import Integers

Floating = npt.NDArray[Any]

# In grid units. Squares of up to 2^30 coordinates sum within int64; a sum leaves room for noise.
LARGEST_CLIP = {1: 2.0**50, 2: 2.0**30}
LARGEST_SUM = 2.0**61
_LARGEST_NOISE = 2.0**44


def choose_granularity(
    clip_norm: float, noise_std: float, dimension: int, contributions: int, *, order: int = 2
) -> float:
    """The coarsest power of two at which snapping costs next to nothing.

    The rounding errors of `contributions` vectors and of the noise add less than 1e-8 to the noise
    variance (`noise_std` on the sum), and snapping a vector of `dimension` coordinates shortens or
    lengthens it by about 1e-6. The sum fits 64-bit integers with room for the noise.
    """
    clip = Clip(clip_norm, order)
    positive("noise_std", noise_std)
    count("dimension", dimension)
    count("contributions", contributions)
    # A rounding error has variance g^2 / 12, and lengthens in L1 by at most g / 4 on average.
    invisible = noise_std * math.sqrt(12e-8 / (contributions + 1))
    lengthening = math.sqrt(24e-6 / dimension) if order == 2 else 4e-6 / dimension
    representable = max(
        clip.norm / LARGEST_CLIP[order],
        contributions * clip.norm / LARGEST_SUM,
        noise_std / _LARGEST_NOISE,
    )
    wanted = min(invisible, clip.norm * min(lengthening, 2.0**-20))
    granularity = max(power_of_two_below(wanted), 2.0 * power_of_two_below(representable))
    if granularity > noise_std or granularity > clip.norm:
        raise ConfigError(
            f"noise_std: {noise_std} beside clip_norm {clip_norm} is beyond 64-bit integers"
        )
    return granularity


def snap_rows(rows: Array, granularity: float, clip: Clip) -> Array:
    """Clip and snap each row of [rows, d] to the nearest grid points, int64.

    A row that rounding pushed over the bound is shrunk, by a rule that depends on this row alone,
    until it is inside. Rows that are not finite become zero.
    """
    scaled = _scaled(rows, granularity, clip)
    limit = math.floor((Fraction(clip.norm) / Fraction(granularity)) ** clip.order)
    snapped = np.rint(scaled).astype(np.int64)
    sums = _power_sums(snapped, clip.order)

    # Rows that rounding pushed over the bound are shortened by what it added and by four standard
    # deviations of what it may add next time, and rounded again. The few that miss twice are cut
    # towards zero, which never lengthens anything.
    spread = math.sqrt(limit / 3.0) if clip.order == 2 else math.sqrt(scaled.shape[1] / 12.0)
    room = np.full(len(scaled), float(limit))
    over = np.flatnonzero(sums > limit)
    for _ in range(2 if len(over) else 0):
        room[over] = np.maximum(0.0, room[over] - (sums[over] - limit) - 4.0 * spread)
        factors = room[over] / max(1, limit)
        factors = factors if clip.order == 1 else np.sqrt(factors)
        snapped[over] = np.rint(scaled[over] * factors.astype(scaled.dtype)[:, None])
        sums[over] = _power_sums(snapped[over], clip.order)
        over = over[sums[over] > limit]
    snapped[over] = np.trunc(scaled[over])
    return like(rows, snapped)


def snap_conditional(rows: Array, mechanism: DiscreteGaussianSum, stream: Stream) -> Array:
    """Clip each row of [rows, d] and round it as `mechanism` is accounted, int64.

    Stochastic rounding is repeated until the norm is within `mechanism.grid_sensitivity()`
    (Kairouz, Liu, Steinke 2021); `rounding_beta=None` means nearest rounding within the clip.
    """
    clip = Clip(mechanism.clip_norm)
    if mechanism.rounding_beta is None:
        return snap_rows(rows, mechanism.granularity, clip)
    scaled = _scaled(rows, mechanism.granularity, clip)
    if scaled.shape[1] != mechanism.dimension:
        raise ConfigError(f"rows: need {mechanism.dimension} columns, got {scaled.shape[1]}")
    limit = math.floor(Fraction(mechanism.grid_sensitivity()[0]) ** 2)
    snapped = np.zeros(scaled.shape, dtype=np.int64)
    open_rows = np.arange(len(scaled))
    while len(open_rows):
        uniforms = stream.uniforms(len(open_rows) * scaled.shape[1]).reshape(-1, scaled.shape[1])
        trial = _round_up_if(scaled[open_rows], uniforms).astype(np.int64)
        met = _power_sums(trial, 2) <= limit
        snapped[open_rows[met]] = trial[met]
        open_rows = open_rows[~met]
    return like(rows, snapped)


def unsnap(values: Integers, granularity: float) -> npt.NDArray[np.float64]:
    """Grid coordinates as numbers."""
    return values.astype(np.float64) * require_granularity(granularity)


def protect_sum(
    total: Integers, std: float, granularity: float, stream: Stream | Ahead
) -> Integers:
    """`total` (grid units) plus a continuous Gaussian of `std` rounded to the grid: int64.

    Since the total lies on the grid, the result is the continuous Gaussian mechanism, rounded:
    its accounting holds unchanged, amplification included. `std` is in the units of the data.
    """
    units = std / require_granularity(granularity)
    if isinstance(stream, Ahead):
        drawn = stream.rounded_gaussian(total.size, units)
    else:
        drawn = rounded_gaussian(stream, total.size, units)
    return _summable(total) + drawn.reshape(total.shape)


def protect_sum_laplace(
    total: Integers, scale: float, granularity: float, stream: Stream
) -> Integers:
    """`total` (grid units) plus continuous Laplace noise of `scale` rounded to the grid: int64.

    As with `protect_sum`, this is the continuous mechanism, rounded: purely (L1 sensitivity /
    scale)-private, and its composition curves hold too, as they would not for discrete noise.
    """
    units = scale / require_granularity(granularity)
    return _summable(total) + rounded_laplace(stream, total.size, units).reshape(total.shape)


def share(count: int, share_std: float, granularity: float, stream: Stream) -> Integers:
    """One client's noise share for a secure sum: discrete Gaussians in grid units, int64 [count].

    To be accounted as a sum of discrete Gaussians; keep `share_std` at two grid units or more.
    """
    return discrete_gaussian(stream, count, share_std / require_granularity(granularity))


def require_granularity(granularity: float) -> float:
    if not (0.0 < granularity < math.inf and math.frexp(granularity)[0] == 0.5):
        raise ConfigError(f"granularity: need a power of two, got {granularity}")
    return granularity


def power_of_two_below(x: float) -> float:
    """The largest power of two that is not above x > 0."""
    return 2.0 ** (math.frexp(x)[1] - 1)


def _scaled(rows: Array, granularity: float, clip: Clip) -> Floating:
    """Clipped rows in grid units: exact, and of exact norm at most clip.norm / granularity."""
    require_granularity(granularity)
    finest = clip.norm / LARGEST_CLIP[clip.order]
    if granularity < finest:
        raise ConfigError(
            f"granularity: need at least {finest:.3g} for this clip, got {granularity}"
        )
    # Most rows were clipped before, and a row within the bound stays as it is.
    clipped = rows if surely_inside(rows, clip) else clip_rows(rows, clip).values
    values, power = as_numpy("rows", clipped, 2, False), 1 - math.frexp(granularity)[1]
    # What underflows here is far below half a grid unit, and stays there.
    if abs(power) >= 126:
        return np.ldexp(values, power)
    scaled: Floating = values * values.dtype.type(2.0**power)  # as exact, and quicker
    return scaled


def _round_up_if(scaled: Floating, uniforms: npt.NDArray[np.float64]) -> Floating:
    """The grid point below, or above with probability equal to the distance from the one below."""
    below = np.floor(scaled)
    rounded: Floating = below + (uniforms < scaled - below)
    return rounded


def _power_sums(values: Integers, order: int) -> Integers:
    """Exact sums of |k| or k^2 along rows."""
    sums: Integers
    sums = np.abs(values).sum(axis=1) if order == 1 else np.einsum("ij,ij->i", values, values)
    return sums


def _summable(total: Integers) -> Integers:
    if not isinstance(total, np.ndarray) or total.dtype != np.int64:
        raise ConfigError(f"total: need an int64 array of grid units, got {type(total)}")
    if total.size and not (total.min() >= -(2**62) and total.max() <= 2**62):
        raise ConfigError("total: exceeds 2^62 grid units; use a coarser grid")
    return total
