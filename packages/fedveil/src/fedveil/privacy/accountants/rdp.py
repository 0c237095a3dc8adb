"""Rényi accounting: valid for every kind of step but capped cohorts, rarely the tightest.

Guards (each has a test):
* dp-accounting takes a negative Rényi divergence, which rounding can produce, for epsilon = 0;
  every curve is therefore lifted by more than its rounding error before it is used.
* Its fractional orders may fail to converge for large rates: such orders come out infinite and
  drop out, and the whole orders, which cannot fail, are always among those tried.
* Its `REPLACE_ONE` does not double the sensitivity of a Gaussian or of Laplace noise. It is never
  used: steps carry noise that is already relative to the sensitivity.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedveil.privacy.accountants.steps import DENSE, Curve, Orders, Step, quiet, with_count

_ROUNDING = 1e-13  # lifts a curve by more than its rounding error


def rdp_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Upper bound on epsilon at `delta`, or None if a step has no Rényi curve."""
    orders = orders_for(steps)
    if orders is None:
        return None
    return converted(orders, composed_curve(steps, orders), delta)


def selected_epsilon(
    steps: Sequence[Step], delta: float, mean: float, shape: float
) -> float | None:
    """Bound for the best of a random number of runs of all `steps` (Papernot, Steinke 2022)."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    orders = orders_for(steps)
    if orders is None:
        return None
    curve = composed_curve(steps, orders)
    with quiet():
        selected = library._compute_rdp_repeat_and_select(np.array(orders), curve, mean, shape)
    return converted(orders, np.where(np.isnan(selected), np.inf, selected), delta)


def converted(orders: Orders, curve: Curve, delta: float) -> float:
    """The smallest epsilon at `delta` over all orders (Canonne, Kamath, Steinke 2020, prop. 12)."""
    from dp_accounting.rdp import compute_epsilon

    finite = np.flatnonzero(np.isfinite(curve))
    if len(finite) == 0 or delta == 0:
        return np.inf
    return float(compute_epsilon([orders[i] for i in finite], curve[finite], delta)[0])


def orders_for(steps: Sequence[Step]) -> Orders | None:
    """The largest set of orders at which every step has a reliable curve; None if one has none."""
    chosen = DENSE
    for orders in (step.orders() for step in steps):
        if orders is None:
            return None
        chosen = min(chosen, orders, key=len)
    return chosen


def composed_curve(steps: Sequence[Step], orders: Orders) -> Curve:
    """Rényi divergence of all steps together at each order."""
    total = np.zeros(len(orders))
    for step in steps:
        with np.errstate(over="ignore"):
            total = total + step.count * _curve(with_count(step, 1), orders)
    return total


@lru_cache(maxsize=512)
def _curve(step: Step, orders: Orders) -> Curve:
    """Rényi divergence of one step at each order, rounded upwards."""
    curve = step.renyi(orders)
    curve = np.where(np.isnan(curve), np.inf, curve)
    return np.maximum(curve, 0) * (1 + _ROUNDING) + _ROUNDING
