"""Closed forms: the exact curve of composed Gaussians, concentrated and pure privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    FixedSizeGaussianStep,
    GaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
)

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


def composed_noise(steps: Sequence[GaussianStep]) -> float:
    """The std / sensitivity of the single Gaussian that all `steps` together amount to."""
    total = math.fsum(step.count * (1 / step.noise) ** 2 for step in steps)
    return math.inf if total == 0 else 1 / math.sqrt(total)


def exact_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Exact epsilon if every step is an unsampled Gaussian."""
    gaussians = [step for step in steps if isinstance(step, GaussianStep)]
    if len(gaussians) < len(steps):
        return None
    return gaussian_epsilon(composed_noise(gaussians), delta)


def unamplified_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Exact epsilon of the same Gaussians on everybody: an upper bound, as sampling only helps.

    A client that enters a capped cohort may push another one out: twice the sensitivity.
    """
    gaussians = []
    for step in steps:
        if isinstance(step, CappedPoissonGaussianStep):
            gaussians.append(GaussianStep(step.noise / 2, step.count))
        elif isinstance(step, (GaussianStep, PoissonGaussianStep, FixedSizeGaussianStep)):
            gaussians.append(GaussianStep(step.noise, step.count))
        else:
            return None
    return gaussian_epsilon(composed_noise(gaussians), delta)


def concentrated_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """The closed zCDP bound if every step is an unsampled rho-zCDP mechanism."""
    total = 0.0
    for step in steps:
        if not (isinstance(step, ZcdpStep) and step.rate == 1):
            return None
        total += step.count * step.rho
    return zcdp_epsilon(total, delta)


def pure_epsilon(steps: Sequence[Step]) -> float | None:
    """Pure epsilon if every step is Laplace: log(1 + rate (e^(1/noise) - 1)), added up."""
    total = 0.0
    for step in steps:
        if not isinstance(step, LaplaceStep):
            return None
        total += step.count * _sampled(1 / step.noise, step.rate)
    return total


def _sampled(epsilon: float, rate: float) -> float:
    if rate == 1 or epsilon > 700:  # the exponential would overflow: claim no credit
        return epsilon
    return math.log1p(rate * math.expm1(epsilon))
