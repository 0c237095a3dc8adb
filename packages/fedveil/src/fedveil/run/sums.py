"""The sums that leave a round of a plan: of the clients' updates, and of a tracked clip's bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedveil.core.randomness import Randomness
from fedveil.methods.parts.noise_placement import RoundNoise
from fedveil.planning.own_budgets import by_coins
from fedveil.planning.plan import Plan
from fedveil.privacy.noise.correlated import NoiseMemory
from fedveil.privacy.secure_sums.dropouts import Dropouts
from fedveil.run.aggregator import Aggregator, OpenSum
from fedveil.training.client.batches import client_sizes
from fedveil.training.client.update_pipeline import Block, UpdatePipeline
from fedveil.training.engines.contract import Cohort, RoundRequest
from fedveil.training.server.optimizers import State


@dataclass(frozen=True)
class Senders:
    """The clients of a sum: which of them add an update, and to which clip.

    Attributes:
        add: Whether each adds an update, `[clients]`; a client whose secret coin said no does not.
        scales: The clip of each as a share of the round's clip, `[clients]`.
    """

    add: npt.NDArray[np.bool_]
    scales: npt.NDArray[np.float64]

    @classmethod
    def of(cls, plan: Plan, total: OpenSum, randomness: Randomness, number: int) -> Senders:
        """Toss the coins of a sum's clients, each its own; clients elsewhere toss theirs there.

        Args:
            plan: What is run.
            total: The open sum.
            randomness: The run's randomness.
            number: The round, from 0.
        """
        clients, sampling = total.clients, plan.sampling
        add, scales = np.ones(len(clients), np.bool_), np.ones(len(clients))
        if not total.elsewhere and sampling.coin_rate < 1:
            add[:] = [sampling.coin(randomness, number, int(client)) for client in clients]
        if not total.elsewhere and plan.scales is not None and not by_coins(plan.private_noise):
            scales = np.array(plan.scales)[clients]
        return cls(add, scales)

    @property
    def idle(self) -> Cohort:
        """Positions of the clients that add no update."""
        return np.flatnonzero(~self.add)

    def parts(self, request: RoundRequest) -> Iterator[tuple[Cohort, RoundRequest]]:
        """Yield the request's clients by their clips, with their positions in the request.

        A round to which nobody came is computed like any other.
        """
        if not len(self.add):
            yield np.zeros(0, np.int64), request
        for scale in np.unique(self.scales):
            places = np.flatnonzero(self.add & (self.scales == scale))
            shape = None if request.pipeline is None else request.pipeline.scaled(float(scale))
            if len(places):
                yield places, replace(request.part(places), pipeline=shape)

    def statistics(self, total: OpenSum) -> Block | None:
        """Return norms and losses of the clients that add an update, for simulations."""
        collected = total.statistics
        if collected is None or self.add.all():
            return collected
        here = torch.from_numpy(self.add)
        each = collected.norms[here], collected.shaped_norms[here], collected.losses[here]
        return Block(np.arange(len(each[0])), collected.updates, *each, collected.rejected)


def pipeline_in(plan: Plan, number: int, state: State) -> UpdatePipeline:
    """Return the update pipeline of a round.

    Args:
        plan: What is run.
        number: The round, from 0.
        state: The server's state after the rounds before; it says where a tracked clip stands.
    """
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
    """Return the number that an average divides by.

    A private method takes the public expected cohort, never the realised one. Under a secure sum it
    is the survivors, whose number is no secret there: no credit is claimed for a secret cohort.
    Where clients toss secret coins, it is their rate times the survivors, whatever the coins said.

    Args:
        plan: What is run.
        pipeline: The update pipeline of the round.
        clients: The clients in the sum.
    """
    if plan.noise is None:
        return max(float(pipeline.weights(client_sizes(plan.federation, clients)).sum()), 1e-30)
    if plan.secure_sums is None:
        return plan.sampling.expected_cohort
    return plan.sampling.coin_rate * len(clients)


def noise_deviation(updates: RoundNoise, clients: int, divisor: float) -> float | None:
    """Return the standard deviation of the noise on a coordinate of the average.

    Args:
        updates: The sum and its noise.
        clients: How many clients are in it.
        divisor: What the average divides by.

    Returns:
        None if it is unknown or there is no noise.
    """
    if updates.noise is None:
        return None
    of_sum = updates.noise.deviation(updates, clients)
    return None if of_sum is None else of_sum / divisor


def next_clip(
    plan: Plan,
    updates: RoundNoise,
    total: OpenSum,
    aggregator: Aggregator,
    dropouts: Dropouts,
    senders: Senders,
    state: State,
) -> tuple[State, Mapping[str, float]]:
    """Return a tracked clip's next state and released figures; nothing if it is not tracked.

    Every client's bit, whether its norm was within the clip, goes into a noisy sum of its own over
    the same cohort; a client that adds no update adds no bit. Clients whose norms are not known
    here work their bits out themselves.
    """
    count, noise, statistics = updates.count, updates.noise, total.statistics
    if count is None or noise is None:
        return {}, {}
    rule, clip = noise.facts.rule, updates.clip
    opened = aggregator.open(count, updates.cohort, dropouts)
    if statistics is not None:
        here, kind = torch.from_numpy(senders.add), torch.int64 if count.integer else torch.float64
        halves = torch.zeros(len(here), count.width, dtype=kind)
        if here.any():
            halves[here] = rule.halves(count, clip, statistics.norms[here])
        opened.add(replace(statistics, updates=halves))
    counted = float(opened.release())
    expected = divisor(plan, count.pipeline, total.clients)
    moved, share = rule.follow(counted, expected, clip, state)
    return moved, {"clip_norm": clip.norm, "below_clip": share}
