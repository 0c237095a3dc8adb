"""Noise on a histogram of votes (AE-DPFL): by a trusted aggregator, or in shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from fedveil.core.arguments import check_fields, one_of, optional
from fedveil.core.errors import PrivacyRefusal
from fedveil.core.units import Adjacency, Trust
from fedveil.methods.parts.noise_placement import (
    Bounded,
    Drawn,
    Noise,
    NoisePlacement,
    RoundNoise,
    noisy_sum,
    with_shares,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import DiscreteGaussianSum, NoisyVotes
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers, bits_for
from fedveil.privacy.releases import Release
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.update_pipeline import UpdatePipeline

_STEPS = 64.0  # least std of a noise share in grid steps; votes stay whole numbers of steps
_WRAP = 1e-6  # probability that a round's sum leaves its words: costs accuracy, not privacy


@dataclass(frozen=True)
class VoteNoise(NoisePlacement):
    """Gaussian noise of std z sqrt(Q) on every count of Q public questions.

    A ballot of Q one-hot votes has length sqrt(Q), so z is again noise over the length of one
    contribution. The whole noisy histogram is covered, not just its argmax.
    """

    trust: Trust = Trust.DISTRIBUTED
    adjacency: Adjacency | None = None
    colluders: int = 0
    honest_shares: int | None = None

    bounded = Bounded.BALLOT

    def __post_init__(self) -> None:
        check_fields(self, trust=one_of(Trust), adjacency=optional(one_of(Adjacency)))
        if self.trust is Trust.LOCAL:
            raise PrivacyRefusal(
                "votes protected one by one would need as much noise each as all of them together",
                "use trust distributed (secure sum) or central",
            )

    @property
    def drawn(self) -> Drawn:
        return Drawn.BY_SERVER if self.trust is Trust.CENTRAL else Drawn.IN_SHARES

    def mechanism(self) -> Mechanism:
        if not (self.trust is Trust.DISTRIBUTED and self.facts.exact):
            return NoisyVotes(self._whole_std)
        return DiscreteGaussianSum(
            clip_norm=math.sqrt(self._questions),
            granularity=self._grid,
            share_std=self._std,
            shares=self.facts.cohort_size,
            dimension=self._ballot.width,
            rounding_beta=None,
        )

    def release(self, rounds: int) -> Release:
        mechanism, sampling = self.mechanism(), self.facts.sampling
        uses = self._questions if isinstance(mechanism, NoisyVotes) else 1
        return Release(mechanism, sampling, rounds, uses=uses)

    def pipeline(self, clip: Clip | None = None, round_number: int = 0) -> UpdatePipeline:
        shape = self.facts.pipeline
        if not self.facts.exact:
            return shape
        # The clip is the ballot's own length: nothing is cut, but integer sums need a bound.
        return replace(shape, clip=Clip(math.sqrt(self._questions)), granularity=self._grid)

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        """Return the noisy histogram `[questions * classes]`."""
        if self.trust is Trust.CENTRAL:
            return noisy_sum(Noise.GAUSSIAN, total, self._std, at.grid, at.stream())
        return with_shares(at, total, self._std)

    def noise_steps(self, at: RoundNoise) -> float | None:
        return None if at.grid is None else self._std / at.grid

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        if at.grid is None or self.trust is Trust.CENTRAL:
            return None
        clients, width = self.facts.cohort_size, self._ballot.width
        bits = bits_for(clients, 1.0, at.grid, self._std, _WRAP, width).bits
        return NoisyIntegers(ModularGrid(at.grid, bits), self._std)

    @property
    def _ballot(self) -> Ballot:
        ballot = self.facts.pipeline.ballot
        if ballot is None:
            raise PrivacyRefusal(
                "vote noise protects votes, and this method casts none", "use ae-dpfl"
            )
        return ballot

    @property
    def _questions(self) -> int:
        return len(self._ballot.inputs)

    @property
    def _whole_std(self) -> float:
        """The noise on a sum."""
        return self.facts.noise_multiplier * math.sqrt(self._questions)

    @property
    def _std(self) -> float:
        """The noise that is drawn at once: all of it, or one share."""
        if self.trust is Trust.CENTRAL:
            return self._whole_std
        return self._whole_std / math.sqrt(self.facts.cohort_size)

    @property
    def _grid(self) -> float:
        """One over a whole power of two: a vote is a whole number of steps."""
        return 2.0 ** min(0, math.frexp(self._std / _STEPS)[1] - 1)
