"""Steps: what the accountants compose. Adjacency, collusion and missing shares are already in.

All noise here is relative to the *sensitivity* (how far one unit can move the released value
under the adjacency in force), not to the clip norm: `translation` has made the change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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
    """`count` Gaussians on Poisson samples cut to `cap`; add-remove among exactly `clients`."""

    noise: float
    clients: int
    rate: float
    cap: int
    count: int


@dataclass(frozen=True)
class ZeroedCappedPoissonGaussianStep(CappedPoissonGaussianStep):
    """The same under zero-out: the client keeps its place in the cohort and brings nothing."""


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


def merged(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Equal steps become one, in a fixed order, and empty ones go: composition does not mind."""
    counts: dict[Step, int] = {}
    for step in steps:
        if step.count:
            once = replace(step, count=1)
            counts[once] = counts.get(once, 0) + step.count
    return tuple(replace(once, count=counts[once]) for once in sorted(counts, key=repr))
