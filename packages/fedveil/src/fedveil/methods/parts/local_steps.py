"""How many local steps clients take, and at which rates: public where a record is protected.

The size of a client stays the same when one of its records is replaced or zeroed, so at record
level it may be used, as may the number of its persons where these are protected; every client has
rates of its own if they fall from step to step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from fedveil.core.arrays import Ints
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import NoiseContext
from fedveil.training.client.batches import batches_per_epoch, step_counts, unit_sizes
from fedveil.training.client.local_training import LocalTraining, Schedule


@dataclass(frozen=True)
class LocalSteps:
    """Over all clients: their numbers of steps in a round, and the most uses of a record."""

    counts: tuple[int, ...]  # rising
    uses: int

    @property
    def most(self) -> int:
        return self.counts[-1]


_KNOWN: WeakKeyDictionary[Federation, dict[LocalTraining, LocalSteps]] = WeakKeyDictionary()


def local_steps(context: NoiseContext) -> LocalSteps:
    known = _KNOWN.setdefault(context.federation, {})
    if context.local not in known:
        sizes = unit_sizes(context.federation, context.local)
        counts = np.unique(step_counts(sizes, context.local))
        uses = int(uses_by_client(context).max())
        known[context.local] = LocalSteps(tuple(int(count) for count in counts), uses)
    return known[context.local]


def uses_by_client(context: NoiseContext) -> Ints:
    """The most times that a record or person of each client is touched in a round: epochs begun."""
    sizes = unit_sizes(context.federation, context.local)
    return -(-step_counts(sizes, context.local) // batches_per_epoch(sizes, context.local))


def same_rates(context: NoiseContext) -> bool:
    """Whether all clients take the steps of a round at the same rates, as far as they go."""
    falling = context.local.learning_rate.schedule is Schedule.INVERSE
    return not falling or len(local_steps(context).counts) == 1


def rates(context: NoiseContext, round_number: int) -> list[float]:
    """The rates of a client that takes the most steps, the last of them the last one's."""
    return context.local.learning_rate.of_round(round_number, local_steps(context).most)


def longest_way(context: NoiseContext, round_number: int) -> float:
    """The largest sum of a client's rates in a round."""
    rate, counts = context.local.learning_rate, local_steps(context).counts
    if same_rates(context):
        counts = counts[-1:]
    return max(math.fsum(rate.of_round(round_number, count)) for count in counts)


def least_noise(context: NoiseContext, round_number: int) -> float:
    """The smallest root of a client's squared rates in a round: what its steps' noise grows by."""
    rate, counts = context.local.learning_rate, local_steps(context).counts
    if same_rates(context):
        counts = counts[:1]
    return min(math.hypot(*rate.of_round(round_number, count)) for count in counts)
