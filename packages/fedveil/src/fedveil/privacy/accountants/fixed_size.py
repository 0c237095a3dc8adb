"""Gaussian noise on a sample without replacement, one unit replaced.

The Rényi curve is theorem 27 of Wang, Balle, Kasiviswanathan (2019) with the strengthened terms for
Gaussian noise. dp-accounting has the same bound, but takes the forward differences in double
precision, where they cancel: with much noise the high ones are rounding errors, some of them too
small. Here they are taken with as many digits as it needs, once for all orders.

The loss distribution needs care: under *replace* the adversary may meet the add curve in one region
of losses and the remove curve in another, so the larger of both hockey-stick curves is taken at
every point before anything is composed (Zhu, Dong, Wang 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from fedveil.privacy.accountants.loss_grid import loss_cells, rounded_upwards
from fedveil.privacy.accountants.poisson_gaussian import (
    LEAST_RATE,
    MUCH_NOISE,
    SampledGaussianStep,
    divergences,
)
from fedveil.privacy.accountants.steps import WHOLE, Curve, Orders


@dataclass(frozen=True)
class FixedSizeGaussianStep(SampledGaussianStep):
    """`count` Gaussians on samples without replacement; one unit replaced.

    noise: std / (2 * clip), the replacement sensitivity.
    """

    noise: float
    rate: float
    count: int = 1
    theorem = (
        "sampling without replacement (Wang, Balle, Kasiviswanathan 2019; Zhu, Dong, Wang 2022)"
    )

    def orders(self) -> Orders:
        return WHOLE

    def renyi(self, orders: Orders) -> Curve:
        noise, rate = min(self.noise, MUCH_NOISE), max(self.rate, LEAST_RATE)
        return fixed_size_curve(noise, rate, np.array(orders, dtype=np.float64))

    def losses(self, interval: float) -> Any:
        return symmetrised(self.noise, self.rate, interval)


def symmetrised(noise: float, rate: float, interval: float) -> Any:
    """Return the losses of one release under replace; `noise` is std / (2 * clip)."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    cells = loss_cells(noise, rate, interval)
    remove, add = divergences(noise, rate, np.arange(cells + 1, dtype=np.float64) * interval)
    either = np.maximum(remove, add)  # from loss 0 upwards it is `remove`; the rest is symmetry
    return PrivacyLossDistribution(rounded_upwards(either, either, interval))


def fixed_size_curve(noise: float, rate: float, orders: Curve) -> Curve:
    """Bound the Rényi curve at whole orders >= 2; `noise` is std / (2 * clip), rate < 1."""
    from scipy.special import gammaln, logsumexp

    top = int(orders.max())
    j = np.arange(2, top + 1)
    differences = log_differences(noise, top)
    terms = math.log(4) + 0.5 * (differences[2 * (j // 2)] + differences[2 * ((j + 1) // 2)])
    terms = np.minimum(terms, math.log(2) + j * (j - 1) / (2 * noise**2))
    second = noise**-2  # Rényi divergence of order two
    terms[0] = min(math.log(4) + second + math.log(-math.expm1(-second)), math.log(2) + second)
    terms += j * math.log(rate)
    curve = np.empty(len(orders))
    for index, alpha in enumerate(orders):
        here = j[j <= alpha]
        choose = gammaln(alpha + 1) - gammaln(here + 1) - gammaln(alpha - here + 1)
        curve[index] = logsumexp(np.append(terms[: len(here)] + choose, 0.0)) / (alpha - 1)
    return curve


def log_differences(noise: float, top: int) -> Curve:
    """Return logs of the forward differences at 0, of order 0 to top + 1, of the Gaussian moments.

    The moments are j -> exp(j (j-1) / (2 noise^2)).
    The difference of order l is E (p/q - 1)^l for the two Gaussians; even ones are positive.
    """
    from mpmath import mp

    # The difference of order l is about noise^-l: so many digits cancel.
    digits = 80 + math.ceil(1.2 * (top + 2) * max(0.0, math.log10(noise)))
    with mp.workdps(digits):
        curvature = 1 / (2 * mp.mpf(noise) ** 2)
        values = [mp.exp(curvature * j * (j - 1)) for j in range(top + 2)]
        logs = []
        while values:
            logs.append(float(mp.log(abs(values[0]))) if values[0] else -math.inf)
            values = [after - before for before, after in pairwise(values)]
    return np.array(logs)
