"""Laplace noise, with or without Poisson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fedveil.privacy.accountants.steps import DENSE, Curve, Orders, Step, library_curve


@dataclass(frozen=True)
class LaplaceStep(Step):
    """`count` Laplace mechanisms with scale / L1 sensitivity = `noise`, on a sample of `rate`."""

    noise: float
    rate: float = 1.0
    count: int = 1
    theorem = "the Laplace mechanism in L1 (Dwork et al. 2006)"

    def grouped(self, units: int) -> Step | None:
        return replace(self, noise=self.noise / units) if self.rate == 1 or units == 1 else None

    def pure(self) -> float:
        """Return log(1 + rate (e^(1/noise) - 1))."""
        epsilon = 1 / self.noise
        if self.rate == 1 or epsilon > 700:  # the exponential would overflow: claim no credit
            return epsilon
        return math.log1p(self.rate * math.expm1(epsilon))

    def orders(self) -> Orders | None:
        return DENSE if self.rate == 1 else None

    def renyi(self, orders: Orders) -> Curve:
        from dp_accounting import dp_event

        return library_curve(dp_event.LaplaceDpEvent(self.noise), orders)

    def spread(self) -> float:
        return math.sqrt(math.log1p((self.rate * math.expm1(min(1 / self.noise, 30.0))) ** 2))

    def largest_loss(self) -> float:
        return 1 / self.noise

    def losses(self, interval: float) -> Any:
        from dp_accounting.pld import privacy_loss_distribution as pld

        return pld.from_laplace_mechanism(
            self.noise, sampling_prob=self.rate, value_discretization_interval=interval
        )
