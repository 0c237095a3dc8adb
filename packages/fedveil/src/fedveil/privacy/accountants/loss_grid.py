"""Privacy losses on a grid: how far it must reach, and rounding curves upwards onto it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Beyond this loss exp() would leave the range of floats; such noise protects nobody anyway.
LARGEST_LOSS = 600.0
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
