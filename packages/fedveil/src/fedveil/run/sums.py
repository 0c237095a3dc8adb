"""The sums that leave a round of a plan: of the clients' updates, and of a tracked clip's bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.noise_placement import RoundContext
from fedveil.methods.parts.private_sum import PrivateSum
from fedveil.planning.plan import Plan
from fedveil.privacy.secure_sums.aggregation import COUNT
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.run.aggregator import Aggregator
from fedveil.training.client.batches import client_sizes
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.contract import Cohort
from fedveil.training.server.optimizers import State


def pipeline_in(plan: Plan, round_number: int, state: State) -> UpdatePipeline:
    """What leaves a client in a round (from 0), after the rounds that left this state."""
    placement, context, rule = plan.method.placement, plan.context, plan.method.clip_rule
    if placement is None or context is None:
        return plan.pipeline
    clip = context.pipeline.clip
    if rule is not None:
        clip = rule.clip(plan.method.local, round_number, state)
    return placement.pipeline(context, clip, round_number)


def update_sum(plan: Plan, this_round: RoundContext, state: State) -> PrivateSum:
    """The sum of the shaped updates, with the clip and the noise of this round."""
    pipeline = pipeline_in(plan, this_round.round_number, state)
    return PrivateSum(plan.method.placement, plan.context, pipeline, this_round, plan.layout)


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


def noise_deviation(updates: PrivateSum, clients: int, divisor: float) -> float | None:
    """Return the standard deviation of the noise on a coordinate of the average; None: unknown."""
    placement = updates.placement
    if not isinstance(placement, CentralNoise | LocalNoise) or not placement.white:
        return None
    return placement.deviation(updates.noise, clients) / divisor


def next_clip(
    plan: Plan,
    updates: PrivateSum,
    statistics: Block | None,
    aggregator: Aggregator,
    dropouts: Dropouts,
    clients: Cohort,
    state: State,
) -> tuple[State, Mapping[str, float]]:
    """A tracked clip's next state and released figures; nothing if the clip is not tracked.

    Every client's bit, whether its norm was within the clip, goes into a noisy sum of its own over
    the same cohort. Without `statistics`, clients work their bits out themselves.
    """
    rule, placement = plan.method.clip_rule, updates.placement
    if placement is None or not isinstance(rule, AdaptiveClipping):
        return {}, {}
    clip = updates.noise.clip
    own = rule.count_noise(placement, updates.noise)
    this_round = replace(updates.this_round, purpose=COUNT)
    bits = PrivateSum(placement, own.context, own.pipeline, this_round, own.context.layout)
    opened = aggregator.open(bits, updates.this_round.cohort, dropouts)
    if statistics is not None:
        halves = rule.halves(own, clip, statistics.norms)
        opened.add(replace(statistics, updates=halves))
    count = float(opened.release())
    moved, share = rule.follow(count, divisor(plan, own.pipeline, clients), clip, state)
    return moved, {"clip_norm": clip.norm, "below_clip": share}
