"""Closed forms: the exact curve of composed Gaussians, and pure differential privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveil.privacy.accountants.steps import GaussianStep, LaplaceStep, Step


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Exact epsilon at `delta` of one Gaussian with std / sensitivity = `noise`.

    Balle and Wang 2018; adaptive composition of unsampled Gaussians is again this curve, with
    1/noise**2 added up.
    """
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise, delta))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The std / sensitivity at which one Gaussian meets (epsilon, delta) exactly."""
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta))


def composed_noise(steps: Sequence[GaussianStep]) -> float:
    """The single Gaussian that all `steps` together amount to."""
    total = math.fsum(step.count / step.noise**2 for step in steps)
    return math.inf if total == 0 else 1 / math.sqrt(total)


def exact_epsilon(steps: Sequence[Step], delta: float) -> float | None:
    """Exact epsilon if every step is an unsampled Gaussian and delta is above zero."""
    gaussians = [step for step in steps if isinstance(step, GaussianStep)]
    if len(gaussians) < len(steps) or delta == 0:
        return None
    noise = composed_noise(gaussians)
    return 0.0 if math.isinf(noise) else gaussian_epsilon(noise, delta)


def pure_epsilon(steps: Sequence[Step]) -> float | None:
    """Pure epsilon if every step is Laplace: log(1 + rate (e^(1/noise) - 1)), added up."""
    total = 0.0
    for step in steps:
        if not isinstance(step, LaplaceStep):
            return None
        total += step.count * _sampled(1 / step.noise, step.rate)
    return total


def _sampled(epsilon: float, rate: float) -> float:
    if rate == 1 or epsilon > 700:  # beyond 700 the exponential overflows; no credit then
        return epsilon
    return math.log1p(rate * math.expm1(epsilon))
