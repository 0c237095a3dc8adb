"""Noise that a trusted aggregator adds to the sum of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedveil.core.arguments import check_fields, one_of, optional
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    RoundContext,
    RoundNoise,
    default_adjacency,
    noisy_sum,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.noise.grid import choose_granularity
from fedveil.privacy.refusals import SensitivityRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline


@dataclass(frozen=True)
class CentralNoise:
    """Noise z C on every coordinate of the sum, where C bounds one client's update.

    Exact arithmetic: the updates are integers on a grid, the sum is exact, and Gaussian noise is a
    continuous one rounded to the grid, which is post-processing of the continuous mechanism.
    """

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency | None = None  # None: the one that the sampling's proof is about
    colluders: int = 0
    white: ClassVar[bool] = True  # independent between coordinates and rounds, of known size

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(Noise), adjacency=optional(one_of(Adjacency)))

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        adjacency = default_adjacency(context, self.adjacency)
        return PrivacyModel(Unit.CLIENT, adjacency, Trust.CENTRAL, colluders=self.colluders)

    def local(self, context: NoiseContext) -> LocalTraining:
        return context.local

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        return fine_pipeline(context, clip or context.clip)

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        return (Release(mechanism_of(self.noise, context), context.sampling, rounds),)

    def noise_steps(self, at: RoundNoise) -> float | None:
        return None if at.grid is None else at.scale / at.grid

    def deviation(self, at: RoundNoise, clients: int) -> float:
        """Return the standard deviation of the noise on a coordinate of the sum."""
        return at.scale * self.noise.deviation

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        return noisy_sum(self.noise, total, at.scale, at.grid, this_round.stream())


def mechanism_of(noise: Noise, context: NoiseContext) -> Gaussian | Laplace:
    """What one participation releases. Laplace noise needs a bound in L1, its own norm."""
    if noise is Noise.LAPLACE:
        if context.clip.order != 1:
            raise SensitivityRefused(
                "Laplace noise beside a clip in L2: in L1 such an update is longer, by up to the "
                "root of the number of weights",
                "clip in L1 (Clip(norm, order=1)), or use Gaussian noise",
            )
        return Laplace(context.noise_multiplier)
    return Gaussian(context.noise_multiplier)


def fine_pipeline(context: NoiseContext, clip: Clip) -> UpdatePipeline:
    """Clipped, and in exact arithmetic on a grid on which neither the updates nor the noise lose
    anything that could be noticed."""
    own = context.pipeline
    if not context.exact:
        return own if clip == own.clip else replace(own, clip=clip)
    noise, width = context.noise_multiplier * clip.norm, own.width(context.layout)
    grid = choose_granularity(clip.norm, noise, width, context.clients, order=clip.order)
    return replace(own, clip=clip, granularity=grid)
