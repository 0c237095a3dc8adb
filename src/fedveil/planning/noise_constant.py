"""The noise constant C_M of Fu's convergence bound, corrected: equal or unequal clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_accounting import gaussian_mechanism

from fedveil.errors import BadInput
from fedveil.privacy.arguments import count, fraction, positive


def size_imbalance(sizes: Sequence[int]) -> float:
    """Factor on the noise variance of size-weighted averaging (kappa); 1 for equal clients."""
    if len(sizes) == 0:
        raise BadInput("sizes: no clients")
    count("smallest client", min(sizes))
    return len(sizes) * math.fsum(n * n for n in sizes) / math.fsum(sizes) ** 2


def noise_constant_laplace(
    *,
    dimension: int,
    clients: int,
    cohort: int,
    epsilon: float,
    gradient_sensitivity: float,
    imbalance: float = 1.0,
) -> float:
    """C_M of the convergence bound for Laplace noise; growth with rounds has exponent z = 2.

    `gradient_sensitivity` is 2*clip_norm for REPLACE, clip_norm for ZERO_OUT (L1).
    """
    _check(dimension=dimension, clients=clients, cohort=cohort)
    positive("epsilon", epsilon)
    positive("gradient_sensitivity", gradient_sensitivity)
    _check_imbalance(imbalance)
    spread = gradient_sensitivity / (clients * epsilon)
    return 8 * dimension * cohort * spread**2 * imbalance


def noise_constant_gaussian(
    *,
    dimension: int,
    clients: int,
    epsilon: float,
    delta: float,
    gradient_sensitivity: float,
    imbalance: float = 1.0,
) -> float:
    """C_M of the convergence bound for Gaussian noise; growth with rounds has exponent z = 1."""
    _check(dimension=dimension, clients=clients)
    positive("epsilon", epsilon)
    positive("gradient_sensitivity", gradient_sensitivity)
    if fraction("delta", delta) == 1:
        raise BadInput(f"delta: need a number above 0 and below 1, got {delta!r}")
    _check_imbalance(imbalance)
    std = _sigma(epsilon, delta) * gradient_sensitivity
    return 4 * dimension * std**2 * imbalance / clients


def _sigma(epsilon: float, delta: float) -> float:
    return float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))


def _check_imbalance(imbalance: float) -> None:
    if not (math.isfinite(imbalance) and imbalance >= 1):
        raise BadInput(f"imbalance = {imbalance}: N*sum(n^2)/(sum n)^2 is never below 1")


def _check(**whole: int) -> None:
    for name, value in whole.items():
        count(name, value)
