"""Noise on a histogram of votes (AE-DPFL): by a trusted aggregator, or in shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.client.ballot import Ballot
from fedveil.client.local_training import LocalRule
from fedveil.client.update_pipeline import Shaping
from fedveil.core.errors import Refused
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.modular_grid import Ints, ModularGrid, NoisyIntegers
from fedveil.methods.parts.noise_placement import (
    Occasion,
    Promise,
    Terms,
    certain_cohort,
    hidden_change,
)
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum, NoisyVotes
from fedveil.privacy.noise import gaussian, protect_sum, unsnap
from fedveil.secagg.modulus import bits_for

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
        if self.trust is Trust.LOCAL:
            raise Refused(
                "votes protected one by one would need as much noise each as all of them together",
                "use trust distributed (secure sum) or central",
            )

    @property
    def secure_sum(self) -> bool:
        return self.trust is Trust.DISTRIBUTED

    def promise(self, terms: Terms) -> Promise:
        if self.trust is Trust.CENTRAL:
            adjacency = hidden_change(terms, self.adjacency)
            return Promise(Unit.CLIENT, adjacency, Trust.CENTRAL, self.colluders)
        adjacency = self.adjacency or Adjacency.ZERO_OUT
        honest = terms.honest_shares(self.honest_shares)
        return Promise(Unit.CLIENT, adjacency, Trust.DISTRIBUTED, self.colluders, honest)

    def local(self, terms: Terms) -> LocalRule:
        return terms.local

    def shaping(self, terms: Terms, clip: Clip | None, round: int = 0) -> Shaping:
        if not terms.exact:
            return terms.shaping
        # The clip is the ballot's own length: nothing is cut, but integer sums need a bound.
        length = Clip(math.sqrt(self._questions(terms)))
        return replace(terms.shaping, clip=length, granularity=self._grid(terms))

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        questions = self._questions(terms)
        if self.trust is Trust.DISTRIBUTED and terms.exact:
            ballots = DiscreteGaussianSum(
                clip_norm=math.sqrt(questions),
                granularity=self._grid(terms),
                share_std=self._share_std(terms),
                shares=certain_cohort(terms.sampling),
                dimension=self._ballot(terms).width,
                rounding_beta=None,
            )
            return (Release(ballots, terms.sampling, rounds),)
        votes = NoisyVotes(self._std(terms))
        return (Release(votes, terms.sampling, rounds, uses=questions),)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        """The noisy histogram `[questions * classes]`."""
        grid, width = shaping.granularity, len(total)
        if self.trust is Trust.CENTRAL:
            if grid is None:
                noise = gaussian(occasion.stream(), width, self._std(terms))
                return (total + torch.from_numpy(noise)).float()
            noisy = protect_sum(total.numpy(), self._std(terms), grid, occasion.stream())
            return torch.from_numpy(unsnap(noisy, grid)).float()
        integers = self.integers(terms, shaping, occasion.round)
        if integers is not None:
            whole = integers.noisy_sum(total.numpy(), map(occasion.stream, occasion.cohort))
            return self.decode(terms, whole, shaping, occasion.round)
        std = self._share_std(terms)
        histogram = total.numpy().copy()
        for client in occasion.cohort:
            histogram += gaussian(occasion.stream(client), width, std)
        return torch.from_numpy(histogram).float()

    def noise_steps(self, terms: Terms, shaping: Shaping, round: int) -> float | None:
        if shaping.granularity is None:
            return None
        central = self.trust is Trust.CENTRAL
        return (self._std(terms) if central else self._share_std(terms)) / shaping.granularity

    def integers(self, terms: Terms, shaping: Shaping, round: int) -> NoisyIntegers | None:
        if shaping.granularity is None or self.trust is Trust.CENTRAL:
            return None
        std, clients = self._share_std(terms), certain_cohort(terms.sampling)
        width = self._ballot(terms).width
        bits = bits_for(clients, 1.0, shaping.granularity, std, _WRAP, width).bits
        return NoisyIntegers(ModularGrid(shaping.granularity, bits), std)

    def decode(self, terms: Terms, whole: Ints, shaping: Shaping, round: int) -> Tensor:
        integers = self.integers(terms, shaping, round)
        if integers is None:
            raise ValueError("no integers were summed")
        return torch.from_numpy(integers.values(whole)).float()

    def _ballot(self, terms: Terms) -> Ballot:
        if terms.shaping.ballot is None:
            raise Refused("vote noise protects votes, and this method casts none", "use ae-dpfl")
        return terms.shaping.ballot

    def _questions(self, terms: Terms) -> int:
        return len(self._ballot(terms).inputs)

    def _std(self, terms: Terms) -> float:
        return terms.noise_multiplier * math.sqrt(self._questions(terms))

    def _share_std(self, terms: Terms) -> float:
        return self._std(terms) / math.sqrt(certain_cohort(terms.sampling))

    def _grid(self, terms: Terms) -> float:
        """One over a whole power of two: a vote is a whole number of steps."""
        central = self.trust is Trust.CENTRAL
        std = self._std(terms) if central else self._share_std(terms)
        return 2.0 ** min(0, math.frexp(std / _STEPS)[1] - 1)
