"""One sum of a round, as whoever takes it sees it: how large it is, and how noise gets into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from fedveil.core.arrays import Ints
from fedveil.methods.parts.noise_placement import (
    Cohort,
    NoiseContext,
    NoisePlacement,
    RoundContext,
    RoundNoise,
    SecureNoisePlacement,
)
from fedveil.privacy.noise.modular_grid import NoisyIntegers
from fedveil.privacy.secure_sums.aggregation import COUNT, UPDATE
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.models.flat import Layout


@dataclass(frozen=True)
class PrivateSum:
    """One sum of a round, and the noise that goes into it; without a placement, there is none."""

    placement: NoisePlacement | None
    context: NoiseContext | None
    pipeline: UpdatePipeline
    this_round: RoundContext
    layout: Layout

    @property
    def round_number(self) -> int:
        return self.this_round.round_number

    @property
    def noise(self) -> RoundNoise:
        """What the noise of this sum follows from; only if there is any."""
        if self.context is None:
            raise ValueError("a sum without noise")
        return RoundNoise(self.context, self.pipeline, self.round_number)

    @property
    def purpose(self) -> str:
        return COUNT if self.this_round.purpose == COUNT else UPDATE

    @property
    def width(self) -> int:
        return self.pipeline.width(self.layout)

    @property
    def integer(self) -> bool:
        return self.pipeline.granularity is not None

    @property
    def word(self) -> int:
        return 32 if self.integers is None else self.integers.word

    @cached_property
    def integers(self) -> NoisyIntegers | None:
        """What clients send into a secure sum; None if that is no vector of integers."""
        if self.context is None or not isinstance(self.placement, SecureNoisePlacement):
            return None
        return self.placement.integers(self.noise)

    def protect(self, total: Tensor, clients: Cohort) -> Tensor:
        """The private sum from one that was taken in the open, of these clients."""
        if self.placement is None or self.context is None:
            return total
        present = self.this_round
        if clients is not present.cohort:  # some were lost on the way
            present = replace(present, cohort=clients)
        return self.placement.protect(self.noise, total, present)

    def share(self, client: int, row: Ints) -> Ints:
        """What a client sends under its masks: its integers with its own noise share."""
        if self.integers is None:
            raise ValueError("masks hide integers, and there are none")
        return self.integers.noisy(row, self.this_round.stream(client))

    def decode(self, whole: Ints) -> Tensor:
        """The private sum from the sum of what clients sent."""
        if not isinstance(self.placement, SecureNoisePlacement):
            raise ValueError("only noise shares go into masked sums")
        return self.placement.decode(self.noise, whole)
