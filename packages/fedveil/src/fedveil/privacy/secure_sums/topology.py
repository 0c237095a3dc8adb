"""How many neighbours, how many shares: the numbers of a round's graph.

Everybody is joined to everybody, unless the terms trust the server to follow the protocol and to
draw a sparse graph. Then devices stand on a circle in an order drawn at random (`graph.py`), each
joined to the degree/2 nearest on either side, so a device's neighbours are a uniform set of
`degree` others. Shamir threshold t. With C colluding and D lost devices, both fixed independently
of that order:

* *few colluders next to anybody*: nobody has more than c colluding neighbours. Fails with
  probability at most cohort * P[Hypergeometric(cohort - 1, C, degree) > c].
* *both kinds of shares*: nobody may gather t shares of both secrets of one device. Honest
  neighbours give one kind, colluding ones both, so 2t > degree + c suffices.
* *connected*: the honest survivors must form one connected graph of masks, else the sums of the
  pieces show. If everybody masks with the m/2 nearest on either side, falling apart takes two
  disjoint arcs of m/2 positions without an honest survivor: probability at most
  cohort^2/2 * prod_{i < m} (C + D - i)/(cohort - i).
* *recovery*: every device needs t neighbours that answer to the end: fails with probability at
  most cohort * P[Hypergeometric(cohort - 1, D, degree) > degree - t]. A failed recovery costs a
  round, not privacy.

In the complete graph nothing is random, and each of these holds or does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError

# Up to here everybody is joined to everybody: a sparse graph would save little, and the complete
# one needs no luck and withstands a server that lies about who survived.
SMALL_COHORT = 32


@dataclass(frozen=True)
class Topology:
    """A decided graph for one cohort, and what can go wrong with it."""

    cohort: int
    degree: int
    masks: int  # neighbours, the nearest, with whom a device masks
    threshold: int  # shares that recover a secret
    security_failure: float  # probability, over the graph, that more than the sum may show
    recovery_failure: float  # probability, over the graph, that the sum cannot be recovered

    @property
    def complete(self) -> bool:
        return self.degree == self.cohort - 1


@lru_cache(maxsize=256)
def assess(
    cohort: int,
    degree: int,
    threshold: int,
    colluders: int,
    losses: int,
    security_failure: float = 2.0**-64,
    masks: int | None = None,
) -> Topology:
    """Compute what can go wrong with a given degree and threshold.

    Args:
        cohort: Devices in the round.
        degree: Neighbours of each device, who hold its shares.
        threshold: Shares that recover a secret.
        colluders: Devices that work with the server.
        losses: Devices that may vanish.
        security_failure: How probable a graph may be that shows more than the sum.
        masks: Neighbours with whom a device masks; None means all.

    Returns:
        The graph with the probabilities of its failures.

    Raises:
        ConfigError: No such graph exists.
    """
    masks = degree if masks is None else masks
    if not possible_degree(cohort, degree) or not 1 <= threshold <= degree:
        raise ConfigError(
            f"degree {degree} and threshold {threshold} make no graph of {cohort} devices: the "
            f"degree is even and below {cohort - 1}, or {cohort - 1}; the threshold within it"
        )
    if masks != degree and not (masks % 2 == 0 and 2 <= masks < degree < cohort - 1):
        raise ConfigError(f"masks = {masks}: need an even number up to the degree {degree}")
    if degree == cohort - 1:
        failures = (float(2 * threshold <= degree + colluders), float(threshold > degree - losses))
        return Topology(cohort, degree, degree, threshold, *failures)
    tolerated = 2 * threshold - degree - 1  # by the threshold
    expected = _colluding_neighbours(cohort, degree, colluders, security_failure)
    near = tolerated if expected is None else min(tolerated, expected)
    crowded = cohort * _tail(cohort - 1, colluders, degree, near)
    falls_apart = _two_arcs(cohort, masks, colluders + losses)
    stuck = cohort * _tail(cohort - 1, losses, degree, degree - threshold)
    failure = min(1.0, crowded + falls_apart)
    return Topology(cohort, degree, masks, threshold, failure, min(1.0, stuck))


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
    """Choose the smallest degree, and then the fewest masks, that keep both failures small.

    Args:
        cohort: Devices in the round; up to `SMALL_COHORT` of them always get the complete graph.
        colluders: Devices that work with the server.
        losses: Devices that may vanish.
        security_failure: How probable a graph may be that shows more than the sum.
        recovery_failure: How probable a graph may be that cannot recover the sum.
        sparse: Whether a graph that is not complete may be taken.

    Returns:
        The graph: the complete one where no sparse one is good enough.

    Raises:
        ConfigError: Not even the complete graph survives these losses.
    """
    if cohort < 2:
        raise ConfigError(
            f"cohort = {cohort}: a sum hides its terms only among two or more devices"
        )
    for degree in _sparse_degrees(cohort) if sparse else ():
        near = _colluding_neighbours(cohort, degree, colluders, security_failure)
        if near is None or (threshold := (degree + near) // 2 + 1) > degree:
            continue
        for masks in range(_sparse_degrees(cohort).start, degree + 1, 2):
            found = assess(cohort, degree, threshold, colluders, losses, security_failure, masks)
            if found.recovery_failure > recovery_failure:
                break
            if found.security_failure <= security_failure:
                return found
    threshold = (cohort - 1 + colluders) // 2 + 1
    if threshold > cohort - 1 - losses:
        raise ConfigError(
            f"cohort = {cohort}, colluders = {colluders}, losses = {losses}: no graph recovers; "
            f"colluders + 2 * losses must stay below {cohort - 1}"
        )
    return assess(cohort, cohort - 1, threshold, colluders, losses, security_failure)


def _sparse_degrees(cohort: int) -> range:
    """Degrees worth trying: none in a small cohort, never fewer than 2 * log2(cohort)."""
    if cohort <= SMALL_COHORT:
        return range(0)
    return range(2 * math.ceil(math.log2(cohort)), cohort - 1, 2)


def _colluding_neighbours(cohort: int, degree: int, colluders: int, failure: float) -> int | None:
    """How many colluders next to one device must be reckoned with; takes half of the failure."""
    rare = cohort * _tails(cohort - 1, colluders, degree)[1:-1] <= failure / 2
    return int(np.argmax(rare)) if rare.any() else None


def _tail(population: int, marked: int, drawn: int, above: int) -> float:
    """P[X > above] for X hypergeometric: `drawn` of `population`, of which `marked` count."""
    return float(_tails(population, marked, drawn)[min(max(above, -1), drawn) + 1])


@lru_cache(maxsize=4)
def _tails(population: int, marked: int, drawn: int) -> npt.NDArray[np.float64]:
    """Return tails for all `above` from -1 to `drawn`, never below the exact probability."""
    ways = [math.comb(marked, x) * math.comb(population - marked, drawn - x) for x in range(drawn)]
    ways.append(math.comb(marked, drawn))
    beyond, total = [0, *accumulate(ways[::-1])], math.comb(population, drawn)
    return np.array([_at_least(count, total) for count in beyond[::-1]])


def _two_arcs(cohort: int, masks: int, removed: int) -> float:
    arcs = cohort**2 * math.comb(removed, masks), 2 * math.comb(cohort, masks)
    return min(1.0, _at_least(*arcs))


def _at_least(part: int, whole: int) -> float:
    """Return a quotient rounded up: no probability is rounded to zero."""
    return math.nextafter(part / whole, math.inf) if part else 0.0
