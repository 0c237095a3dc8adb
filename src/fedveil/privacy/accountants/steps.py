"""Steps: what the accountants compose. Adjacency, collusion and missing shares are already in.

All noise here is relative to the *sensitivity* (how far one unit can move the released value
under the adjacency in force), not to the clip norm: the mechanism has made the change.

A step answers each accountant's question about one release, or says None: then that accountant
has no bound. A step that answers none of them costs an infinite epsilon.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.privacy.accountants import curves
from fedveil.privacy.accountants.discrete import discrete_sum_curve, poisson_sampled_curve
from fedveil.privacy.accountants.without_replacement import fixed_size_curve

Curve = npt.NDArray[np.float64]
Orders = tuple[float, ...]

# Rényi orders. Each set holds the one before it, so that adding a step can never lower epsilon.
WHOLE: Orders = tuple(range(2, 129))
MIXED: Orders = tuple(
    sorted({1 + x / 10 for x in range(1, 100)} | set(WHOLE) | {160, 192, 256, 384, 512, 1024})
)
DENSE: Orders = tuple(sorted(set(MIXED) | set(range(11, 300)) | {2048.0, 4096.0, 1e4, 1e5, 1e6}))

_LEAST_RATE = 1e-12  # smaller rates are accounted as this one
_MUCH_NOISE = 1e5  # more noise is accounted as this much


class Step:
    """`count` equal releases. Subclasses are frozen dataclasses with a last field `count: int = 1`.

    theorem: what proves the answers below.
    """

    theorem: ClassVar[str] = ""
    count: int

    @property
    def failure(self) -> float:
        """Probability with which one release breaks what the answers below say; added to delta."""
        return 0.0

    @property
    def composed(self) -> int:
        """How often `losses` are composed."""
        return self.count

    def gaussian(self) -> float | None:
        """std / sensitivity, if one release is exactly an unsampled Gaussian."""
        return None

    def worst_gaussian(self) -> float | None:
        """std / sensitivity of an unsampled Gaussian that reveals no less."""
        return self.gaussian()

    def pure(self) -> float | None:
        """Epsilon of one release at delta 0."""
        return None

    def zcdp(self) -> float | None:
        """The rho of one release, if it is unsampled and rho-zCDP."""
        return None

    def orders(self) -> Orders | None:
        """The largest of WHOLE, MIXED and DENSE at which `renyi` is reliable; None: nowhere."""
        return None

    def renyi(self, orders: Orders) -> Curve:
        """Rényi divergence of one release at each order."""
        raise NotImplementedError

    def spread(self) -> float | None:
        """Size of one privacy loss, roughly its standard deviation; None if `losses` has none.

        It must grow with the rate and fall with the noise, which the grid relies on.
        """
        return None

    def largest_loss(self) -> float:
        """A bound on the losses that matter in one release."""
        return math.inf

    def losses(self, interval: float) -> Any:
        """dp-accounting's PrivacyLossDistribution of one release, rounded upwards to a grid."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianStep(Step):
    """`count` unsampled Gaussians with std / sensitivity = `noise`."""

    noise: float
    count: int = 1

    @property
    def composed(self) -> int:
        return 1  # unsampled Gaussians compose exactly, into one: see `_whole`

    @property
    def _whole(self) -> float:
        return self.noise / math.sqrt(self.count)

    def gaussian(self) -> float:
        return self.noise

    def orders(self) -> Orders:
        return DENSE

    def renyi(self, orders: Orders) -> Curve:
        return np.array(orders, dtype=np.float64) / 2 * (1 / self.noise) ** 2

    def spread(self) -> float:
        return math.sqrt(self.count) / self.noise

    def largest_loss(self) -> float:
        return curves.gaussian_loss(self._whole)

    def losses(self, interval: float) -> Any:
        from dp_accounting.pld import privacy_loss_distribution as pld

        return pld.from_gaussian_mechanism(self._whole, value_discretization_interval=interval)


@dataclass(frozen=True)
class SelectionStep(GaussianStep):
    """`count` selections of values whose noisy votes exceed a threshold.

    Values that somebody else has too are released as by a Gaussian. Values that one unit alone
    has appear with probability `missed` at most: a mechanism that is (0, missed)-private.
    """

    missed: float = 0.0
    theorem = "selection above a threshold (Gopi et al. 2020) and basic composition"

    @property
    def failure(self) -> float:
        return self.missed


class _SampledGaussian(Step):
    """What Gaussians on a secret sample share."""

    noise: float
    rate: float

    def worst_gaussian(self) -> float:
        return self.noise

    def spread(self) -> float:
        squared = min(self.noise**-2, 600.0)
        return math.sqrt(math.log1p(self.rate**2 * math.expm1(squared)))

    def largest_loss(self) -> float:
        return curves.gaussian_loss(self.noise)


@dataclass(frozen=True)
class PoissonGaussianStep(_SampledGaussian):
    """`count` Gaussians on Poisson samples of `rate`; add-remove or zero-out."""

    noise: float
    rate: float
    count: int = 1
    theorem = "Poisson sampling of a Gaussian (Mironov, Talwar, Zhang 2019)"

    def orders(self) -> Orders:
        return MIXED

    def renyi(self, orders: Orders) -> Curve:
        from dp_accounting import dp_event

        gaussian = dp_event.GaussianDpEvent(min(self.noise, _MUCH_NOISE))
        return _library(
            dp_event.PoissonSampledDpEvent(max(self.rate, _LEAST_RATE), gaussian), orders
        )

    def losses(self, interval: float) -> Any:
        return curves.poisson(self.noise, self.rate, interval)


@dataclass(frozen=True)
class FixedSizeGaussianStep(_SampledGaussian):
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
        noise, rate = min(self.noise, _MUCH_NOISE), max(self.rate, _LEAST_RATE)
        return fixed_size_curve(noise, rate, np.array(orders, dtype=np.float64))

    def losses(self, interval: float) -> Any:
        return curves.symmetrised(self.noise, self.rate, interval)


@dataclass(frozen=True)
class CappedPoissonGaussianStep(_SampledGaussian):
    """`count` Gaussians on Poisson samples cut to `cap`; add-remove among exactly `clients`.

    A client that enters a capped cohort may push another one out: twice the sensitivity.
    """

    noise: float
    clients: int
    rate: float
    cap: int
    count: int = 1
    theorem = "truncated Poisson sampling (arXiv 2508.15089)"

    def worst_gaussian(self) -> float:
        return self.noise / 2

    def largest_loss(self) -> float:
        return curves.gaussian_loss(self.noise / 4)  # a displaced client doubles the step, twice

    def losses(self, interval: float) -> Any:
        return curves.capped(self.noise, self.clients, self.rate, self.cap, interval)


@dataclass(frozen=True)
class ZeroedCappedPoissonGaussianStep(CappedPoissonGaussianStep):
    """The same under zero-out: the client keeps its place in the cohort and brings nothing."""

    theorem = (
        "truncated Poisson sampling by advanced joint convexity (Balle, Barthe, Gaboardi 2018)"
    )

    def losses(self, interval: float) -> Any:
        return curves.zeroed_capped(self.noise, self.clients, self.rate, self.cap, interval)


@dataclass(frozen=True)
class LaplaceStep(Step):
    """`count` Laplace mechanisms with scale / L1 sensitivity = `noise`, on a share `rate`."""

    noise: float
    rate: float = 1.0
    count: int = 1
    theorem = "the Laplace mechanism in L1 (Dwork et al. 2006)"

    def pure(self) -> float:
        """log(1 + rate (e^(1/noise) - 1))."""
        epsilon = 1 / self.noise
        if self.rate == 1 or epsilon > 700:  # the exponential would overflow: claim no credit
            return epsilon
        return math.log1p(self.rate * math.expm1(epsilon))

    def orders(self) -> Orders | None:
        return DENSE if self.rate == 1 else None

    def renyi(self, orders: Orders) -> Curve:
        from dp_accounting import dp_event

        return _library(dp_event.LaplaceDpEvent(self.noise), orders)

    def spread(self) -> float:
        return math.sqrt(math.log1p((self.rate * math.expm1(min(1 / self.noise, 30.0))) ** 2))

    def largest_loss(self) -> float:
        return 1 / self.noise

    def losses(self, interval: float) -> Any:
        from dp_accounting.pld import privacy_loss_distribution as pld

        return pld.from_laplace_mechanism(
            self.noise, sampling_prob=self.rate, value_discretization_interval=interval
        )


@dataclass(frozen=True)
class ZcdpStep(Step):
    """`count` mechanisms known to be rho-zCDP, on a Poisson sample of `rate`."""

    rho: float
    rate: float = 1.0
    count: int = 1
    theorem = "concentrated privacy of each release (Bun, Steinke 2016)"

    def zcdp(self) -> float | None:
        return self.rho if self.rate == 1 else None

    def orders(self) -> Orders:
        return DENSE if self.rate == 1 else WHOLE

    def renyi(self, orders: Orders) -> Curve:
        grid = np.array(orders, dtype=np.float64)
        return _perhaps_sampled(self.rho * grid, grid, self.rate)


@dataclass(frozen=True)
class DiscreteSumStep(Step):
    """`count` times `uses` sums of `shares` discrete Gaussians (Kairouz, Liu, Steinke 2021).

    l2, l1: sensitivity of the integer vector in grid units; share_std in grid units too.
    uses: sums made from the same Poisson sample of `rate`.
    """

    l2: float
    l1: float
    share_std: float
    shares: int
    dimension: int
    uses: int = 1
    rate: float = 1.0
    count: int = 1
    theorem = "sums of discrete Gaussians (Kairouz, Liu, Steinke 2021)"

    def orders(self) -> Orders:
        return DENSE if self.rate == 1 else WHOLE

    def renyi(self, orders: Orders) -> Curve:
        grid = np.array(orders, dtype=np.float64)
        sums = discrete_sum_curve(
            self.l2, self.l1, self.share_std, self.shares, self.dimension, grid
        )
        return _perhaps_sampled(self.uses * sums, grid, self.rate)


def with_count(step: Step, count: int) -> Step:
    """So many of the same release."""
    made: Any = step
    again: Step = replace(made, count=count)
    return again


def checked(step: object) -> Step:
    """A step whose numbers are usable: whoever made it, noise must be finite and above zero."""
    if not isinstance(step, Step):
        raise ConfigError(f"step: need a Step, got {step!r}")
    named: Any = step
    for name in (field.name for field in fields(named)):
        value = getattr(step, name)
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            raise ConfigError(f"step: {name} of {step!r} must be finite and above 0")
    return step


def merged(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Equal steps become one, in a fixed order, and empty ones go: composition does not mind."""
    counts: dict[Step, int] = {}
    for step in steps:
        if step.count:
            once = with_count(step, 1)
            counts[once] = counts.get(once, 0) + step.count
    return tuple(with_count(once, counts[once]) for once in sorted(counts, key=repr))


def _perhaps_sampled(curve: Curve, grid: Curve, rate: float) -> Curve:
    return curve if rate == 1 else poisson_sampled_curve(curve, grid, rate)


def _library(event: Any, orders: Orders) -> Curve:
    """dp-accounting's curve. Orders that do not converge come out infinite."""
    from dp_accounting.rdp import RdpAccountant

    with quiet():
        curve: Curve = RdpAccountant(orders).compose(event).rdp
    return curve


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's complaints about orders that do not converge."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        logger.disabled = before
