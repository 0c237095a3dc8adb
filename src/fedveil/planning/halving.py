"""Successive halving: many candidates on little, the better on more, the best on everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc

from fedveil.planning.space import Candidate, Point, Space


@dataclass(frozen=True)
class Rung:
    """How thoroughly candidates are tried: with which share of the cohort, under how many seeds."""

    share: float
    seeds: int
    keep: int  # candidates that go on to the next rung


@dataclass(frozen=True)
class Bracket:
    """One halving: so many candidates, through these rungs."""

    candidates: int
    rungs: tuple[Rung, ...]


# One run a candidate at first: what its neighbours do says more than a second run of its own.
FIRST = Bracket(36, (Rung(1 / 9, 1, 12), Rung(1 / 3, 1, 6), Rung(1.0, 2, 1)))
# Later ones are small: what the next should try is guessed from all that was tried before.
LATER = Bracket(12, (Rung(1 / 9, 1, 5), Rung(1 / 3, 1, 3), Rung(1.0, 2, 1)))

Score = Callable[[Candidate, Rung], float]  # to be made small


def halve(candidates: Sequence[Candidate], rungs: Sequence[Rung], score: Score) -> list[Candidate]:
    """The candidates that are left after all rungs, best first."""
    left = list(dict.fromkeys(candidates))
    for rung in rungs:
        scores = {candidate: score(candidate, rung) for candidate in left}
        left = sorted(left, key=lambda candidate: scores[candidate])[: rung.keep]
    return left


def spread_out(space: Space, box: tuple[Point, Point], number: int, seed: int) -> list[Candidate]:
    """`number` different candidates spread evenly over a box; fewer if it holds no more."""
    low, high = box
    if not len(low):
        return [space.base]
    sequence = qmc.Halton(len(low), seed=seed)
    found: dict[Candidate, None] = {}
    for _ in range(4):  # points may round to the same candidate
        for point in sequence.random(number):
            found.setdefault(space.candidate(np.asarray(low + point * (high - low))))
            if len(found) == number:
                return list(found)
    return list(found)


def mean_error(errors: Sequence[float]) -> float:
    """The mean; infinite if nothing was tried or anything diverged."""
    return math.inf if not errors else float(np.mean(errors))
