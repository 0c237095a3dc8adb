"""The noise constant C_M of Fu's convergence bound, corrected: equal or unequal clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveil.core.arguments import count, fraction, positive
from fedveil.core.errors import ConfigError


def size_imbalance(sizes: Sequence[int]) -> float:
    """Factor on the noise variance of size-weighted averaging (kappa); 1 for equal clients."""
    if len(sizes) == 0:
        raise ConfigError("sizes: no clients")
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
    _check(dimension, clients, gradient_sensitivity, imbalance)
    count("cohort", cohort)
    spread = gradient_sensitivity / (clients * positive("epsilon", epsilon))
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
    _check(dimension, clients, gradient_sensitivity, imbalance)
    std = gaussian_sigma(epsilon, delta) * gradient_sensitivity
    return 4 * dimension * std**2 * imbalance / clients


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Standard deviation over sensitivity of the exact Gaussian mechanism."""
    from dp_accounting import gaussian_mechanism  # half a second that others need not wait

    positive("epsilon", epsilon)
    return float(gaussian_mechanism.get_sigma_gaussian(epsilon, check_delta(delta)))


def check_delta(delta: float) -> float:
    if fraction("delta", delta) == 1:
        raise ConfigError("delta: need a number above 0 and below 1, got 1")
    return delta


def _check(dimension: int, clients: int, sensitivity: float, imbalance: float) -> None:
    count("dimension", dimension)
    count("clients", clients)
    positive("gradient_sensitivity", sensitivity)
    if not (math.isfinite(imbalance) and imbalance >= 1):
        raise ConfigError(f"imbalance = {imbalance}: N*sum(n^2)/(sum n)^2 is never below 1")
