"""Noise that partly cancels from round to round, for public schedules (the matrix mechanism).

A factor is a lower triangular Toeplitz matrix C with b bands, given by its first column c. With
fresh Gaussian noise g of std sigma the rounds release

    y = x + w   where   C w = g,   so that   C y = C x + g,

which is the Gaussian mechanism on C x, post-processed. If any two rounds of a client are at least
b apart, the bands that it touches do not overlap: k participations move C x by at most
clip * sqrt(k) * |c|, adaptively and whatever its updates are (Denisov et al. 2022; Choquette-Choo
et al. 2023). Nothing of this depends on which c is taken; a good one has noise of past rounds
taken back by later ones, before it has added up in the weights.

Cutting the history short, as after a crash, leaves columns of C out below some row: their norms
and supports only shrink, and the bound holds as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import settle
from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.contract import Mechanism, Use, mechanism
from fedveil.privacy.mechanisms import EVERY_ADJACENCY
from fedveil.privacy.refusals import SeparationRefused

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release

BITS = 12  # coefficients are multiples of 2^-12: on a grid that much finer C x is exact
ONE = 1 << BITS

Factor = tuple[int, ...]  # c_0 = ONE, c_1, ... in units of 2^-12, falling: then w stays small
Floats = npt.NDArray[np.float64]


class FactorKind(StrEnum):
    """How the coefficients are chosen."""

    SQUARE_ROOT = "square-root"  # of the matrix of prefix sums: binom(2j, j) / 4^j
    OPTIMISED = "optimised"  # the least error of the weights over all rounds


@mechanism("correlated-gaussian")
@dataclass(frozen=True)
class CorrelatedGaussian(Mechanism):
    """Gaussian noise that is correlated between rounds by a banded factor.

    noise_multiplier: std of the fresh noise of one round / L2 clip of one unit.
    factor: the first column of the factor in units of 2^-12, beginning with 4096.
    """

    noise_multiplier: float
    factor: Factor
    law = "Gaussian noise that partly cancels between rounds"
    level = "noise_multiplier"
    trusts = frozenset({Trust.CENTRAL})
    adjacencies = EVERY_ADJACENCY

    def __post_init__(self) -> None:
        super().__post_init__()
        settle(self, factor=_checked(self.factor))

    @property
    def bands(self) -> int:
        return len(self.factor)

    @property
    def norm(self) -> float:
        """The length of the first column, rounded up."""
        square = Fraction(sum(c * c for c in self.factor), ONE * ONE)
        root = math.sqrt(square)
        while Fraction(root) ** 2 < square:
            root = math.nextafter(root, math.inf)
        return root

    def step(self, use: Use) -> Step:
        return use.gaussian(self.noise_multiplier / (use.factor * self.norm))

    def check(self, release: Release, model: PrivacyModel) -> None:
        if release.amplified:
            raise SeparationRefused(
                "correlated noise on secret random cohorts has no proved amplification",
                "use sampling round-robin, or independent Gaussian noise",
            )
        if self.bands == 1:
            return
        if release.participations is not None:
            raise SeparationRefused(
                f"noise correlated over {self.bands} rounds with a count of participations: how "
                "often a client took part does not tell how far apart",
                "use a public schedule (round-robin), or independent Gaussian noise",
            )
        apart = release.sampling.separation
        if apart < self.bands:
            raise SeparationRefused(
                f"noise correlated over {self.bands} rounds, and a client may take part again "
                f"after {apart}: what it adds would meet itself",
                f"use at most {apart} bands, or sampling round-robin with cohorts of at most "
                f"1/{self.bands} of the clients",
            )

    def rests_on(self) -> tuple[str, ...]:
        if self.bands == 1:
            return ()
        past = "round" if self.bands == 2 else f"{self.bands - 1} rounds"
        return (
            f"From one turn of a client to its next there are at least {self.bands} rounds.",
            f"The noise of the last {past} stays secret with the aggregator, in memory alone: who "
            "knows it can take it off.",
        )

    def describe(self) -> str:
        return f"{super().describe()}, {self.bands} bands"


def _checked(given: Any) -> Factor:
    whole = isinstance(given, (list, tuple)) and all(type(one) is int for one in given)
    if not whole or not given or given[0] != ONE or list(given) != sorted(given, reverse=True):
        raise ConfigError(
            f"factor: need whole numbers (units of 1/{ONE}) that begin with {ONE} and do not rise, "
            f"got {given!r}"
        )
    if given[-1] < 0:
        raise ConfigError(f"factor: need numbers of at least 0, got {given!r}")
    return tuple(given)


@lru_cache(maxsize=64)
def factor_of(kind: FactorKind, bands: int, rounds: int, momentum: float = 0.0) -> Factor:
    """A factor with this many bands; an optimised one is fitted to a server's momentum."""
    column = _square_root(bands)
    if kind is FactorKind.OPTIMISED and bands > 1:
        column = _optimised(column, rounds, momentum)
    falling = np.minimum.accumulate(np.clip(column, 0.0, 1.0))
    return tuple(int(c) for c in np.rint(falling * ONE))


def noise_ratio(factor: Factor, rounds: int, momentum: float = 0.0) -> float:
    """RMS error of the weights over all rounds, beside that of independent noise of one multiplier.

    Both are noise multipliers at the same epsilon once each is divided by its sensitivity.
    """
    column, steps = np.array(factor) / ONE, _steps(rounds, momentum)
    return math.sqrt(_error(column, steps)[0] / _error(np.ones(1), steps)[0])


def _square_root(bands: int) -> Floats:
    ahead = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * ahead - 1) / (2 * ahead))])


def _steps(rounds: int, momentum: float) -> Floats:
    """How far a round's update has moved the weights j rounds later."""
    return np.cumsum(momentum ** np.arange(rounds))


def _optimised(start: Floats, rounds: int, momentum: float) -> Floats:
    from scipy.optimize import minimize

    steps = _steps(rounds, momentum)

    def cost(rest: Floats) -> tuple[float, Floats]:
        column = np.concatenate([[1.0], rest])
        error, slope = _error(column, steps)
        square = float(column @ column)
        return math.log(error) + math.log(square), slope[1:] / error + 2 * rest / square

    found = minimize(
        cost, start[1:], jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0)] * (len(start) - 1)
    )
    return np.concatenate([[1.0], found.x])


def _error(column: Floats, steps: Floats) -> tuple[float, Floats]:
    """Squared error of the weights, added up over the rounds, and its slope in the column."""
    from scipy.signal import lfilter

    often = len(steps) - np.arange(
        len(steps)
    )  # rounds in which noise of that age is in the weights
    aged = lfilter([1.0], column, steps)  # what fresh noise has become in the weights, by age
    change = lfilter([1.0], column, aged)
    weighted = often * aged
    slope = [-2.0 * float(weighted[k:] @ change[: len(change) - k]) for k in range(len(column))]
    return float(weighted @ aged), np.array(slope)
