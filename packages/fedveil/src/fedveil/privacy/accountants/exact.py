"""Closed forms: the exact curve of composed Gaussians, concentrated and pure privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedveil.privacy.accountants.steps import Step

_LITTLE_NOISE = 1e-3  # below, the exact curve needs more than double precision
_MUCH_NOISE = 1e9  # more noise is accounted as this much: beyond, differences cancel
_ROOT_TOLERANCE = 1e-11  # the library's root finder stops within 1e-12 of the root


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Exact epsilon at `delta` of one Gaussian with std / sensitivity = `noise`.

    Balle and Wang 2018. Adaptive composition of unsampled Gaussians is this curve again, with
    1 / noise**2 added up.
    """
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    if delta == 0:
        return math.inf
    if noise < _LITTLE_NOISE:
        return zcdp_epsilon(0.5 / noise**2 if noise > 1e-150 else math.inf, delta)
    with np.errstate(divide="ignore"):
        epsilon = float(get_epsilon_gaussian(min(noise, _MUCH_NOISE), delta))
    return epsilon + _ROOT_TOLERANCE * (1 + epsilon) if epsilon > 0 else 0.0


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The std / sensitivity at which one Gaussian meets (epsilon, delta) exactly."""
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)): valid for every rho-zCDP mechanism, and loose."""
    return math.inf if delta == 0 else rho + 2 * math.sqrt(rho * math.log(1 / delta))


def exact_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Exact epsilon if every step is an unsampled Gaussian."""
    return _composed_gaussians(steps, [step.gaussian() for step in steps], delta)


def unamplified_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Exact epsilon of Gaussians without sampling that reveal no less: an upper bound."""
    return _composed_gaussians(steps, [step.worst_gaussian() for step in steps], delta)


def concentrated_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """The closed zCDP bound if every step is an unsampled rho-zCDP mechanism."""
    rho = _added_up(steps, [step.zcdp() for step in steps])
    return None if rho is None else zcdp_epsilon(rho, delta)


def pure_epsilon(steps: Sequence[Step], delta: float = 0.0) -> float | None:
    """The sum of pure epsilons if every step has one; it holds at any delta."""
    return _added_up(steps, [step.pure() for step in steps])


def _composed_gaussians(
    steps: Sequence[Step], noises: Sequence[float | None], delta: float
) -> float | None:
    """The exact curve of the one Gaussian that all together amount to."""
    terms = []
    for step, noise in zip(steps, noises, strict=True):
        if noise is None or not noise > 0:
            return None
        terms.append(step.count * (1 / noise) ** 2)
    total = math.fsum(terms)
    return gaussian_epsilon(math.inf if total == 0 else 1 / math.sqrt(total), delta)


def _added_up(steps: Sequence[Step], values: Sequence[float | None]) -> float | None:
    total = 0.0
    for step, value in zip(steps, values, strict=True):
        if value is None or not value >= 0:
            return None
        total += step.count * value
    return total
