"""Noise that clients add in shares, under a secure sum: the server learns the noisy sum alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.client.local_training import LocalRule
from fedveil.client.rotation import Rotation
from fedveil.client.update_pipeline import Shaping
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.modular_grid import (
    Ints,
    ModularGrid,
    NoisyIntegers,
    Summands,
    proportional,
)
from fedveil.methods.parts.noise_placement import (
    Occasion,
    Promise,
    Terms,
    certain_cohort,
    worst_case,
)
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum, Gaussian
from fedveil.privacy.noise import gaussian, unsnap

_BETA = math.exp(-0.5)


@dataclass(frozen=True)
class SharedNoise:
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

    def promise(self, terms: Terms) -> Promise:
        honest = terms.honest_shares(self.honest_shares)
        return Promise(Unit.CLIENT, self.adjacency, Trust.DISTRIBUTED, self.colluders, honest)

    def local(self, terms: Terms) -> LocalRule:
        return terms.local

    def shaping(self, terms: Terms, clip: Clip | None, round: int = 0) -> Shaping:
        shaping = replace(terms.shaping, clip=clip or terms.clip)
        if not self._discrete(terms):
            return shaping
        beta = None if self.rotation is None else _BETA
        grid = self.grid(terms, clip or terms.clip)
        return replace(
            shaping, granularity=grid.granularity, rotation=self.rotation, rounding_beta=beta
        )

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(terms.sampling, rounds)
        return (Release(self._mechanism(terms), terms.sampling, rounds, participations=seen),)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        integers = self.integers(terms, shaping, occasion.round)
        if integers is None:
            std = self._summands(terms, shaping.clip or terms.clip).share_std
            noisy = total.double().numpy().copy()
            for client in occasion.cohort:
                noisy += gaussian(occasion.stream(client), len(noisy), std)
            return torch.from_numpy(noisy).float()
        whole = integers.noisy_sum(total.numpy(), map(occasion.stream, occasion.cohort))
        return self.decode(terms, whole, shaping, occasion.round)

    def noise_steps(self, terms: Terms, shaping: Shaping, round: int) -> float | None:
        integers = self.integers(terms, shaping, round)
        return None if integers is None else integers.share_std / integers.grid.granularity

    def integers(self, terms: Terms, shaping: Shaping, round: int) -> NoisyIntegers | None:
        if shaping.granularity is None:
            return None
        clip = shaping.clip or terms.clip
        return NoisyIntegers(self.grid(terms, clip), self._summands(terms, clip).share_std)

    def decode(self, terms: Terms, whole: Ints, shaping: Shaping, round: int) -> Tensor:
        grid = self.grid(terms, shaping.clip or terms.clip)
        released = torch.from_numpy(unsnap(grid.centre(whole), grid.granularity))
        if self.rotation is not None:
            released = self.rotation.backward(released, round, terms.layout.size)
        return released.float()

    def grid(self, terms: Terms, clip: Clip) -> ModularGrid:
        """The grid and the modulus of a round with this clip.

        What was accounted for the first clip holds if no later grid is coarser beside its clip.
        """
        first, now = self._summands(terms, terms.clip), self._summands(terms, clip)
        likely = self.wrap_probability
        if self.rotation is None:
            granularity = first.plain_granularity()
        else:
            granularity = first.rotated_granularity(likely, self.bits)
        granularity = proportional(granularity, terms.clip.norm, clip.norm)
        if self.rotation is None:
            return ModularGrid(granularity, now.plain_bits(granularity, likely))
        return ModularGrid(granularity, now.rotated_bits(granularity, likely))

    def _summands(self, terms: Terms, clip: Clip) -> Summands:
        n, size = certain_cohort(terms.sampling), terms.layout.size
        width = size if self.rotation is None else self.rotation.width(size)
        return Summands(n, clip.norm, terms.noise_multiplier * clip.norm / math.sqrt(n), width)

    def _mechanism(self, terms: Terms) -> DiscreteGaussianSum | Gaussian:
        summands = self._summands(terms, terms.clip)
        if not self._discrete(terms):
            return Gaussian(terms.noise_multiplier)
        return DiscreteGaussianSum(
            clip_norm=summands.clip_norm,
            granularity=self.grid(terms, terms.clip).granularity,
            share_std=summands.share_std,
            shares=summands.count,
            dimension=summands.width,
            rounding_beta=None if self.rotation is None else _BETA,
        )

    def _discrete(self, terms: Terms) -> bool:
        return terms.exact or self.rotation is not None
