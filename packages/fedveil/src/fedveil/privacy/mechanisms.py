"""The mechanisms: what one participation releases about one unit.

Noise is always described on the *sum* and relative to the clip of *one* unit; a replaced unit can
move the sum twice as far, and the step, never the caller, takes care of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedveil.core.arguments import check_fields, count, fraction, not_negative, optional, positive
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust
from fedveil.privacy.accountants.discrete_sums import (
    DiscreteSumStep,
    PoissonDiscreteStep,
    sum_defect,
)
from fedveil.privacy.accountants.gaussian import SelectionStep
from fedveil.privacy.accountants.laplace import LaplaceStep
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.accountants.zcdp import ZcdpStep
from fedveil.privacy.contract import Mechanism, Use, mechanism
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.privacy.rounding import at_least
from fedveil.privacy.sampling import CappedPoisson, FixedSize, Poisson

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release

EVERY_TRUST, EVERY_ADJACENCY = frozenset(Trust), frozenset(Adjacency)


@mechanism("gaussian")
@dataclass(frozen=True)
class Gaussian(Mechanism):
    """Continuous Gaussian noise, possibly rounded to the grid on which the data already lies.

    noise_multiplier: std of the noise on the sum / L2 clip of one unit.
    """

    noise_multiplier: float
    law = "Gaussian noise"
    level = "noise_multiplier"
    trusts = EVERY_TRUST
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson, CappedPoisson, FixedSize)
    joint_uses = True

    def step(self, use: Use) -> Step:
        return use.gaussian(self.noise_multiplier / use.factor)

    def scaled(self, scale: float) -> Gaussian:
        return Gaussian(self.noise_multiplier / fraction("scale", scale))


@mechanism("laplace")
@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise on every coordinate.

    scale_multiplier: scale of the noise on the sum / L1 clip of one unit.
    """

    scale_multiplier: float
    law = "Laplace noise"
    level = "scale_multiplier"
    trusts = EVERY_TRUST - {Trust.DISTRIBUTED}
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson,)

    def step(self, use: Use) -> Step:
        return LaplaceStep(self.scale_multiplier / use.factor, use.rate)

    def scaled(self, scale: float) -> Laplace:
        return Laplace(self.scale_multiplier / fraction("scale", scale))


@mechanism("discrete-gaussian")
@dataclass(frozen=True)
class DiscreteGaussian(Mechanism):
    """One exact discrete Gaussian per coordinate, on the grid of the data.

    It satisfies concentrated differential privacy with the rho of the continuous Gaussian of the
    same std, but not the Gaussian's exact curve (Canonne, Kamath, Steinke 2020).
    """

    noise_multiplier: float
    law = "discrete Gaussian noise"
    level = "noise_multiplier"
    trusts = EVERY_TRUST - {Trust.DISTRIBUTED}
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson,)
    joint_uses = True

    def step(self, use: Use) -> Step:
        if use.rate < 1:
            return PoissonDiscreteStep(math.sqrt(use.uses) / self.noise_multiplier, use.rate)
        return ZcdpStep(use.factor**2 / (2 * self.noise_multiplier**2))

    def scaled(self, scale: float) -> DiscreteGaussian:
        return DiscreteGaussian(self.noise_multiplier / fraction("scale", scale))


@mechanism("discrete-gaussian-sum")
@dataclass(frozen=True)
class DiscreteGaussianSum(Mechanism):
    """A secure sum of discrete Gaussian shares on rounded vectors (Kairouz, Liu, Steinke 2021).

    Attributes:
        clip_norm: L2 clip of one unit before rounding.
        granularity: Grid spacing.
        share_std: Std of one client's noise, in the units of clip_norm.
        shares: Noise shares in the sum, with those of colluders (the privacy model takes them out).
        dimension: Coordinates after padding.
        rounding_beta: How the clipped vector gets to the grid. Above 0: stochastic rounding,
            repeated until the norm bound that holds with probability 1 - beta is met. 0: any
            rounding to a neighbouring grid point. None: the norm was checked after rounding, so the
            clip still holds.
    """

    clip_norm: float
    granularity: float
    share_std: float
    shares: int
    dimension: int
    rounding_beta: float | None = math.exp(-0.5)
    law = "discrete Gaussian noise in shares"
    level = "share_std"
    trusts = EVERY_TRUST - {Trust.LOCAL}
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson,)
    joint_uses = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, clip_norm=positive, granularity=positive)
        check_fields(self, shares=count, dimension=count, rounding_beta=optional(not_negative))
        if self.rounding_beta is not None and self.rounding_beta >= 1:
            raise ConfigError(f"rounding_beta: need a number below 1, got {self.rounding_beta!r}")

    @property
    def noise_multiplier(self) -> float:
        """Std of the sum of all shares / clip norm, rounding ignored."""
        return math.sqrt(self.shares) * self.share_std / self.clip_norm

    def grid_sensitivity(self) -> tuple[float, float]:
        """L2 and L1 norm bounds of one rounded contribution, in grid units."""
        scaled, root = self.clip_norm / self.granularity, math.sqrt(self.dimension)
        if self.rounding_beta is None:
            l2 = scaled
        else:
            l2 = scaled + root
            if self.rounding_beta > 0:
                slack = math.sqrt(2 * math.log(1 / self.rounding_beta))
                inside = scaled**2 + self.dimension / 4 + slack * (scaled + root / 2)
                l2 = min(l2, math.sqrt(inside))
        return l2, min(root * l2, l2**2)  # whole numbers: |x| <= x^2

    def step(self, use: Use) -> Step:
        l2, l1 = self.grid_sensitivity()
        std, shares = self.share_std / self.granularity, use.honest_shares or self.shares
        if use.rate < 1:
            ratio = math.sqrt(use.uses) * l2 / (math.sqrt(shares) * std)
            defect = use.uses * self.dimension * sum_defect(std, shares)
            return PoissonDiscreteStep(ratio, use.rate, defect)
        return DiscreteSumStep(l2 * use.factor, l1 * use.factor, std, shares, self.dimension)

    def scaled(self, scale: float) -> DiscreteGaussianSum:
        # Rounding does not scale: the grid and the dimension stay, only the clip shrinks.
        return replace(self, clip_norm=self.clip_norm * fraction("scale", scale))

    def noise_shares(self) -> int:
        return self.shares

    def not_certified(self, model: PrivacyModel) -> str:
        return ""


@mechanism("noisy-votes")
@dataclass(frozen=True)
class NoisyVotes(Mechanism):
    """A noisy histogram of one-hot votes, one vote of each unit (AE-DPFL).

    noise_std: std of the noise on every count. A changed vote moves two counts by one: sqrt(2),
    not 2, under replace.
    """

    noise_std: float
    law = "Gaussian noise on votes"
    level = "noise_std"
    trusts = EVERY_TRUST
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson, CappedPoisson, FixedSize)
    joint_uses = True

    def step(self, use: Use) -> Step:
        return use.gaussian(self.noise_std / math.sqrt(use.factor))


@mechanism("noisy-moments")
@dataclass(frozen=True)
class NoisyMoments(NoisyVotes):
    """A noisy sum of second moments, one vector of each unit (`methods.moments`).

    noise_std: std of the noise on every entry / a length that no vector exceeds. Two vectors are
        at most sqrt(2) such lengths apart, as two votes are.
    """

    law = "Gaussian noise on second moments"


@mechanism("noisy-selection")
@dataclass(frozen=True)
class NoisySelection(Mechanism):
    """Values whose noisy votes exceed a threshold; each unit spreads a vote of L2 norm 1.

    noise_std: std of the noise on every value's votes.
    missed: probability with which a value that one unit alone has is published.
    """

    noise_std: float
    missed: float
    law = "Gaussian noise on votes for values, published above a threshold"
    trusts = EVERY_TRUST - {Trust.DISTRIBUTED}
    adjacencies = EVERY_ADJACENCY

    def __post_init__(self) -> None:
        check_fields(self, noise_std=positive, missed=positive)

    def step(self, use: Use) -> Step:
        return SelectionStep(self.noise_std / math.sqrt(use.factor), missed=self.missed)


@mechanism("zcdp")
@dataclass(frozen=True)
class Zcdp(Mechanism):
    """A mechanism known only to be rho-zCDP per participation, for the adjacency in use."""

    rho: float
    law = "zero-concentrated noise"
    trusts = EVERY_TRUST
    adjacencies = EVERY_ADJACENCY
    amplified_by = (Poisson,)
    joint_uses = True
    one_adjacency = "rho"

    def __post_init__(self) -> None:
        check_fields(self, rho=positive)

    def step(self, use: Use) -> Step:
        # Without the shares of colluders the noise has honest_std^2 of its variance.
        return ZcdpStep(use.uses * self.rho / use.honest_std**2, use.rate)

    def check(self, release: Release, model: PrivacyModel) -> None:
        sampled = release.amplified and isinstance(release.sampling, Poisson)
        if sampled and model.adjacency is not Adjacency.ADD_REMOVE:
            raise AdjacencyRefused(
                f"zcdp with Poisson sampling under {model.adjacency}: amplification is proved for "
                "add-remove",
                "use adjacency add-remove",
            )

    def not_certified(self, model: PrivacyModel) -> str:
        return ""

    def rests_on(self) -> tuple[str, ...]:
        return (f"One participation is {at_least(self.rho, 6)}-zCDP, as was said.",)


def joint_noise_multiplier(*multipliers: float) -> float:
    """The one Gaussian that several Gaussians on the *same cohort* amount to, under any sampling.

    Releases of one round that see the same secret sample (model and clip quantile, say) must be
    accounted together: as two separately sampled releases they would be undercharged.
    """
    if not multipliers:
        raise ConfigError("multipliers: need at least one")
    total = math.fsum(positive("noise_multiplier", one) ** -2 for one in multipliers)
    return 1 / math.sqrt(total)


def quantile_noise_multiplier(bit_std: float) -> float:
    """Noise multiplier of the released sum of `bit - 1/2` with noise of std `bit_std`.

    One unit contributes a half at most, so the release adds (0.5 / bit_std)**2 to mu squared.
    """
    return 2 * positive("bit_std", bit_std)
