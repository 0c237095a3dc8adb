"""Noise on a histogram of votes (AE-DPFL): by a trusted aggregator, or in shares."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.core.errors import PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.methods.parts.noise_placement import Bounded
from fedveil.methods.parts.sent_once import SentOnceNoise
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import NoisyVotes
from fedveil.privacy.noise.modular_grid import bits_for, largest_sum
from fedveil.privacy.releases import Release
from fedveil.training.client.ballot import Ballot

_STEPS = 64.0  # least std of a noise share in grid steps; votes stay whole numbers of steps
_WRAP = 1e-6  # probability that a round's sum leaves its words: costs accuracy, not privacy


@dataclass(frozen=True)
class VoteNoise(SentOnceNoise):
    """Gaussian noise of std z sqrt(Q) on every count of Q public questions.

    A ballot of Q one-hot votes has length sqrt(Q), so z is again noise over the length of one
    contribution. The whole noisy histogram is covered, not just its argmax.
    """

    bounded = Bounded.BALLOT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trust is Trust.LOCAL:
            raise PrivacyRefusal(
                "votes protected one by one would need as much noise each as all of them together",
                "use trust distributed (secure sum) or central",
            )

    def undivided(self) -> Mechanism:
        return NoisyVotes(self._whole_std)

    def release(self, rounds: int) -> Release:
        mechanism, sampling = self.mechanism(), self.facts.sampling
        uses = len(self._ballot.inputs) if isinstance(mechanism, NoisyVotes) else 1
        return Release(mechanism, sampling, rounds, uses=uses)

    def bits(self) -> int:
        clients, width = self.facts.cohort_size, self._ballot.width
        return bits_for(largest_sum(clients, 1.0, self.step, self._std, _WRAP, width))

    @property
    def length(self) -> float:
        return math.sqrt(len(self._ballot.inputs))

    @property
    def step(self) -> float:
        """One over a whole power of two: a vote is a whole number of steps."""
        return 2.0 ** min(0, math.frexp(self._std / _STEPS)[1] - 1)

    @property
    def _ballot(self) -> Ballot:
        ballot = self.facts.pipeline.ballot
        if ballot is None:
            raise PrivacyRefusal(
                "vote noise protects votes, and this method casts none", "use ae-dpfl"
            )
        return ballot
