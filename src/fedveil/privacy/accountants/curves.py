"""One step as a pair of discretised privacy loss distributions, rounded upwards.

Poisson and capped Poisson Gaussians and Laplace come from dp-accounting. Fixed-size sampling is
built here: under *replace* the adversary may meet the add curve in one region of losses and the
remove curve in another, so the larger of both hockey-stick curves is taken at every point before
anything is composed (Zhu, Dong, Wang 2022, theorem on sampling without replacement).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    FixedSizeGaussianStep,
    GaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
)

Floats = npt.NDArray[np.float64]

# Beyond this loss exp() would leave the range of floats; such noise protects nobody anyway.
LARGEST_LOSS = 600.0
_TAIL_STDS = 12.0  # Gaussian tails beyond 12 standard deviations hold less than 2e-33


def spread(step: Step) -> float | None:
    """Size of one privacy loss, roughly its standard deviation; None if no curve is known.

    It grows with the rate and falls with the noise, which `pld.interval` relies on.
    """
    if isinstance(step, GaussianStep):
        return math.sqrt(step.count) / step.noise
    if isinstance(step, LaplaceStep):
        return math.sqrt(math.log1p((step.rate * math.expm1(min(1 / step.noise, 30.0))) ** 2))
    if isinstance(step, (PoissonGaussianStep, FixedSizeGaussianStep, CappedPoissonGaussianStep)):
        squared = min(step.noise**-2, 600.0)
        return math.sqrt(math.log1p(step.rate**2 * math.expm1(squared)))
    return None


def largest_loss(step: Step) -> float:
    """A bound on the losses that matter in one step."""
    if isinstance(step, LaplaceStep):
        return 1 / step.noise
    if isinstance(step, GaussianStep):
        return _gaussian_loss(step.noise / math.sqrt(step.count))
    if isinstance(step, CappedPoissonGaussianStep):
        return _gaussian_loss(step.noise / 4)  # a displaced client doubles the step, twice over
    if isinstance(step, (PoissonGaussianStep, FixedSizeGaussianStep)):
        return _gaussian_loss(step.noise)
    return math.inf


def _gaussian_loss(noise: float) -> float:
    return 1 / (2 * noise**2) + _TAIL_STDS / noise


def single_step(step: Step, interval: float) -> tuple[Any, int]:
    """The distribution of one step on multiples of `interval`, and how often it is composed."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(step, GaussianStep):  # unsampled Gaussians compose exactly
        noise = step.noise / math.sqrt(step.count)
        return pld.from_gaussian_mechanism(noise, value_discretization_interval=interval), 1
    if isinstance(step, PoissonGaussianStep):
        return pld.from_gaussian_mechanism(
            step.noise, sampling_prob=step.rate, value_discretization_interval=interval
        ), step.count
    if isinstance(step, LaplaceStep):
        return pld.from_laplace_mechanism(
            step.noise, sampling_prob=step.rate, value_discretization_interval=interval
        ), step.count
    if isinstance(step, CappedPoissonGaussianStep):
        return pld.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=step.clients,
            sampling_probability=step.rate,
            truncated_batch_size=step.cap,
            noise_multiplier=step.noise,
            value_discretization_interval=interval,
        ), step.count
    if isinstance(step, FixedSizeGaussianStep):
        return symmetrised(step.noise, step.rate, interval), step.count
    raise TypeError(f"no privacy loss distribution for {step!r}")


def symmetrised(noise: float, rate: float, interval: float) -> Any:
    """One fixed-size step under replace; `noise` is std / (2 * clip).

    Pessimistic at every point: the tail beyond the grid counts as infinite loss.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    loss = min(LARGEST_LOSS, _gaussian_loss(noise))
    reach = max(1, math.ceil(math.log1p(rate * math.expm1(loss)) / interval))
    losses = np.arange(reach + 1, dtype=np.float64) * interval
    upper = _largest_divergence(noise, rate, losses)
    # The pair is symmetric, so negative losses follow from H_1/a(P,Q) = 1 - 1/a + H_a(Q,P)/a.
    shrink = np.exp(-losses[:0:-1])
    deltas = np.concatenate([1 - shrink + shrink * upper[:0:-1], upper])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -reach, reach, _not_increasing(deltas)
    )
    return PrivacyLossDistribution(pmf)


def _largest_divergence(noise: float, rate: float, losses: Floats) -> Floats:
    """max of the remove and the add hockey-stick divergence at each loss >= 0."""
    from scipy.special import ndtr

    growth = np.exp(losses)
    # Remove: (1-q)N(0) + qN(1) against N(0); its loss exceeds log(growth) to the right of `cut`.
    cut = noise**2 * np.log((growth - 1 + rate) / rate) + 0.5
    remove = rate * ndtr((1 - cut) / noise) + (1 - rate - growth) * ndtr(-cut / noise)
    # Add: N(0) against (1-q)N(0) + qN(1); its loss never exceeds -log(1-q).
    inside = (1 / growth - 1 + rate) / rate
    possible = inside > 0
    cut = noise**2 * np.log(np.where(possible, inside, 1.0)) + 0.5
    add = (1 - growth * (1 - rate)) * ndtr(cut / noise) - growth * rate * ndtr((cut - 1) / noise)
    largest: Floats = np.maximum(np.maximum(remove, np.where(possible, add, 0.0)), 0.0)
    return largest


def _not_increasing(deltas: Floats) -> Floats:
    """The smallest non-increasing curve above `deltas`: irons out rounding, upwards only."""
    ironed: Floats = np.maximum.accumulate(deltas[::-1])[::-1]
    return np.minimum(ironed, 1.0)
