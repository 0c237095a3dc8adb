"""Noise that clients add in shares, under a secure sum: the server learns the noisy sum alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.client.local_training import LocalTraining
from fedveil.client.rotation import Rotation
from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.modular_grid import (
    Ints,
    ModularGrid,
    NoisyIntegers,
    Summands,
    proportional,
)
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    RoundContext,
    certain_cohort,
    worst_case,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.noise import gaussian, unsnap
from fedveil.privacy.releases import PrivacyModel, Release

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

    @property
    def secure_sum(self) -> bool:
        return True

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        honest = context.honest_shares(self.honest_shares)
        return PrivacyModel(
            Unit.CLIENT,
            self.adjacency,
            Trust.DISTRIBUTED,
            colluders=self.colluders,
            honest_shares=honest,
        )

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

    def protect(
        self,
        context: NoiseContext,
        total: Tensor,
        pipeline: UpdatePipeline,
        this_round: RoundContext,
    ) -> Tensor:
        integers = self.integers(context, pipeline, this_round.round_number)
        if integers is None:
            std = self._summands(context, pipeline.clip or context.clip).share_std
            noisy = total.double().numpy().copy()
            for client in this_round.cohort:
                noisy += gaussian(this_round.stream(client), len(noisy), std)
            return torch.from_numpy(noisy).float()
        whole = integers.noisy_sum(total.numpy(), map(this_round.stream, this_round.cohort))
        return self.decode(context, whole, pipeline, this_round.round_number)

    def noise_steps(
        self, context: NoiseContext, pipeline: UpdatePipeline, round_number: int
    ) -> float | None:
        integers = self.integers(context, pipeline, round_number)
        return None if integers is None else integers.share_std / integers.grid.granularity

    def integers(
        self, context: NoiseContext, pipeline: UpdatePipeline, round_number: int
    ) -> NoisyIntegers | None:
        if pipeline.granularity is None:
            return None
        clip = pipeline.clip or context.clip
        return NoisyIntegers(self.grid(context, clip), self._summands(context, clip).share_std)

    def decode(
        self, context: NoiseContext, whole: Ints, pipeline: UpdatePipeline, round_number: int
    ) -> Tensor:
        grid = self.grid(context, pipeline.clip or context.clip)
        released = torch.from_numpy(unsnap(grid.centre(whole), grid.granularity))
        if self.rotation is not None:
            released = self.rotation.backward(released, round_number, context.layout.size)
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

    def _summands(self, context: NoiseContext, clip: Clip) -> Summands:
        n, size = certain_cohort(context.sampling), context.layout.size
        width = size if self.rotation is None else self.rotation.width(size)
        return Summands(n, clip.norm, context.noise_multiplier * clip.norm / math.sqrt(n), width)

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
