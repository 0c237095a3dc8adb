"""Accounting by privacy loss distributions: numerically tight, always rounded upwards.

Guards (each has a test):
* FFT round-off is the one error that is not pessimistic, about 3e-17 in delta for each round. So
  delta must be at least 1e-13 times the rounds, and it is 0.999 delta that is asked for.
* The grid is chosen from the size of one loss, never by looking at the answer: a finer grid gives
  a smaller epsilon, so a grid that got finer with more rounds, less noise or a larger rate could
  make epsilon fall. Here it can only get coarser in those directions, by powers of two, and then
  epsilon obeys the laws that it should.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.privacy.accountants.loss_grid import LARGEST_LOSS, epsilon_at, self_composed
from fedveil.privacy.accountants.steps import Step

LEAST_DELTA_PER_ROUND = 1e-13
_DELTA_SHARE = 0.999
_GRID = 1e-3  # the grid is this times a power of two
_FINEST = -6  # 1.6e-5; below 1e-5 rounding of the curve would show
_LOSS_CELLS = 16  # cells in one spread: halving them moves epsilon by less than 0.1 %
_TOTAL_CELLS = 64  # cells in the largest spread of a whole block, when blocks are combined
_LARGEST_SIZE = 1 << 22  # cells; more would take many seconds, for epsilons in the thousands
_LARGEST_NUMBER_OF_BLOCKS = 64


def pld_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Upper bound on epsilon at `delta`, or None where the guards leave no valid answer."""
    rounds = sum(step.count for step in steps)
    if delta < LEAST_DELTA_PER_ROUND * rounds or len(steps) > _LARGEST_NUMBER_OF_BLOCKS:
        return None
    if any(step.spread() is None or step.largest_loss() > LARGEST_LOSS for step in steps):
        return None
    total: Any = None
    for step in steps:
        block = _block(step)
        if block is None:
            return None
        if len(steps) > 1:
            block = _regrid(block, _common_interval(steps))
        total = block if total is None else total.compose(block)
        if total._pmf_remove.size > _LARGEST_SIZE:
            return None
    return max(epsilon_at(pmf, _DELTA_SHARE * delta) for pmf in (total._pmf_remove, total._pmf_add))


def interval(step: Step) -> float:
    """Grid for one step: a sixteenth of one loss, from 1.6e-5 to 1e-3 (coarser for huge losses)."""
    size = step.spread() or 0.0
    return _grid_below(min(size / _LOSS_CELLS, _GRID * max(1.0, size**2)))


def _common_interval(steps: Sequence[Step]) -> float:
    """Grid for a sum of blocks: a small part of the largest block, and none of theirs is finer.

    The spread of an unsampled Gaussian step is that of all its rounds already.
    """
    sizes = [(step.spread() or 0.0) * math.sqrt(step.composed) for step in steps]
    return max(*(interval(step) for step in steps), _grid_below(max(sizes) / _TOTAL_CELLS))


def _grid_below(target: float) -> float:
    """The largest grid that is at most `target`, but never below the finest one."""
    power = math.floor(math.log2(max(target, 1e-300) / _GRID))
    return _GRID * 2.0 ** max(power, _FINEST)


@lru_cache(maxsize=8)  # blocks can be large
def _block(step: Step) -> Any | None:
    """All rounds of one step, composed on the step's own grid; None if it would not fit."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    one = step.losses(interval(step))
    pmfs = [one._pmf_remove] if one._symmetric else [one._pmf_remove, one._pmf_add]
    composed = [self_composed(pmf, step.composed, _LARGEST_SIZE) for pmf in pmfs]
    if any(pmf is None for pmf in composed):
        return None
    return PrivacyLossDistribution(*composed)


def _regrid(distribution: Any, interval: float) -> Any:
    """Return a distribution on a coarser grid (a multiple of its own), rounded upwards.

    A loss between two grid points is split between them so that the mass and the mass times
    exp(-loss) stay: both distributions keep their total, and no divergence gets smaller.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    def coarser(pmf: Any) -> Any:
        pmf = pmf.to_dense_pmf()
        ratio = round(interval / pmf._discretization)
        if ratio == 1:
            return pmf
        index = np.arange(pmf.size) + pmf._lower_loss
        below, part = np.divmod(index, ratio)
        fine = pmf._discretization
        up = np.expm1(-part * fine) / math.expm1(-ratio * fine)
        mass = np.maximum(pmf._probs, 0.0)
        lowest = int(below[0])
        cells = np.bincount(below - lowest, mass * (1 - up), int(below[-1]) - lowest + 2)
        cells += np.bincount(below - lowest + 1, mass * up, len(cells))
        return DensePLDPmf(interval, lowest, cells, pmf._infinity_mass, True)

    remove = coarser(distribution._pmf_remove)
    if distribution._symmetric:
        return PrivacyLossDistribution(remove)
    return PrivacyLossDistribution(remove, coarser(distribution._pmf_add))
