"""Steps: what the accountants compose. Adjacency, collusion and missing shares are already in.

All noise here is relative to the *sensitivity* (how far one unit can move the released value
under the adjacency in force), not to the clip norm: `translation` has made the change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GaussianStep:
    """`count` unsampled Gaussians with std / sensitivity = `noise`."""

    noise: float
    count: int


@dataclass(frozen=True)
class PoissonGaussianStep:
    """`count` Gaussians on Poisson samples of `rate`; add-remove or zero-out."""

    noise: float
    rate: float
    count: int


@dataclass(frozen=True)
class FixedSizeGaussianStep:
    """`count` Gaussians on samples without replacement; one unit replaced.

    noise: std / (2 * clip), the replacement sensitivity.
    """

    noise: float
    rate: float
    count: int


@dataclass(frozen=True)
class CappedPoissonGaussianStep:
    """`count` Gaussians on Poisson samples cut to `cap`; add-remove."""

    noise: float
    clients: int
    rate: float
    cap: int
    count: int


@dataclass(frozen=True)
class LaplaceStep:
    """`count` Laplace mechanisms with scale / L1 sensitivity = `noise`, on a share `rate`."""

    noise: float
    rate: float
    count: int


@dataclass(frozen=True)
class ZcdpStep:
    """`count` mechanisms known to be rho-zCDP, on a Poisson sample of `rate`."""

    rho: float
    rate: float
    count: int


@dataclass(frozen=True)
class DiscreteSumStep:
    """`count` times `uses` sums of `shares` discrete Gaussians (Kairouz, Liu, Steinke 2021).

    l2, l1: sensitivity of the integer vector in grid units; share_std in grid units too.
    uses: sums made from the same Poisson sample of `rate`.
    """

    l2: float
    l1: float
    share_std: float
    shares: int
    dimension: int
    uses: int
    rate: float
    count: int


Step = (
    GaussianStep
    | PoissonGaussianStep
    | FixedSizeGaussianStep
    | CappedPoissonGaussianStep
    | LaplaceStep
    | ZcdpStep
    | DiscreteSumStep
)
