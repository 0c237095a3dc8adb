"""Privacy losses on a grid: how far it must reach, rounding curves upwards onto it, powers of them.

The operations are dp-accounting's, on its own data types, but with a window that fits (its bound is
loose for fine grids) and no loop over cells.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Beyond this loss exp() would leave the range of floats; such noise protects nobody anyway.
LARGEST_LOSS = 600.0
_TAIL = 1e-15  # mass that may fall outside the window; it is counted as infinite loss
_ORDERS, _ORDER_GROWTH = 24, 2.0  # of the Chernoff bound
_TAIL_STDS = 9.0  # the tail beyond holds 2e-19, a millionth of what `pld` requires of delta


def gaussian_loss(noise: float) -> float:
    """Return a bound on the losses that matter in one Gaussian with std / sensitivity `noise`."""
    return 1 / (2 * noise**2) + _TAIL_STDS / noise


def loss_cells(noise: float, rate: float, interval: float) -> int:
    """Return the number of cells up to the largest loss that matters, on a sample of `rate`."""
    loss = min(LARGEST_LOSS, gaussian_loss(noise))
    return max(1, math.ceil(math.log1p(rate * math.expm1(loss)) / interval))


def rounded_upwards(forward: Floats, backward: Floats, interval: float) -> Any:
    """Discretise one direction of a pair (P, Q) so that no divergence gets smaller.

    Connects the dots (Doroshenko et al. 2022) through the divergences at every grid point. Mass
    beyond the grid counts as infinite loss above, and as the lowest loss below.

    Args:
        forward: Hockey-stick divergences of (P, Q) at losses of 0, 1, 2, ... cells.
        backward: Those of (Q, P), which give the negative losses by
            H_1/a(P, Q) = 1 - 1/a + H_a(Q, P)/a.
        interval: Width of a cell.

    Returns:
        dp-accounting's DensePLDPmf.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    shrink = np.exp(-np.arange(len(backward) - 1, 0, -1) * interval)
    deltas = np.concatenate([1 - shrink + shrink * backward[:0:-1], forward])
    # Ironing out rounding, upwards only: the smallest non-increasing curve above.
    deltas = np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0)
    falls, grow = np.diff(deltas), math.expm1(interval)
    mass = np.empty_like(deltas)
    mass[0] = 1 - deltas[0] + falls[0] / grow
    mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(interval)) / grow
    mass[-1] = falls[-1] / math.expm1(-interval)
    lowest = 1 - len(backward)
    return DensePLDPmf(interval, lowest, np.maximum(mass, 0.0), float(deltas[-1]), True)


def self_composed(pmf: Any, times: int, largest_size: int) -> Any | None:
    """`times` independent losses added up; None if more than `largest_size` cells are needed.

    Round-off of the Fourier transform is the one error here that is not upwards: see `pld`.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy import fft

    pmf = pmf.to_dense_pmf()
    if times == 1:
        return pmf
    mass: Floats = pmf._probs
    low, high = window(mass, times)
    size = high - low + 1
    if max(size, len(mass)) > largest_size:
        return None
    length = fft.next_fast_len(max(size, len(mass)), real=True)
    composed = fft.irfft(fft.rfft(mass, length) ** times, length)
    # The transform wraps around: cell i of the sum stands at i modulo length.
    cells = np.roll(composed, -(low % length))[:size]
    lost = _TAIL - math.expm1(times * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(
        pmf._discretization, pmf._lower_loss * times + low, np.maximum(cells, 0.0), lost, True
    )


def window(mass: Floats, times: int) -> tuple[int, int]:
    """Cells of the `times`-fold sum outside which there is less mass than `_TAIL` (Chernoff)."""
    cells = np.arange(len(mass), dtype=np.float64)
    log_mass = np.log(np.maximum(mass, 1e-300))
    widest = (len(mass) - 1) * times
    high = min(widest, math.ceil(_tail_bound(log_mass, cells, times)))
    low = max(0, math.floor(-_tail_bound(log_mass, -cells, times)))
    return min(low, high), high


def _tail_bound(log_mass: Floats, cells: Floats, times: int) -> float:
    """The least (times * log E exp(order * cell) + log(2 / tail)) / order found over orders.

    As a function of the order it falls, then rises: the search ends where it turns.
    """
    needed, order, best = math.log(2 / _TAIL), 0.01 / len(cells), math.inf
    for _ in range(_ORDERS):
        logs = log_mass + order * cells
        top = float(np.max(logs))
        moment = top + math.log(float(np.sum(np.exp(np.maximum(logs - top, -600)))))
        bound = (times * moment + needed) / order
        if bound > best:
            break
        best, order = bound, _ORDER_GROWTH * order
    return best


def epsilon_at(pmf: Any, delta: float) -> float:
    """The smallest epsilon >= 0 whose hockey-stick divergence is at most `delta`."""
    from scipy.signal import lfilter

    pmf = pmf.to_dense_pmf()
    if pmf._infinity_mass > delta:
        return math.inf
    step, mass = pmf._discretization, np.maximum(pmf._probs, 0.0)
    first = max(0, -pmf._lower_loss)  # losses below zero count for nothing
    mass, lowest = mass[first:], pmf._lower_loss + first
    if len(mass) == 0:
        return 0.0
    # At loss k: `beyond` is the mass above it, `weighed` the same times exp(loss k - its loss).
    beyond = pmf._infinity_mass + np.append(np.cumsum(mass[:0:-1])[::-1], 0.0)
    shrink = math.exp(-step)
    weighed = np.append(lfilter([shrink], [1.0, -shrink], mass[:0:-1])[::-1], 0.0)
    within = np.flatnonzero(beyond - weighed <= delta)
    if len(within) == 0:  # the top cell holds what is left
        return math.inf
    k = int(within[0])
    loss = float((lowest + k) * step)
    upper, lower = float(beyond[k] + mass[k]), float(weighed[k] + mass[k])
    if lower <= 0 or upper <= delta:
        return loss
    # Between this loss and the next lower one the divergence is upper - exp(epsilon - loss) lower.
    return max(0.0, loss + math.log((upper - delta) / lower))
