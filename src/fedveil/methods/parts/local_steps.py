"""How many local steps clients take, and at which rates: public where a record is protected.

The size of a client stays the same when one of its records is replaced or zeroed, so at record
level it may be used; every client has rates of its own if they fall from step to step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from fedveil.client.batches import Ints, batches_per_epoch, step_counts
from fedveil.client.local_training import LocalRule, Schedule
from fedveil.data.federation import Federation
from fedveil.methods.parts.noise_placement import Terms


@dataclass(frozen=True)
class LocalSteps:
    """Over all clients: their numbers of steps in a round, and the most uses of a record."""

    counts: tuple[int, ...]  # rising
    uses: int

    @property
    def most(self) -> int:
        return self.counts[-1]


_KNOWN: WeakKeyDictionary[Federation, dict[LocalRule, LocalSteps]] = WeakKeyDictionary()


def local_steps(terms: Terms) -> LocalSteps:
    known = _KNOWN.setdefault(terms.federation, {})
    if terms.local not in known:
        counts = np.unique(step_counts(terms.federation.sizes, terms.local))
        uses = int(uses_by_client(terms).max())
        known[terms.local] = LocalSteps(tuple(int(count) for count in counts), uses)
    return known[terms.local]


def uses_by_client(terms: Terms) -> Ints:
    """The most times that a record of each client is touched in a round: epochs begun."""
    sizes = terms.federation.sizes
    return -(-step_counts(sizes, terms.local) // batches_per_epoch(sizes, terms.local))


def same_rates(terms: Terms) -> bool:
    """Whether all clients take the steps of a round at the same rates, as far as they go."""
    falling = terms.local.learning_rate.schedule is Schedule.INVERSE
    return not falling or len(local_steps(terms).counts) == 1


def rates(terms: Terms, round: int) -> list[float]:
    """The rates of a client that takes the most steps, the last of them the last one's."""
    return terms.local.learning_rate.of_round(round, local_steps(terms).most)


def longest_way(terms: Terms, round: int) -> float:
    """The largest sum of a client's rates in a round."""
    rate, counts = terms.local.learning_rate, local_steps(terms).counts
    if same_rates(terms):
        counts = counts[-1:]
    return max(math.fsum(rate.of_round(round, count)) for count in counts)


def least_noise(terms: Terms, round: int) -> float:
    """The smallest root of a client's squared rates in a round: what its steps' noise grows by."""
    rate, counts = terms.local.learning_rate, local_steps(terms).counts
    if same_rates(terms):
        counts = counts[:1]
    return min(math.hypot(*rate.of_round(round, count)) for count in counts)
