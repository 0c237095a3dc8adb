"""Noise that a trusted aggregator adds to the sum of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedveil.core.arguments import check_fields, one_of, optional
from fedveil.core.units import Adjacency
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    NoisePlacement,
    RoundNoise,
    noisy_sum,
)
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.refusals import SensitivityRefused


@dataclass(frozen=True)
class CentralNoise(NoisePlacement):
    """Noise z C on every coordinate of the sum, where C bounds one client's update.

    Exact arithmetic: the updates are integers on a grid, the sum is exact, and Gaussian noise is a
    continuous one rounded to the grid, which is post-processing of the continuous mechanism.
    """

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency | None = None  # None: the one that the sampling's proof is about
    colluders: int = 0

    white = True

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(Noise), adjacency=optional(one_of(Adjacency)))

    def mechanism(self) -> Mechanism:
        return mechanism_of(self.noise, self.facts)

    def deviation(self, at: RoundNoise, clients: int) -> float | None:
        return at.scale * self.noise.deviation if self.white else None

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        return noisy_sum(self.noise, total, at.scale, at.grid, at.stream())


def mechanism_of(noise: Noise, context: NoiseContext) -> Gaussian | Laplace:
    """Return what one participation releases. Laplace noise needs a bound in L1, its own norm."""
    if noise is Noise.LAPLACE:
        if context.clip.order != 1:
            raise SensitivityRefused(
                "Laplace noise beside a clip in L2: in L1 such an update is longer, by up to the "
                "root of the number of weights",
                "clip in L1 (Clip(norm, order=1)), or use Gaussian noise",
            )
        return Laplace(context.noise_multiplier)
    return Gaussian(context.noise_multiplier)
