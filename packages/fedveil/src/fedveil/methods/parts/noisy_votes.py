"""Noise on a histogram of votes (AE-DPFL): by a trusted aggregator, or in shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from fedveil.core.arguments import check_fields, one_of, optional
from fedveil.core.arrays import Ints
from fedveil.core.errors import PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    RoundContext,
    RoundNoise,
    decoded,
    default_adjacency,
    fixed_cohort_size,
    in_shares,
    noise_of_each,
    noisy_sum,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum, NoisyVotes
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers, bits_for
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.training.client.ballot import Ballot
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline

_STEPS = 64.0  # least std of a noise share in grid steps; votes stay whole numbers of steps
_WRAP = 1e-6  # probability that a round's sum leaves its words: costs accuracy, not privacy


@dataclass(frozen=True)
class VoteNoise:
    """Gaussian noise of std z sqrt(Q) on every count of Q public questions.

    A ballot of Q one-hot votes has length sqrt(Q), so z is again noise over the length of one
    contribution. The whole noisy histogram is covered, not just its argmax.
    """

    trust: Trust = Trust.DISTRIBUTED
    adjacency: Adjacency | None = None
    colluders: int = 0
    honest_shares: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, trust=one_of(Trust), adjacency=optional(one_of(Adjacency)))
        if self.trust is Trust.LOCAL:
            raise PrivacyRefusal(
                "votes protected one by one would need as much noise each as all of them together",
                "use trust distributed (secure sum) or central",
            )

    @property
    def secure_sum(self) -> bool:
        return self.trust is Trust.DISTRIBUTED

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        if self.trust is Trust.CENTRAL:
            adjacency = default_adjacency(context, self.adjacency)
            return PrivacyModel(Unit.CLIENT, adjacency, Trust.CENTRAL, colluders=self.colluders)
        return in_shares(Unit.CLIENT, self.adjacency or Adjacency.ZERO_OUT, self, context)

    def local(self, context: NoiseContext) -> LocalTraining:
        return context.local

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        if not context.exact:
            return context.pipeline
        # The clip is the ballot's own length: nothing is cut, but integer sums need a bound.
        length = Clip(math.sqrt(self._questions(context)))
        return replace(context.pipeline, clip=length, granularity=self._grid(context))

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        questions = self._questions(context)
        if self.trust is Trust.DISTRIBUTED and context.exact:
            ballots = DiscreteGaussianSum(
                clip_norm=math.sqrt(questions),
                granularity=self._grid(context),
                share_std=self._share_std(context),
                shares=fixed_cohort_size(context.sampling),
                dimension=self._ballot(context).width,
                rounding_beta=None,
            )
            return (Release(ballots, context.sampling, rounds),)
        votes = NoisyVotes(self._std(context))
        return (Release(votes, context.sampling, rounds, uses=questions),)

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        """The noisy histogram `[questions * classes]`."""
        if self.trust is Trust.CENTRAL:
            std = self._std(at.context)
            return noisy_sum(Noise.GAUSSIAN, total, std, at.grid, this_round.stream())
        integers = self.integers(at)
        if integers is not None:
            return self.decode(at, integers.noisy_sum(total.numpy(), this_round.streams()))
        return noise_of_each(Noise.GAUSSIAN, total, self._share_std(at.context), this_round)

    def noise_steps(self, at: RoundNoise) -> float | None:
        if at.grid is None:
            return None
        std = self._std if self.trust is Trust.CENTRAL else self._share_std
        return std(at.context) / at.grid

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        if at.grid is None or self.trust is Trust.CENTRAL:
            return None
        std, clients = self._share_std(at.context), fixed_cohort_size(at.context.sampling)
        bits = bits_for(clients, 1.0, at.grid, std, _WRAP, self._ballot(at.context).width).bits
        return NoisyIntegers(ModularGrid(at.grid, bits), std)

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        return decoded(self.integers(at), whole)

    def _ballot(self, context: NoiseContext) -> Ballot:
        if context.pipeline.ballot is None:
            raise PrivacyRefusal(
                "vote noise protects votes, and this method casts none", "use ae-dpfl"
            )
        return context.pipeline.ballot

    def _questions(self, context: NoiseContext) -> int:
        return len(self._ballot(context).inputs)

    def _std(self, context: NoiseContext) -> float:
        return context.noise_multiplier * math.sqrt(self._questions(context))

    def _share_std(self, context: NoiseContext) -> float:
        return self._std(context) / math.sqrt(fixed_cohort_size(context.sampling))

    def _grid(self, context: NoiseContext) -> float:
        """One over a whole power of two: a vote is a whole number of steps."""
        std = self._std if self.trust is Trust.CENTRAL else self._share_std
        return 2.0 ** min(0, math.frexp(std(context) / _STEPS)[1] - 1)
