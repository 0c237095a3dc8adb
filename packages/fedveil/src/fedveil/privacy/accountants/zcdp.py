"""Mechanisms known only to be rho-zCDP, with or without Poisson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedveil.privacy.accountants.steps import DENSE, WHOLE, Curve, Orders, Step


@dataclass(frozen=True)
class ZcdpStep(Step):
    """`count` mechanisms known to be rho-zCDP, on a Poisson sample of `rate`."""

    rho: float
    rate: float = 1.0
    count: int = 1
    theorem = "concentrated privacy of each release (Bun, Steinke 2016)"

    def grouped(self, units: int) -> Step | None:
        # Group privacy of zCDP is quadratic (Bun, Steinke 2016, proposition 1.9).
        sampled = self.rate < 1 and units > 1
        return None if sampled else replace(self, rho=self.rho * units**2)

    def zcdp(self) -> float | None:
        return self.rho if self.rate == 1 else None

    def orders(self) -> Orders:
        return DENSE if self.rate == 1 else WHOLE

    def renyi(self, orders: Orders) -> Curve:
        grid = np.array(orders, dtype=np.float64)
        curve: Curve = self.rho * grid
        return curve if self.rate == 1 else poisson_sampled_curve(curve, grid, self.rate)


def poisson_sampled_curve(curve: Curve, orders: Curve, rate: float) -> Curve:
    """Bound the Rényi curve of any mechanism after Poisson sampling (Zhu, Wang 2019, theorem 6).

    Valid under add-remove. Terms of order 3 and above carry a factor 3, which Gaussian noise,
    continuous or discrete, may drop.

    Args:
        curve: Rényi divergence of the unsampled mechanism at each order.
        orders: 2, 3, 4, ... without a gap.
        rate: Probability of being sampled, below 1.

    Returns:
        The bound at each order, never above `curve`.
    """
    from scipy.special import gammaln, logsumexp

    if not np.array_equal(orders, np.arange(2, len(orders) + 2)):
        raise ValueError("orders: need 2, 3, 4, ... without a gap")
    sampled = np.empty_like(curve)
    log_rate, log_rest = math.log(rate), math.log1p(-rate)
    for index, alpha in enumerate(orders):
        j = orders[: index + 1]
        choose = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(alpha - j + 1)
        terms = choose + j * log_rate + (alpha - j) * log_rest + (j - 1) * curve[: index + 1]
        terms[1:] += math.log(3)
        first = (alpha - 1) * log_rest + math.log1p((alpha - 1) * rate)
        sampled[index] = logsumexp(np.append(terms, first)) / (alpha - 1)
    return np.minimum(sampled, curve)
