"""Gaussian noise on a Poisson sample: every unit takes part by an independent coin.

Three pairs of distributions dominate one release (std of the noise in units of the clip):

* one unit added, removed or zeroed: (1-q) N(0) + q N(1) against N(0);
* one unit replaced: (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1);
* a person with k contributions, each by its own coin: sum_i Binomial(k, q)(i) N(i) against N(0).
  It dominates for any k vectors, chosen adaptively: norms add up at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.privacy.accountants.loss_grid import (
    Floats,
    gaussian_loss,
    loss_cells,
    rounded_upwards,
)
from fedveil.privacy.accountants.steps import MIXED, Curve, Orders, Step, library_curve

LEAST_RATE = 1e-12  # smaller rates are accounted as this one
MUCH_NOISE = 1e5  # more noise is accounted as this much
_BISECTIONS = 80  # from any bracket of floats down to neighbouring ones, for practical noise


class SampledGaussianStep(Step):
    """The bounds shared by all Gaussians on a secret sample."""

    noise: float
    rate: float

    def worst_gaussian(self) -> float:
        return self.noise

    def spread(self) -> float:
        return sampled_spread(self.noise, self.rate)

    def largest_loss(self) -> float:
        return gaussian_loss(self.noise)


@dataclass(frozen=True)
class PoissonGaussianStep(SampledGaussianStep):
    """`count` Gaussians on Poisson samples of `rate`; add-remove or zero-out."""

    noise: float
    rate: float
    count: int = 1
    theorem = "Poisson sampling of a Gaussian (Mironov, Talwar, Zhang 2019)"

    def grouped(self, units: int) -> Step | None:
        return self if units == 1 else PoissonGroupStep(self.noise, self.rate, units, self.count)

    def orders(self) -> Orders:
        return MIXED

    def renyi(self, orders: Orders) -> Curve:
        from dp_accounting import dp_event

        gaussian = dp_event.GaussianDpEvent(min(self.noise, MUCH_NOISE))
        return library_curve(
            dp_event.PoissonSampledDpEvent(max(self.rate, LEAST_RATE), gaussian), orders
        )

    def losses(self, interval: float) -> Any:
        return poisson(self.noise, self.rate, interval)


@dataclass(frozen=True)
class ReplacedPoissonGaussianStep(SampledGaussianStep):
    """`count` Gaussians on Poisson samples of `rate`; one unit replaced.

    noise: std / clip, not std / (2 * clip): the coin hides the old and the new value alike.
    """

    noise: float
    rate: float
    count: int = 1
    theorem = "Poisson sampling of a Gaussian with one unit replaced (Zhu, Dong, Wang 2022)"

    def worst_gaussian(self) -> float:
        return self.noise / 2

    def spread(self) -> float:
        return sampled_spread(self.noise / 2, self.rate)

    def largest_loss(self) -> float:
        return gaussian_loss(self.noise / 2)

    def losses(self, interval: float) -> Any:
        return replaced(self.noise, self.rate, interval)


@dataclass(frozen=True)
class PoissonGroupStep(SampledGaussianStep):
    """`count` Gaussians to which one person contributes up to `units` times, each by its own coin.

    Add-remove or zero-out of the whole person.
    """

    noise: float
    rate: float
    units: int
    count: int = 1
    theorem = "mixtures of Gaussians (Choquette-Choo et al. 2024)"

    def worst_gaussian(self) -> float:
        return self.noise / self.units

    def spread(self) -> float:
        # Grows with the rate and falls with the noise, as the grid needs; between the spread of
        # one contribution and that of `units` which come together.
        return self.units * sampled_spread(self.noise, self.rate)

    def largest_loss(self) -> float:
        return gaussian_loss(self.noise / self.units)

    def losses(self, interval: float) -> Any:
        return poisson_group(self.noise, self.rate, self.units, interval)


def sampled_spread(noise: float, rate: float) -> float:
    """Return the square root of log(1 + rate^2 (e^(1/noise^2) - 1)), the size of one loss."""
    return math.sqrt(math.log1p(rate**2 * math.expm1(min(noise**-2, 600.0))))


def poisson(noise: float, rate: float, interval: float) -> Any:
    """Return the losses of one Poisson-sampled Gaussian, both directions rounded upwards.

    dp-accounting builds the same pair point by point; here all points are one array operation.
    """
    return _pair(
        loss_cells(noise, rate, interval),
        rate,
        interval,
        lambda losses: divergences(noise, rate, losses),
    )


def poisson_group(noise: float, rate: float, units: int, interval: float) -> Any:
    """Return the losses of a Gaussian with up to `units` sampled contributions of one person."""
    missing = (1 - rate) ** units  # the person is in no sample at all
    cells = loss_cells(noise / units, 1 - missing, interval)
    return _pair(
        cells, 1 - missing, interval, lambda losses: group_divergences(noise, rate, units, losses)
    )


def _pair(
    cells: int,
    rate: float,
    interval: float,
    divergences: Callable[[Floats], tuple[Floats, Floats]],
) -> Any:
    """Return both directions of a pair whose second one never loses more than -log(1 - rate)."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    bound = -math.log1p(-rate) / interval if rate < 1 else math.inf
    short = cells if bound > cells else math.ceil(bound) + 1
    remove, add = divergences(np.arange(cells + 1, dtype=np.float64) * interval)
    return PrivacyLossDistribution(
        rounded_upwards(remove, add[: short + 1], interval),
        rounded_upwards(add[: short + 1], remove, interval),
    )


def divergences(noise: float, rate: float, losses: Floats) -> tuple[Floats, Floats]:
    """Return hockey-stick divergences of a sampled Gaussian at each loss >= 0: remove, then add."""
    from scipy.special import ndtr

    growth = np.exp(losses)
    # Remove: (1-q)N(0) + qN(1) against N(0); its loss exceeds log(growth) to the right of `cut`.
    cut = noise**2 * np.log((growth - 1 + rate) / rate) + 0.5
    remove = rate * ndtr((1 - cut) / noise) + (1 - rate - growth) * ndtr(-cut / noise)
    # Add: N(0) against (1-q)N(0) + qN(1), to the left of `cut`; never beyond -log(1-q).
    inside = (1 / growth - 1 + rate) / rate
    possible = inside > 0
    cut = noise**2 * np.log(np.where(possible, inside, 1.0)) + 0.5
    add = (1 - growth * (1 - rate)) * ndtr(cut / noise) - growth * rate * ndtr((cut - 1) / noise)
    return np.maximum(remove, 0.0), np.maximum(np.where(possible, add, 0.0), 0.0)


def group_divergences(
    noise: float, rate: float, units: int, losses: Floats
) -> tuple[Floats, Floats]:
    """Return hockey-stick divergences of a mixture of Gaussians at each loss >= 0.

    Args:
        noise: Std of the noise over the clip of one contribution.
        rate: Probability of each contribution.
        units: Number of contributions, which all point the same way.
        losses: Where to evaluate, all >= 0.

    Returns:
        The divergences of (mixture, N(0)) and of (N(0), mixture).
    """
    from scipy.special import ndtr
    from scipy.stats import binom

    shifts = np.arange(units + 1, dtype=np.float64)[:, None]
    logs = binom.logpmf(shifts, units, rate)
    weights = np.exp(logs)
    growth = np.exp(losses)
    # The loss of the mixture rises with x, so each divergence is an integral over a half-line.
    cut = _where_loss_is(losses, noise, logs, shifts)
    remove = np.sum(weights * ndtr((shifts - cut) / noise), axis=0) - growth * ndtr(-cut / noise)
    cut = _where_loss_is(-losses, noise, logs, shifts)
    add = ndtr(cut / noise) - growth * np.sum(weights * ndtr((cut - shifts) / noise), axis=0)
    possible = -losses > logs[0, 0]  # never beyond the chance of not being there at all
    return np.maximum(remove, 0.0), np.maximum(np.where(possible, add, 0.0), 0.0)


def _where_loss_is(losses: Floats, noise: float, logs: Floats, shifts: Floats) -> Floats:
    """Return the x at which log(mixture(x) / N(0)(x)) equals each loss, by bisection."""
    from scipy.special import logsumexp

    top = float(shifts[-1, 0])
    low = np.full(losses.shape, -(noise**2) * 800.0 - 40 * noise)
    high = noise**2 * (np.abs(losses) - logs[-1, 0]) / top + top
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        loss = logsumexp(logs + (shifts * middle - shifts**2 / 2) / noise**2, axis=0)
        low, high = np.where(loss < losses, middle, low), np.where(loss < losses, high, middle)
    cut: Floats = (low + high) / 2
    return cut


def replaced(noise: float, rate: float, interval: float) -> Any:
    """Return the losses of (1-q)N(0) + qN(1) against (1-q)N(0) + qN(-1), which are symmetric."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from scipy.special import ndtr

    cells = loss_cells(noise / 2, rate, interval)
    losses = np.arange(cells + 1, dtype=np.float64) * interval
    # The loss exceeds `losses` to the right of `cut`, the root of a quadratic in exp(x / noise^2).
    half, shape = (1 - rate) * -np.expm1(-losses), rate * math.exp(-0.5 / noise**2)
    root = half + np.sqrt(half**2 + 4 * shape**2 * np.exp(-losses))
    cut = noise**2 * (np.log(root) + losses - math.log(2 * rate)) + 0.5
    outside = -(1 - rate) * np.expm1(losses) * ndtr(-cut / noise)
    inside = rate * (ndtr((1 - cut) / noise) - np.exp(losses) * ndtr((-1 - cut) / noise))
    divergence = np.maximum(outside + inside, 0.0)
    return PrivacyLossDistribution(rounded_upwards(divergence, divergence, interval))
