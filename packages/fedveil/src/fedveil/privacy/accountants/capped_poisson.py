"""Gaussian noise on a Poisson sample that is cut to a random subset of at most `cap` clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedveil.privacy.accountants.fixed_size import symmetrised
from fedveil.privacy.accountants.loss_grid import gaussian_loss
from fedveil.privacy.accountants.poisson_gaussian import SampledGaussianStep, poisson, replaced


@dataclass(frozen=True)
class CappedPoissonGaussianStep(SampledGaussianStep):
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
        return gaussian_loss(self.noise / 4)  # a displaced client doubles the step, twice

    def losses(self, interval: float) -> Any:
        return capped(self.noise, self.clients, self.rate, self.cap, interval)


@dataclass(frozen=True)
class ZeroedCappedPoissonGaussianStep(CappedPoissonGaussianStep):
    """Capped Poisson sampling under zero-out: the client keeps its place and adds nothing."""

    theorem = (
        "truncated Poisson sampling by advanced joint convexity (Balle, Barthe, Gaboardi 2018)"
    )

    def losses(self, interval: float) -> Any:
        return zeroed_capped(self.noise, self.clients, self.rate, self.cap, interval)


def capped(noise: float, clients: int, rate: float, cap: int, interval: float) -> Any:
    """Return the losses of one release under add-remove (arXiv 2508.15089).

    Where nothing is cut it is a Poisson step. Where something is, a client that comes in pushes
    another one out: twice the sensitivity, bounded by replacement in a sample.
    """
    from scipy.stats import binom

    plain = poisson(noise, rate, interval)
    cut = float(binom.sf(cap - 1, clients - 1, rate))  # given that the client was drawn
    if cut == 0:
        return plain
    kept = float(binom.sf(cap, clients, rate)) * cap / (cut * clients)  # given that some are cut
    return replaced(noise / 2, min(1.0, kept), interval).compute_mixture(plain, cut)


def zeroed_capped(noise: float, clients: int, rate: float, cap: int, interval: float) -> Any:
    """Return the losses of one release under zero-out, for at most `clients` clients.

    Given who else came, nobody is cut, and it is a Poisson step; or somebody is. Then the sums with
    the client and without its contribution are one clip apart, and neither is further than two
    clips from the sum without the client. By advanced joint convexity (Balle, Barthe, Gaboardi
    2018) neither direction's divergence exceeds that of a Poisson step with half the noise.
    """
    from scipy.stats import binom

    plain, cut = poisson(noise, rate, interval), float(binom.sf(cap - 1, clients - 1, rate))
    return plain if cut == 0 else symmetrised(noise / 2, rate, interval).compute_mixture(plain, cut)
