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

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedveil.privacy.accountants.discrete import discrete_sum_curve, poisson_sampled_curve
from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    DiscreteSumStep,
    FixedSizeGaussianStep,
    GaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
)
from fedveil.privacy.accountants.without_replacement import fixed_size_curve

Curve = npt.NDArray[np.float64]
Orders = tuple[float, ...]

# Each set holds the one before it, so that adding a step can never lower epsilon.
WHOLE: Orders = tuple(range(2, 129))
MIXED: Orders = tuple(
    sorted({1 + x / 10 for x in range(1, 100)} | set(WHOLE) | {160, 192, 256, 384, 512, 1024})
)
DENSE: Orders = tuple(sorted(set(MIXED) | set(range(11, 300)) | {2048.0, 4096.0, 1e4, 1e5, 1e6}))

_LEAST_RATE = 1e-12  # smaller rates are accounted as this one
_MUCH_NOISE = 1e5  # more noise is accounted as this much
_ROUNDING = 1e-13  # lifts a curve by more than its rounding error


def rdp_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Upper bound on epsilon at `delta`, or None if a step has no Rényi curve."""
    if not _has_curve(steps):
        return None
    orders = orders_for(steps)
    return converted(orders, composed_curve(steps, orders), delta)


def selected_epsilon(
    steps: Sequence[Step], delta: float, mean: float, shape: float
) -> float | None:
    """Bound for the best of a random number of runs of all `steps` (Papernot, Steinke 2022)."""
    from dp_accounting.rdp import rdp_privacy_accountant as library

    if not _has_curve(steps):
        return None
    orders = orders_for(steps)
    curve = composed_curve(steps, orders)
    with _quiet(), np.errstate(over="ignore", invalid="ignore"):
        selected = library._compute_rdp_repeat_and_select(np.array(orders), curve, mean, shape)
    return converted(orders, np.where(np.isnan(selected), np.inf, selected), delta)


def converted(orders: Orders, curve: Curve, delta: float) -> float:
    """The smallest epsilon at `delta` over all orders (Canonne, Kamath, Steinke 2020, prop. 12)."""
    from dp_accounting.rdp import compute_epsilon

    finite = np.flatnonzero(np.isfinite(curve))
    if len(finite) == 0 or delta == 0:
        return np.inf
    return float(compute_epsilon([orders[i] for i in finite], curve[finite], delta)[0])


def _has_curve(steps: Sequence[Step]) -> bool:
    return not any(
        isinstance(step, CappedPoissonGaussianStep)
        or (isinstance(step, LaplaceStep) and step.rate < 1)
        for step in steps
    )


def orders_for(steps: Sequence[Step]) -> Orders:
    """The largest set of orders at which every step has a reliable curve."""
    chosen = DENSE
    for step in steps:
        if isinstance(step, FixedSizeGaussianStep):
            return WHOLE
        if isinstance(step, (ZcdpStep, DiscreteSumStep)) and step.rate < 1:
            return WHOLE
        if isinstance(step, PoissonGaussianStep):
            chosen = MIXED
    return chosen


def composed_curve(steps: Sequence[Step], orders: Orders) -> Curve:
    """Rényi divergence of all steps together at each order."""
    total = np.zeros(len(orders))
    for step in steps:
        with np.errstate(over="ignore"):
            total = total + step.count * _curve(replace(step, count=1), orders)
    return total


@lru_cache(maxsize=512)
def _curve(step: Step, orders: Orders) -> Curve:
    """Rényi divergence of one step at each order, rounded upwards."""
    grid = np.array(orders, dtype=np.float64)
    if isinstance(step, GaussianStep):
        curve = grid / 2 * (1 / step.noise) ** 2
    elif isinstance(step, ZcdpStep):
        curve = _perhaps_sampled(step.rho * grid, grid, step.rate)
    elif isinstance(step, DiscreteSumStep):
        curve = _perhaps_sampled(discrete_sum_curve(step, grid), grid, step.rate)
    elif isinstance(step, FixedSizeGaussianStep):
        noise, rate = min(step.noise, _MUCH_NOISE), max(step.rate, _LEAST_RATE)
        curve = fixed_size_curve(noise, rate, grid)
    else:
        curve = _library_curve(step, orders)
    curve = np.where(np.isnan(curve), np.inf, curve)
    return np.maximum(curve, 0) * (1 + _ROUNDING) + _ROUNDING


def _perhaps_sampled(curve: Curve, grid: Curve, rate: float) -> Curve:
    return curve if rate == 1 else poisson_sampled_curve(curve, grid, rate)


def _library_curve(step: Step, orders: Orders) -> Curve:
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    if isinstance(step, LaplaceStep):
        event = dp_event.LaplaceDpEvent(step.noise)
    elif isinstance(step, PoissonGaussianStep):
        event = dp_event.PoissonSampledDpEvent(
            max(step.rate, _LEAST_RATE), dp_event.GaussianDpEvent(min(step.noise, _MUCH_NOISE))
        )
    else:
        raise TypeError(f"no Rényi curve for {step!r}")
    with _quiet(), np.errstate(over="ignore", invalid="ignore"):
        curve: Curve = RdpAccountant(orders).compose(event).rdp
    return curve


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders that do not converge come out infinite, which is all that we need to hear."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
