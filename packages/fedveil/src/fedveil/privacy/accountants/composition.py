"""Convolution powers of a discretised loss distribution, and the epsilon of one.

The same operations as dp-accounting's, on its own data types, but with a window that fits (its
bound is loose for fine grids) and no loop over cells.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TAIL = 1e-15  # mass that may fall outside the window; it is counted as infinite loss
_ORDERS, _ORDER_GROWTH = 24, 2.0  # of the Chernoff bound


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
