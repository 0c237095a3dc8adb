"""How many neighbours, how many shares: the numbers that make a sparse graph safe.

Devices stand on a circle in an order drawn at random (`graph.py`), each joined to the degree/2
nearest on either side, so a device's neighbours are a uniform set of `degree` others. Shamir
threshold t. With C colluding and D lost devices, both fixed independently of that order:

* *two-faced server*: it must not gather t shares of both kinds about one device by telling its
  neighbours different things. Honest neighbours give one kind, colluding ones both, so it needs
  2t <= degree + (colluding neighbours). Fails with probability at most
  cohort * P[Hypergeometric(cohort - 1, C, degree) > 2t - degree - 1].
* *connected*: the honest survivors must form one connected graph, else the sums of the pieces
  show. Falling apart takes two disjoint arcs of degree/2 positions without an honest survivor:
  probability at most cohort^2/2 * prod_{i < degree} (C + D - i)/(cohort - i).
* *recovery*: every device needs t neighbours that answer to the end: fails with probability at
  most cohort * P[Hypergeometric(cohort - 1, D, degree) > degree - t]. A failed recovery costs a
  round, not privacy.

In the complete graph nothing is random and all three are conditions that hold or do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fedveil.errors import BadInput

# Up to here everybody is joined to everybody: a sparse graph would save little, and the complete
# one needs no luck and withstands a server that lies about who survived.
SMALL_COHORT = 32


@dataclass(frozen=True)
class Topology:
    """A decided graph for one cohort, and what can go wrong with it."""

    cohort: int
    degree: int
    threshold: int  # shares that recover a secret
    security_failure: float  # probability, over the graph, that more than the sum may show
    recovery_failure: float  # probability, over the graph, that the sum cannot be recovered

    @property
    def complete(self) -> bool:
        return self.degree == self.cohort - 1

    @property
    def colluding_neighbours(self) -> int:
        """How many colluders next to one device the threshold tolerates: 2t > degree + this."""
        return 2 * self.threshold - self.degree - 1

    def smallest_group(self, min_honest: int, dropped_edges: int = 0) -> int:
        """Honest devices in the smallest sum a server could learn by lying.

        `dropped_edges`: pair masks that each device leaves out if the server says so.
        """
        if self.complete:
            return min_honest
        group = self.threshold - self.colluding_neighbours - dropped_edges + 1
        return max(0, min(min_honest, group))


@lru_cache(maxsize=256)
def assess(cohort: int, degree: int, threshold: int, colluders: int, losses: int) -> Topology:
    """The failure probabilities of a given degree and threshold."""
    if not possible_degree(cohort, degree) or not 1 <= threshold <= degree:
        raise BadInput(
            f"degree {degree} and threshold {threshold} make no graph of {cohort} devices: the "
            f"degree is even and below {cohort - 1}, or {cohort - 1}; the threshold within it"
        )
    if degree == cohort - 1:
        safe = 2 * threshold > degree + colluders
        recovers = threshold <= degree - losses
        return Topology(cohort, degree, threshold, float(not safe), float(not recovers))
    others = cohort - 1
    two_faced = cohort * _tail(others, colluders, degree, 2 * threshold - degree - 1)
    falls_apart = _two_arcs(cohort, degree, colluders + losses)
    stuck = cohort * _tail(others, losses, degree, degree - threshold)
    return Topology(cohort, degree, threshold, min(1.0, two_faced + falls_apart), min(1.0, stuck))


def possible_degree(cohort: int, degree: int) -> bool:
    """Whether a circulant graph of that degree exists: even, or everybody."""
    return degree == cohort - 1 >= 1 or (degree % 2 == 0 and 2 <= degree < cohort - 1)


@lru_cache(maxsize=256)
def choose(
    cohort: int,
    colluders: int,
    losses: int,
    *,
    security_failure: float,
    recovery_failure: float,
    sparse: bool = True,
) -> Topology:
    """The smallest degree whose failures stay below the given probabilities, else complete.

    Cohorts of up to `SMALL_COHORT` devices always get the complete graph.
    """
    if cohort < 2:
        raise BadInput(f"cohort = {cohort}: a sum hides its terms only among two or more devices")
    for degree in _sparse_degrees(cohort) if sparse else ():
        least = _least_threshold(cohort, degree, colluders, security_failure)
        if least is None:
            continue
        found = assess(cohort, degree, least, colluders, losses)
        if (
            found.security_failure <= security_failure
            and found.recovery_failure <= recovery_failure
        ):
            return found
    threshold = (cohort - 1 + colluders) // 2 + 1
    if threshold > cohort - 1 - losses:
        raise BadInput(
            f"cohort = {cohort}, colluders = {colluders}, losses = {losses}: no graph recovers; "
            f"colluders + 2 * losses must stay below {cohort - 1}"
        )
    return assess(cohort, cohort - 1, threshold, colluders, losses)


def _sparse_degrees(cohort: int) -> range:
    """Degrees worth trying: none in a small cohort, never fewer than 2 * log2(cohort)."""
    if cohort <= SMALL_COHORT:
        return range(0)
    return range(2 * math.ceil(math.log2(cohort)), cohort - 1, 2)


def _least_threshold(cohort: int, degree: int, colluders: int, failure: float) -> int | None:
    """The smallest threshold that the two-faced server does not beat; half of the failure."""
    for neighbours in range(degree):
        if cohort * _tail(cohort - 1, colluders, degree, neighbours) <= failure / 2:
            threshold = (degree + neighbours) // 2 + 1
            return threshold if threshold <= degree else None
    return None


def _tail(population: int, marked: int, drawn: int, above: int) -> float:
    """P[X > above] for X hypergeometric: `drawn` of `population`, of which `marked` count."""
    low = max(above + 1, 0, drawn - (population - marked))
    high = min(marked, drawn)
    total = _log_choose(population, drawn)
    return math.fsum(
        math.exp(_log_choose(marked, x) + _log_choose(population - marked, drawn - x) - total)
        for x in range(low, high + 1)
    )


def _two_arcs(cohort: int, degree: int, removed: int) -> float:
    if removed < degree:
        return 0.0
    arcs = _log_choose(removed, degree) - _log_choose(cohort, degree)
    return math.exp(min(0.0, 2 * math.log(cohort) - math.log(2) + arcs))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
