"""Unsampled Gaussian noise, and selection above a noisy threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.privacy.accountants.loss_grid import gaussian_loss
from fedveil.privacy.accountants.steps import DENSE, Curve, Orders, Step


@dataclass(frozen=True)
class GaussianStep(Step):
    """`count` unsampled Gaussians with std / sensitivity = `noise`."""

    noise: float
    count: int = 1

    def grouped(self, units: int) -> Step | None:
        # Group privacy of Gaussian differential privacy is exact (Dong, Roth, Su 2022).
        return replace(self, noise=self.noise / units)

    @property
    def composed(self) -> int:
        return 1  # unsampled Gaussians compose exactly into one, `_total_noise`

    @property
    def _total_noise(self) -> float:
        return self.noise / math.sqrt(self.count)

    def gaussian(self) -> float:
        return self.noise

    def orders(self) -> Orders:
        return DENSE

    def renyi(self, orders: Orders) -> Curve:
        return np.array(orders, dtype=np.float64) / 2 * (1 / self.noise) ** 2

    def spread(self) -> float:
        return math.sqrt(self.count) / self.noise

    def largest_loss(self) -> float:
        return gaussian_loss(self._total_noise)

    def losses(self, interval: float) -> Any:
        from dp_accounting.pld import privacy_loss_distribution as pld

        return pld.from_gaussian_mechanism(
            self._total_noise, value_discretization_interval=interval
        )


@dataclass(frozen=True)
class SelectionStep(GaussianStep):
    """`count` selections of values whose noisy votes exceed a threshold.

    A value that another unit has too is released as by a Gaussian. A value that only one unit has
    is published with probability `missed` at most: a mechanism that is (0, missed)-private.
    """

    missed: float = 0.0
    theorem = "selection above a threshold (Gopi et al. 2020) and basic composition"

    def grouped(self, units: int) -> Step | None:
        return self if units == 1 else None

    @property
    def failure(self) -> float:
        return self.missed
