"""The sums that leave a round: of the clients' updates, and of a tracked clip's bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from fedveil.client.records import client_sizes
from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.engines.contract import Cohort
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    NoisePlacement,
    RoundContext,
    RoundNoise,
    SecureNoisePlacement,
)
from fedveil.planning.plan import Plan
from fedveil.privacy.noise.modular_grid import Ints, NoisyIntegers
from fedveil.secagg.aggregation import COUNT, UPDATE
from fedveil.secagg.aggregator import Aggregator
from fedveil.secagg.dropouts import Dropouts
from fedveil.server.optimizers import State


def pipeline_in(plan: Plan, round_number: int, state: State) -> UpdatePipeline:
    """What leaves a client in a round (from 0), after the rounds that left this state."""
    placement, context, rule = plan.method.placement, plan.context, plan.method.clip_rule
    if placement is None or context is None:
        return plan.pipeline
    clip = context.pipeline.clip
    if rule is not None:
        clip = rule.clip(plan.method.local, round_number, state)
    return placement.pipeline(context, clip, round_number)


@dataclass(frozen=True)
class PrivateSum:
    """One sum of a round, and the noise that goes into it; without a placement, there is none."""

    placement: NoisePlacement | None
    context: NoiseContext | None
    pipeline: UpdatePipeline
    this_round: RoundContext

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
        return 1 if self.context is None else self.pipeline.width(self.context.layout)

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


def update_sum(plan: Plan, this_round: RoundContext, state: State) -> PrivateSum:
    """The sum of the shaped updates, with the clip and the noise of this round."""
    pipeline = pipeline_in(plan, this_round.round_number, state)
    return PrivateSum(plan.method.placement, plan.context, pipeline, this_round)


def divisor(plan: Plan, pipeline: UpdatePipeline, clients: Cohort) -> float:
    """What an average divides by.

    A private method takes the public expected cohort, never the realised one; under a secure sum
    the survivors, whose number is no secret there: no credit is claimed for a secret cohort.
    """
    if plan.method.placement is None:
        return max(float(pipeline.weights(client_sizes(plan.federation, clients)).sum()), 1e-30)
    if plan.context is not None and plan.context.secure is not None:
        return len(clients)
    return plan.sampling.expected_cohort


def next_clip(
    plan: Plan,
    updates: PrivateSum,
    norms: Tensor,
    aggregator: Aggregator,
    dropouts: Dropouts,
    clients: Cohort,
    state: State,
) -> tuple[State, Mapping[str, float]]:
    """A tracked clip's next state and released figures; nothing if the clip is not tracked.

    Every client's bit, whether its norm `[clients]` was within the clip, goes into a noisy sum of
    its own over the same cohort.
    """
    rule, placement = plan.method.clip_rule, updates.placement
    if placement is None or not isinstance(rule, AdaptiveClipping):
        return {}, {}
    clip = updates.noise.clip
    own, halves = rule.halves(placement, updates.noise, norms)
    this_round = replace(updates.this_round, purpose=COUNT)
    bits = PrivateSum(placement, own.context, own.pipeline, this_round)
    opened = aggregator.open(bits, updates.this_round.cohort, dropouts)
    if opened.take is not None:
        opened.take(np.arange(len(clients)), halves)
    count = float(opened.release(halves.sum(dim=0)))
    moved, share = rule.follow(count, divisor(plan, own.pipeline, clients), clip, state)
    return moved, {"clip_norm": clip.norm, "below_clip": share}
