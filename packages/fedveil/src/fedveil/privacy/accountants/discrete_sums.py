"""Discrete Gaussian noise, and sums of discrete Gaussian shares, with or without Poisson sampling.

Unsampled sums are those of Kairouz, Liu, Steinke (2021). For a Poisson sample of rate q let
Q = N_Z(0, S^2)^d, s an integer vector with |s| <= D, and P = (1-q) Q + q Q(. - s). For every
integer order a >= 2, both D_a(P || Q) and D_a(Q || P) are at most log(A_a(q, D / S)) / (a - 1) with

    A_a(q, r) = sum_l binom(a, l) (1-q)^(a-l) q^l exp(l (l-1) r^2 / 2),

the value for continuous noise: expand the power of P/Q = 1 - q + q exp((2<y,s> - |s|^2) / (2 S^2))
and use that E exp(l <y,s> / S^2) = exp(l^2 |s|^2 / (2 S^2)) on the lattice; y -> s - y maps the
lattice to itself, which gives the other direction as in Mironov, Talwar, Zhang (2019), theorem 5.

A sum of h shares is within e^(+-defect) of a discrete Gaussian pointwise, which costs
(2a - 1) / (a - 1) * defect more. Releases that share one coin are one release on the product of
their lattices: squares of D / S and defects add up.

A person with up to k contributions, each by its own coin, is a mixture P = sum_i w_i Q_i with
w = Binomial(k, q) and shifts of norm at most i D. For any p_i with sum_{i>=1} w_i / p_i = 1 it is
the mixture of (1 - p_i) Q + p_i Q_i with weights w_i / p_i, and joint convexity bounds both
directions by log(sum_i (w_i / p_i) A_a(p_i, i D / S)) / (a - 1). The p_i are optimised; whatever
they are, the bound holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedveil.privacy.accountants.steps import DENSE, WHOLE, Curve, Orders, Step

_EXACT_TERMS = 1_000_000
_SEARCH_ROUNDS = 60


@dataclass(frozen=True)
class DiscreteSumStep(Step):
    """`count` unsampled sums of `shares` discrete Gaussians (Kairouz, Liu, Steinke 2021).

    l2, l1: sensitivity of the integer vector in grid units; share_std in grid units too.
    """

    l2: float
    l1: float
    share_std: float
    shares: int
    dimension: int
    count: int = 1
    theorem = "sums of discrete Gaussians (Kairouz, Liu, Steinke 2021)"

    def grouped(self, units: int) -> Step | None:
        return replace(self, l2=units * self.l2, l1=units * self.l1)

    def orders(self) -> Orders:
        return DENSE

    def renyi(self, orders: Orders) -> Curve:
        grid = np.array(orders, dtype=np.float64)
        return discrete_sum_curve(
            self.l2, self.l1, self.share_std, self.shares, self.dimension, grid
        )


@dataclass(frozen=True)
class PoissonDiscreteStep(Step):
    """`count` sums of discrete Gaussians on Poisson samples of `rate`; add-remove or zero-out.

    ratio: L2 bound of one contribution on the grid / std of the honest noise in the sum.
    defect: how far the noise is from one discrete Gaussian, over all coordinates (see above).
    units: most contributions of one person, each by its own coin.
    """

    ratio: float
    rate: float
    defect: float = 0.0
    units: int = 1
    count: int = 1
    theorem = (
        "Poisson sampling of discrete Gaussian sums (Mironov, Talwar, Zhang 2019 on a lattice)"
    )
    may_be_zero = ("defect",)

    def grouped(self, units: int) -> Step | None:
        return replace(self, units=units * self.units)

    def joined(self, other: PoissonDiscreteStep) -> PoissonDiscreteStep:
        """Return the one release that two releases which share a coin amount to."""
        return replace(
            self, ratio=math.hypot(self.ratio, other.ratio), defect=self.defect + other.defect
        )

    def orders(self) -> Orders:
        return WHOLE

    def renyi(self, orders: Orders) -> Curve:
        curve = np.empty(len(orders))
        logits: Curve | None = None
        for index, order in enumerate(map(int, orders)):
            if self.units == 1:
                log_moment = log_sampled_moment(order, self.rate, self.ratio)
            else:
                log_moment, logits = log_group_moment(
                    order, self.rate, self.ratio, self.units, logits
                )
            curve[index] = (log_moment + (2 * order - 1) * self.defect) / (order - 1)
        return curve


def log_sampled_moment(order: int, rate: float, ratio: float) -> float:
    """Return log A_order(rate, ratio): the bound on E_Q (P/Q)^order of a sampled Gaussian."""
    from scipy.special import gammaln, logsumexp

    if rate == 0:
        return 0.0
    if rate == 1:
        return order * (order - 1) / 2 * ratio**2
    power = np.arange(order + 1, dtype=np.float64)
    choose = gammaln(order + 1) - gammaln(power + 1) - gammaln(order - power + 1)
    mixed = power * math.log(rate) + (order - power) * math.log1p(-rate)
    logs = choose + mixed + power * (power - 1) / 2 * ratio**2
    return max(0.0, float(logsumexp(logs)))


def log_group_moment(
    order: int, rate: float, ratio: float, units: int, start: Curve | None = None
) -> tuple[float, Curve]:
    """Bound log E_Q (P/Q)^order for a person with up to `units` sampled contributions.

    Args:
        order: Integer Rényi order, at least 2.
        rate: Probability of each contribution.
        ratio: Norm bound of one contribution / std of the noise.
        units: Number of contributions.
        start: Logits of the weights w_i / p_i to begin the search with.

    Returns:
        The bound, and the logits at which it was found.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax
    from scipy.stats import binom

    shifts = np.arange(1, units + 1)
    present = binom.pmf(shifts, units, rate)

    def bound(logits: Curve) -> float:
        # Each weight must leave p_i = w_i / weight at most 1.
        spare = max(0.0, 1 - float(present.sum()))
        weights = present + spare * np.exp(log_softmax(logits))
        logs = [
            math.log(weight) + log_sampled_moment(order, min(1.0, share / weight), i * ratio)
            for i, share, weight in zip(shifts, present, weights, strict=True)
            if weight > 0
        ]
        return float(np.logaddexp.reduce(logs))

    begin = -np.arange(units, dtype=np.float64) if start is None else start
    found = minimize(bound, begin, method="L-BFGS-B", options={"maxiter": _SEARCH_ROUNDS})
    best = found.x if found.fun <= bound(begin) else begin
    return max(0.0, bound(best)), best


def sum_defect(share_std: float, shares: int) -> float:
    """Return how far a sum of `shares` discrete Gaussians is from one, per coordinate.

    The tau of Kairouz, Liu, Steinke 2021: 10 sum_k<n exp(-2 (pi std)^2 k/(k+1)), std in grid
    units. Below 1e-16 for std >= 2 and any practical number of shares.
    """
    terms = min(shares - 1, _EXACT_TERMS)
    if terms == 0:
        return 0.0
    k = np.arange(1, terms + 1, dtype=np.float64)
    values = np.exp(-2 * (math.pi * min(share_std, 1e6)) ** 2 * k / (k + 1))
    # Terms fall with k: those left out are at most the last one summed.
    return 10 * (float(np.sum(values)) + (shares - 1 - terms) * float(values[-1]))


def discrete_sum_curve(
    l2: float, l1: float, share_std: float, shares: int, dimension: int, orders: Curve
) -> Curve:
    """Return the Rényi divergence of one sum at each order: the smallest of three valid bounds.

    l2, l1: sensitivity in grid units, as share_std is.
    """
    tau, total_std = sum_defect(share_std, shares), math.sqrt(shares) * share_std
    l2, l1 = l2 / total_std, l1 / total_std
    bounds = (
        orders / 2 * l2**2 + tau * dimension,
        orders / 2 * (l2**2 + 2 * l1 * tau + tau**2 * dimension),
        orders / 2 * (l2 + math.sqrt(dimension) * tau) ** 2,
    )
    smallest: Curve = np.minimum(np.minimum(bounds[0], bounds[1]), bounds[2])
    return smallest
