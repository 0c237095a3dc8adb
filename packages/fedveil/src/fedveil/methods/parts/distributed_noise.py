"""Noise that clients add in shares, under a secure sum: the server learns the noisy sum alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.arrays import Ints
from fedveil.core.units import Adjacency
from fedveil.methods.parts.noise_placement import (
    Drawn,
    NoisePlacement,
    RoundNoise,
    with_shares,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.noise.modular_grid import (
    ModularGrid,
    NoisyIntegers,
    NoisyVectors,
    proportional,
)
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.training.client.rotation import Rotation
from fedveil.training.client.update_pipeline import UpdatePipeline

_BETA = math.exp(-0.5)


@dataclass(frozen=True)
class DistributedNoise(NoisePlacement):
    """Each of n clients adds noise of std z C / sqrt(n); together they add z C.

    On integers (exact arithmetic, or a `rotation`) the shares are discrete Gaussians, the sum is
    taken modulo 2^bits, and the guarantee is that of a sum of discrete Gaussians. Otherwise shares
    are continuous, which no secure sum can add: idealised. A cohort that the server draws gives no
    credit, for it sees the cohort. Secret coins of the clients (`SecretPoisson`) do: everybody adds
    a share, and no sum tells who added an update as well. Colluders and missing clients take their
    shares with them.
    """

    secret_coins = True

    rotation: Rotation | None = None
    bits: int | None = None  # of a rotated sum in the first round; None: as few as it takes
    wrap_probability: float = 1e-6  # of a round
    adjacency: Adjacency = Adjacency.ZERO_OUT
    colluders: int = 0
    honest_shares: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, adjacency=one_of(Adjacency))

    @property
    def drawn(self) -> Drawn:
        return Drawn.IN_SHARES

    def mechanism(self) -> Mechanism:
        rate, noise = self.facts.sampling.coin_rate, self._noise()
        return PoissonSampled(rate, (noise,)) if rate < 1 else noise

    def _noise(self) -> Mechanism:
        """Return the noise towards a client whose update is in the sum."""
        facts = self.facts
        summands = self._summands(facts.clip)
        if not self._discrete:
            return Gaussian(facts.noise_multiplier)
        return DiscreteGaussianSum(
            clip_norm=summands.clip_norm,
            granularity=self.grid(facts.clip).granularity,
            share_std=summands.share_std,
            shares=summands.count,
            dimension=summands.width,
            rounding_beta=None if self.rotation is None else _BETA,
        )

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        clip = clip or self.facts.clip
        shape = replace(self.facts.pipeline, clip=clip)
        if not self._discrete:
            return shape
        grid, beta = self.grid(clip).granularity, None if self.rotation is None else _BETA
        return replace(shape, granularity=grid, rotation=self.rotation, rounding_beta=beta)

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        return with_shares(at, total, self._summands(at.clip).share_std)

    def noise_steps(self, at: RoundNoise) -> float | None:
        integers = at.integers
        return None if integers is None else integers.share_std / integers.grid.granularity

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        if at.grid is None:
            return None
        return NoisyIntegers(self.grid(at.clip), self._summands(at.clip).share_std)

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        if self.rotation is None or at.integers is None:
            return super().decode(at, whole)
        released = torch.from_numpy(at.integers.values(whole))
        return self.rotation.backward(released, at.round_number, self.facts.layout.size).float()

    def grid(self, clip: Clip) -> ModularGrid:
        """Return the grid and the modulus of a round with this clip.

        What was accounted for the first clip holds if no later grid is coarser beside its clip.
        """
        first, now = self._summands(self.facts.clip), self._summands(clip)
        likely = self.wrap_probability
        if self.rotation is None:
            granularity = first.plain_granularity()
        else:
            granularity = first.rotated_granularity(likely, self.bits)
        granularity = proportional(granularity, self.facts.clip.norm, clip.norm)
        if self.rotation is None:
            return ModularGrid(granularity, now.plain_bits(granularity, likely))
        return ModularGrid(granularity, now.rotated_bits(granularity, likely))

    def _summands(self, clip: Clip) -> NoisyVectors:
        n, size = self.facts.cohort_size, self.facts.layout.size
        width = size if self.rotation is None else self.rotation.width(size)
        share_std = self.facts.noise_multiplier * clip.norm / math.sqrt(n)
        return NoisyVectors(n, clip.norm, share_std, width)

    @property
    def _discrete(self) -> bool:
        return self.facts.exact or self.rotation is not None
