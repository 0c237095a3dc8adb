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

from fedveil.errors import BadInput
from fedveil.privacy.arguments import count, not_negative, positive


@dataclass(frozen=True)
class Gaussian:
    """Continuous Gaussian noise, possibly rounded to the grid on which the data already lies.

    noise_multiplier: std of the noise on the sum / L2 clip of one unit.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, "noise_multiplier", positive("noise_multiplier", self.noise_multiplier))


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on every coordinate.

    scale_multiplier: scale of the noise on the sum / L1 clip of one unit.
    """

    scale_multiplier: float

    def __post_init__(self) -> None:
        _set(self, "scale_multiplier", positive("scale_multiplier", self.scale_multiplier))


@dataclass(frozen=True)
class DiscreteGaussian:
    """One exact discrete Gaussian per coordinate, on the grid of the data.

    It satisfies concentrated differential privacy with the rho of the continuous Gaussian of the
    same std, but not the Gaussian's exact curve (Canonne, Kamath, Steinke 2020).
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _set(self, "noise_multiplier", positive("noise_multiplier", self.noise_multiplier))


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """A secure sum of discrete Gaussian shares on rounded vectors (Kairouz, Liu, Steinke 2021).

    clip_norm: L2 clip of one unit before rounding.
    granularity: grid spacing.
    share_std: std of one client's noise, in the units of clip_norm.
    shares: honest shares that are sure to be in the sum.
    dimension: coordinates after padding.
    rounding_beta: 0 rounds to nearest (or unconditionally); above 0, stochastic rounding is
        repeated until the norm bound that holds with probability 1 - beta is met.
    """

    clip_norm: float
    granularity: float
    share_std: float
    shares: int
    dimension: int
    rounding_beta: float = math.exp(-0.5)

    def __post_init__(self) -> None:
        for name in ("clip_norm", "granularity", "share_std"):
            _set(self, name, positive(name, getattr(self, name)))
        for name in ("shares", "dimension"):
            _set(self, name, count(name, getattr(self, name)))
        beta = not_negative("rounding_beta", self.rounding_beta)
        if beta >= 1:
            raise BadInput(f"rounding_beta: need a number below 1, got {beta!r}")
        _set(self, "rounding_beta", beta)

    @property
    def noise_multiplier(self) -> float:
        """Std of the sum of all shares / clip norm, rounding ignored."""
        return math.sqrt(self.shares) * self.share_std / self.clip_norm


@dataclass(frozen=True)
class Zcdp:
    """A mechanism known only to be rho-zCDP per participation, for the adjacency in use."""

    rho: float

    def __post_init__(self) -> None:
        _set(self, "rho", positive("rho", self.rho))


Mechanism = Gaussian | Laplace | DiscreteGaussian | DiscreteGaussianSum | Zcdp

_KINDS: dict[str, type[Mechanism]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "discrete-gaussian": DiscreteGaussian,
    "discrete-gaussian-sum": DiscreteGaussianSum,
    "zcdp": Zcdp,
}


def kind_of(mechanism: Mechanism) -> str:
    """The name of a mechanism's kind in documents."""
    for name, kind in _KINDS.items():
        if type(mechanism) is kind:
            return name
    raise BadInput(f"mechanism: {mechanism!r} is none of {', '.join(_KINDS)}")


def mechanism_to_dict(mechanism: Mechanism) -> dict[str, Any]:
    """A plain document from which `mechanism_from_dict` rebuilds the mechanism."""
    return {"kind": kind_of(mechanism), **asdict(mechanism)}


def mechanism_from_dict(document: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `mechanism_to_dict` described."""
    return _from_dict(document, _KINDS, "mechanism")


def _from_dict(document: Mapping[str, Any], kinds: Mapping[str, type[Any]], what: str) -> Any:
    if not isinstance(document, Mapping):
        raise BadInput(f"{what}: need an object with a kind, got {document!r}")
    fields = dict(document)
    kind = kinds.get(str(fields.pop("kind", None)))
    if kind is None:
        raise BadInput(f"{what}: unknown kind {document.get('kind')!r}, need {', '.join(kinds)}")
    try:
        return kind(**fields)
    except TypeError:
        raise BadInput(f"{what}: fields {sorted(fields)} do not describe {kind.__name__}") from None


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)
