"""Noise on vectors of bounded length that clients send once, such as votes and moments."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace

from torch import Tensor

from fedveil.core.arguments import check_fields, one_of, optional
from fedveil.core.units import Adjacency, Trust
from fedveil.methods.parts.noise_placement import (
    Drawn,
    Noise,
    NoisePlacement,
    RoundNoise,
    noisy_sum,
    with_shares,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers
from fedveil.training.client.update_pipeline import UpdatePipeline

_DRAWN = {
    Trust.CENTRAL: Drawn.BY_SERVER,
    Trust.DISTRIBUTED: Drawn.IN_SHARES,
    Trust.LOCAL: Drawn.BY_EACH,
}


@dataclass(frozen=True)
class SentOnceNoise(NoisePlacement):
    """Gaussian noise of std z times the length of a vector, at once or in shares.

    A proof gives the length, a grid on which every vector lies, and what undivided noise releases.
    """

    trust: Trust = Trust.DISTRIBUTED
    adjacency: Adjacency | None = None
    colluders: int = 0
    honest_shares: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, trust=one_of(Trust), adjacency=optional(one_of(Adjacency)))

    @property
    def drawn(self) -> Drawn:
        return _DRAWN[self.trust]

    @property
    @abstractmethod
    def length(self) -> float:
        """A length that no vector exceeds."""

    @property
    @abstractmethod
    def step(self) -> float:
        """The grid of the vectors in exact arithmetic."""

    @abstractmethod
    def bits(self) -> int:
        """Return the bits of the modulus of a secure sum."""

    @abstractmethod
    def undivided(self) -> Mechanism:
        """Return what noise on the whole sum releases."""

    def accounted_length(self) -> float:
        """Return the length that shares on the grid are accounted with."""
        return self.length

    def mechanism(self) -> Mechanism:
        if self.trust is not Trust.DISTRIBUTED or not self.facts.exact:
            return self.undivided()
        return DiscreteGaussianSum(
            clip_norm=self.accounted_length(),
            granularity=self.step,
            share_std=self._std,
            shares=self.facts.cohort_size,
            dimension=self.facts.pipeline.width(self.facts.layout),
            rounding_beta=None,
        )

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        shape = self.facts.pipeline
        if not self.facts.exact:
            return shape
        # Nothing is cut, for no vector is longer; but integer sums need a bound.
        return replace(shape, clip=Clip(self.length), granularity=self.step)

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        if self.trust is Trust.DISTRIBUTED:
            return with_shares(at, total, self._std)
        return noisy_sum(Noise.GAUSSIAN, total, self._std, at.grid, at.stream())

    def noise_steps(self, at: RoundNoise) -> float | None:
        return None if at.grid is None else self._std / at.grid

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        if at.grid is None or self.trust is not Trust.DISTRIBUTED:
            return None
        return NoisyIntegers(ModularGrid(at.grid, self.bits()), self._std)

    @property
    def _whole_std(self) -> float:
        """The noise on a sum."""
        return self.facts.noise_multiplier * self.length

    @property
    def _std(self) -> float:
        """The noise that is drawn at once: all of it, or one share."""
        shares = self.facts.cohort_size if self.trust is Trust.DISTRIBUTED else 1
        return self._whole_std / math.sqrt(shares)
