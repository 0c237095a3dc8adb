"""What one participation releases about one unit, in units of that unit's clip norm.

A mechanism knows nothing of sampling, rounds or trust: `accounting` puts them together. Noise is
always described on the *sum* and relative to the clip of *one* unit; a replaced unit can move the
sum twice as far, and the accountants, never the caller, take care of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedveil.core.arguments import count, described, not_negative, positive, settle
from fedveil.core.errors import ConfigError
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients


@dataclass(frozen=True)
class Gaussian:
    """Continuous Gaussian noise, possibly rounded to the grid on which the data already lies.

    noise_multiplier: std of the noise on the sum / L2 clip of one unit.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        settle(self, noise_multiplier=positive("noise_multiplier", self.noise_multiplier))


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on every coordinate.

    scale_multiplier: scale of the noise on the sum / L1 clip of one unit.
    """

    scale_multiplier: float

    def __post_init__(self) -> None:
        settle(self, scale_multiplier=positive("scale_multiplier", self.scale_multiplier))


@dataclass(frozen=True)
class DiscreteGaussian:
    """One exact discrete Gaussian per coordinate, on the grid of the data.

    It satisfies concentrated differential privacy with the rho of the continuous Gaussian of the
    same std, but not the Gaussian's exact curve (Canonne, Kamath, Steinke 2020).
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        settle(self, noise_multiplier=positive("noise_multiplier", self.noise_multiplier))


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """A secure sum of discrete Gaussian shares on rounded vectors (Kairouz, Liu, Steinke 2021).

    clip_norm: L2 clip of one unit before rounding.
    granularity: grid spacing.
    share_std: std of one client's noise, in the units of clip_norm.
    shares: noise shares in the sum, those of colluders included (the setting takes them out).
    dimension: coordinates after padding.
    rounding_beta: how the clipped vector gets to the grid. Above 0: stochastic rounding, repeated
        until the norm bound that holds with probability 1 - beta is met. 0: any rounding to a
        neighbouring grid point. None: the norm was checked after rounding, so the clip still holds.
    """

    clip_norm: float
    granularity: float
    share_std: float
    shares: int
    dimension: int
    rounding_beta: float | None = math.exp(-0.5)

    def __post_init__(self) -> None:
        for name in ("clip_norm", "granularity", "share_std"):
            settle(self, **{name: positive(name, getattr(self, name))})
        for name in ("shares", "dimension"):
            settle(self, **{name: count(name, getattr(self, name))})
        if self.rounding_beta is not None:
            beta = not_negative("rounding_beta", self.rounding_beta)
            if beta >= 1:
                raise ConfigError(f"rounding_beta: need a number below 1, got {beta!r}")
            settle(self, rounding_beta=beta)

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


@dataclass(frozen=True)
class NoisyVotes:
    """A noisy histogram of one-hot votes, one vote of each unit (AE-DPFL).

    noise_std: std of the noise on every count. A changed vote moves two counts by one: sqrt(2),
    not 2, under replace.
    """

    noise_std: float

    def __post_init__(self) -> None:
        settle(self, noise_std=positive("noise_std", self.noise_std))


@dataclass(frozen=True)
class Zcdp:
    """A mechanism known only to be rho-zCDP per participation, for the adjacency in use."""

    rho: float

    def __post_init__(self) -> None:
        settle(self, rho=positive("rho", self.rho))


Mechanism = (
    Gaussian
    | Laplace
    | DiscreteGaussian
    | DiscreteGaussianSum
    | NoisyVotes
    | Zcdp
    | NoisyGradients
    | GridGradients
)

_KINDS: dict[str, type[Mechanism]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete-gaussian": DiscreteGaussian,
    "discrete-gaussian-sum": DiscreteGaussianSum,
    "noisy-votes": NoisyVotes,
    "zcdp": Zcdp,
    "noisy-gradients": NoisyGradients,
    "grid-gradients": GridGradients,
}


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


def kind_of(mechanism: Mechanism) -> str:
    """The name of a mechanism's kind in documents."""
    for name, kind in _KINDS.items():
        if type(mechanism) is kind:
            return name
    raise ConfigError(f"mechanism: {mechanism!r} is none of {', '.join(_KINDS)}")


def mechanism_to_dict(mechanism: Mechanism) -> dict[str, Any]:
    """A plain document from which `mechanism_from_dict` rebuilds the mechanism."""
    return {"kind": kind_of(mechanism), **asdict(mechanism)}


def mechanism_from_dict(document: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `mechanism_to_dict` described."""
    mechanism: Mechanism = described(document, _KINDS, "mechanism")
    return mechanism
