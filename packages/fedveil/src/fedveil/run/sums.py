"""The sums that leave a round of a plan: of the clients' updates, and of a tracked clip's bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedveil.core.randomness import Randomness
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.planning.plan import Plan
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.run.aggregator import Aggregator
from fedveil.training.client.batches import client_sizes
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.contract import Cohort
from fedveil.training.server.optimizers import State


def pipeline_in(plan: Plan, number: int, state: State) -> UpdatePipeline:
    """Return what leaves a client in a round (from 0), after the rounds that left this state."""
    if plan.noise is None:
        return plan.pipeline
    facts = plan.noise.facts
    return plan.noise.pipeline(facts.rule.clip(facts.local, number, state), number)


def update_sum(
    plan: Plan,
    number: int,
    cohort: Cohort,
    randomness: Randomness,
    state: State,
    memory: NoiseMemory | None = None,
) -> RoundNoise:
    """Return the sum of a round's shaped updates, with the clip and the noise of that round.

    Args:
        plan: What is run.
        number: The round, from 0.
        cohort: The clients whose updates are summed.
        randomness: Where the noise is drawn from.
        state: What the rounds before have left: it says where a tracked clip stands.
        memory: What the run remembers of earlier noise.
    """
    shape = pipeline_in(plan, number, state)
    return RoundNoise(plan.noise, shape, plan.layout, number, cohort, randomness, memory=memory)


def divisor(plan: Plan, pipeline: UpdatePipeline, clients: Cohort) -> float:
    """Return what an average divides by.

    A private method takes the public expected cohort, never the realised one; under a secure sum
    the survivors, whose number is no secret there: no credit is claimed for a secret cohort.
    """
    if plan.noise is None:
        return max(float(pipeline.weights(client_sizes(plan.federation, clients)).sum()), 1e-30)
    return plan.sampling.expected_cohort if plan.secure_sums is None else len(clients)


def noise_deviation(updates: RoundNoise, clients: int, divisor: float) -> float | None:
    """Return the standard deviation of the noise on a coordinate of the average; None: unknown."""
    if updates.noise is None:
        return None
    of_sum = updates.noise.deviation(updates, clients)
    return None if of_sum is None else of_sum / divisor


def next_clip(
    plan: Plan,
    updates: RoundNoise,
    statistics: Block | None,
    aggregator: Aggregator,
    dropouts: Dropouts,
    clients: Cohort,
    state: State,
) -> tuple[State, Mapping[str, float]]:
    """Return a tracked clip's next state and released figures; nothing if it is not tracked.

    Every client's bit, whether its norm was within the clip, goes into a noisy sum of its own over
    the same cohort. Without `statistics`, clients work their bits out themselves.
    """
    count, noise = updates.count, updates.noise
    if count is None or noise is None:
        return {}, {}
    rule, clip = noise.facts.rule, updates.clip
    opened = aggregator.open(count, updates.cohort, dropouts)
    if statistics is not None:
        halves = rule.halves(count, clip, statistics.norms)
        opened.add(replace(statistics, updates=halves))
    counted = float(opened.release())
    moved, share = rule.follow(counted, divisor(plan, count.pipeline, clients), clip, state)
    return moved, {"clip_norm": clip.norm, "below_clip": share}
