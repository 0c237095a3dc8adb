"""Noise that clients add in shares, under a secure sum: the server learns the noisy sum alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.arrays import Ints
from fedveil.core.units import Adjacency, Unit
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    RoundContext,
    RoundNoise,
    fixed_cohort_size,
    in_shares,
    noise_of_each,
    worst_case,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.noise.grid import unsnap
from fedveil.privacy.noise.modular_grid import (
    ModularGrid,
    NoisyIntegers,
    NoisyVectors,
    proportional,
)
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.rotation import Rotation
from fedveil.training.client.update_pipeline import UpdatePipeline

_BETA = math.exp(-0.5)


@dataclass(frozen=True)
class DistributedNoise:
    """Each of n clients adds noise of std z C / sqrt(n); together they add z C.

    On integers (exact arithmetic, or a `rotation`) the shares are discrete Gaussians, the sum is
    taken modulo 2^bits, and the guarantee is that of a sum of discrete Gaussians. Otherwise shares
    are continuous, which no secure sum can add: idealised. Sampling gives no credit, for the
    server sees the cohort. Colluders and missing clients take their shares with them.
    """

    rotation: Rotation | None = None
    bits: int | None = None  # of a rotated sum in the first round; None: as few as it takes
    wrap_probability: float = 1e-6  # of a round
    adjacency: Adjacency = Adjacency.ZERO_OUT
    colluders: int = 0
    honest_shares: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, adjacency=one_of(Adjacency))

    @property
    def secure_sum(self) -> bool:
        return True

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        return in_shares(Unit.CLIENT, self.adjacency, self, context)

    def local(self, context: NoiseContext) -> LocalTraining:
        return context.local

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        pipeline = replace(context.pipeline, clip=clip or context.clip)
        if not self._discrete(context):
            return pipeline
        beta = None if self.rotation is None else _BETA
        grid = self.grid(context, clip or context.clip)
        return replace(
            pipeline, granularity=grid.granularity, rotation=self.rotation, rounding_beta=beta
        )

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(context.sampling, rounds)
        return (Release(self._mechanism(context), context.sampling, rounds, participations=seen),)

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        integers = self.integers(at)
        if integers is None:
            std = self._summands(at.context, at.clip).share_std
            return noise_of_each(Noise.GAUSSIAN, total, std, this_round)
        return self.decode(at, integers.noisy_sum(total.numpy(), this_round.streams()))

    def noise_steps(self, at: RoundNoise) -> float | None:
        integers = self.integers(at)
        return None if integers is None else integers.share_std / integers.grid.granularity

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        if at.grid is None:
            return None
        std = self._summands(at.context, at.clip).share_std
        return NoisyIntegers(self.grid(at.context, at.clip), std)

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        grid = self.grid(at.context, at.clip)
        released = torch.from_numpy(unsnap(grid.centre(whole), grid.granularity))
        if self.rotation is not None:
            size = at.context.layout.size
            released = self.rotation.backward(released, at.round_number, size)
        return released.float()

    def grid(self, context: NoiseContext, clip: Clip) -> ModularGrid:
        """The grid and the modulus of a round with this clip.

        What was accounted for the first clip holds if no later grid is coarser beside its clip.
        """
        first, now = self._summands(context, context.clip), self._summands(context, clip)
        likely = self.wrap_probability
        if self.rotation is None:
            granularity = first.plain_granularity()
        else:
            granularity = first.rotated_granularity(likely, self.bits)
        granularity = proportional(granularity, context.clip.norm, clip.norm)
        if self.rotation is None:
            return ModularGrid(granularity, now.plain_bits(granularity, likely))
        return ModularGrid(granularity, now.rotated_bits(granularity, likely))

    def _summands(self, context: NoiseContext, clip: Clip) -> NoisyVectors:
        n, size = fixed_cohort_size(context.sampling), context.layout.size
        width = size if self.rotation is None else self.rotation.width(size)
        return NoisyVectors(
            n, clip.norm, context.noise_multiplier * clip.norm / math.sqrt(n), width
        )

    def _mechanism(self, context: NoiseContext) -> DiscreteGaussianSum | Gaussian:
        summands = self._summands(context, context.clip)
        if not self._discrete(context):
            return Gaussian(context.noise_multiplier)
        return DiscreteGaussianSum(
            clip_norm=summands.clip_norm,
            granularity=self.grid(context, context.clip).granularity,
            share_std=summands.share_std,
            shares=summands.count,
            dimension=summands.width,
            rounding_beta=None if self.rotation is None else _BETA,
        )

    def _discrete(self, context: NoiseContext) -> bool:
        return context.exact or self.rotation is not None
