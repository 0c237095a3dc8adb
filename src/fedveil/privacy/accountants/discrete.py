"""Rényi curves of integer noise: sums of discrete Gaussians, and the generic Poisson bound."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Curve = npt.NDArray[np.float64]

_EXACT_TERMS = 1_000_000


def sum_defect(share_std: float, shares: int) -> float:
    """How far a sum of `shares` discrete Gaussians is from a discrete Gaussian, per coordinate.

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
    """Rényi divergence of one secure sum at each order: the smallest of three valid bounds.

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


def poisson_sampled_curve(curve: Curve, orders: Curve, rate: float) -> Curve:
    """Bound on the curve of any mechanism after Poisson sampling (Zhu, Wang 2019, theorem 6).

    `orders` must be 2, 3, 4, ... without a gap; add-remove adjacency. Terms of order 3 and above
    carry the factor 3 that the Gaussian mechanism alone may drop.
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
