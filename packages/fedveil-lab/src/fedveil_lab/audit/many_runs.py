"""The tight audit: thousands of games, and what they refute.

Half of the games choose the attack: the statistic and the threshold above which it says "there".
The other half count how often it is right, so that choosing costs no confidence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedveil.planning.plan import Plan
from fedveil.privacy.distinguishing import attack_on
from fedveil.privacy.guarantee import Guarantee
from fedveil_lab.audit.bounds import (
    Rates,
    at_least,
    at_most,
    gaussian_dp_epsilon,
    gaussian_separation,
    refuted_epsilon,
)
from fedveil_lab.audit.games import Floats, Scores, game_of, play

_POINTS = 400  # thresholds that are tried
_LEAST = 200  # games without which nothing is said
_BOUGHT = "the noise on statistics of columns that were bought before the training"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Refutation:
    """A contradiction: a true-positive rate above what is proved at a false-positive rate."""

    false_positives: float  # at most
    at_least: float  # true positives
    allowed: float


@dataclass(frozen=True)
class ManyRuns:
    """The result of the games, at confidence 1 - alpha for all of it together.

    epsilon: assumes nothing. gaussian: interval for epsilon if the two worlds look like Gaussians.
    """

    games: int
    statistic: str
    epsilon: float
    separation: tuple[float, float]
    gaussian: tuple[float, float]
    refuted: Refutation | None
    not_tried: tuple[str, ...]
    complete: bool


@dataclass(frozen=True)
class _Attack:
    statistic: str
    turned: bool  # says "absent" below, rather than "there" above
    threshold: float

    def rates(self, there: Scores, absent: Scores) -> Rates:
        one, other = there[self.statistic], absent[self.statistic]
        if self.turned:
            one, other = -other, -one
        hits, alarms = one > self.threshold, other > self.threshold
        return Rates(int(hits.sum()), len(one), int(alarms.sum()), len(other))


def many_runs(
    plan: Plan,
    *,
    games: int = 20_000,
    alpha: float = 0.05,
    seed: int = 0,
    seconds: float = math.inf,
    progress: Progress = lambda done, of: None,
) -> ManyRuns:
    """Play the plan's game and bound epsilon from below."""
    guarantee = plan.guarantee
    game = game_of(plan)
    if guarantee is None:
        raise ValueError("a game needs a guarantee")
    scores, done = list[Scores](), 0
    ends = time.monotonic() + seconds
    while done < games and (done < _LEAST or time.monotonic() < ends):
        some = min(game.most, games - done) // 2 * 2 or 2
        there = np.arange(some) % 2 == 0
        scores.append(play(game, seed * 2**20 + len(scores), there))
        done += some
        progress(min(done, games), games)
    joined = {name: np.concatenate([one[name] for one in scores]) for name in scores[0]}
    one, other = ({n: s[half::2] for n, s in joined.items()} for half in (0, 1))
    each = alpha / 4  # two attacks, two rates each
    statistic, found = judged(one, other, guarantee.delta, each)
    epsilon = max(float(refuted_epsilon(*one.bounds(each), guarantee.delta)) for one in found)
    low, high = found[1].separation(each)
    delta = guarantee.delta or 1e-5  # Gaussians have no epsilon at delta zero
    return ManyRuns(
        done,
        statistic,
        epsilon,
        (low, high),
        (gaussian_dp_epsilon(low, delta), gaussian_dp_epsilon(high, delta)),
        _refutation(guarantee, epsilon, [one.bounds(each) for one in found]),
        game.not_tried if plan.federation.bought is None else (*game.not_tried, _BOUGHT),
        done >= games,
    )


def judged(one: Scores, other: Scores, delta: float, alpha: float) -> tuple[str, list[Rates]]:
    """Two attacks and how often they are right: half of the scores choose, the others count.

    The first is best for epsilon at `delta`, the second for how far apart two Gaussians are.
    """
    (chosen_one, counted_one), (chosen_other, counted_other) = _halves(one), _halves(other)
    attacks = _choose(chosen_one, chosen_other, delta, alpha)
    return attacks[0].statistic, [each.rates(counted_one, counted_other) for each in attacks]


def _halves(scores: Scores) -> tuple[Scores, Scores]:
    return {n: s[0::2] for n, s in scores.items()}, {n: s[1::2] for n, s in scores.items()}


def _choose(one: Scores, other: Scores, delta: float, alpha: float) -> tuple[_Attack, _Attack]:
    """The attack with the best bound on epsilon, and the one with the best bound on mu."""
    found: list[tuple[float, float, _Attack]] = []
    for name in one:
        for turned in (False, True):
            there, absent = (-other[name], -one[name]) if turned else (one[name], other[name])
            thresholds = _thresholds(there, absent)
            tpr = at_least(_above(there, thresholds), len(there), alpha)
            fpr = at_most(_above(absent, thresholds), len(absent), alpha)
            values = (refuted_epsilon(tpr, fpr, delta), gaussian_separation(tpr, fpr))
            for epsilon, mu, threshold in zip(*values, thresholds, strict=True):
                found.append((epsilon, mu, _Attack(name, turned, float(threshold))))
    return max(found, key=lambda it: it[0])[2], max(found, key=lambda it: it[1])[2]


def _thresholds(there: Floats, absent: Floats) -> Floats:
    return np.unique(np.quantile(np.concatenate([there, absent]), np.linspace(0, 1, _POINTS)))


def _above(scores: Floats, thresholds: Floats) -> Floats:
    ranked = np.sort(scores)
    above: Floats = (len(scores) - np.searchsorted(ranked, thresholds, side="right")).astype(float)
    return above


def _refutation(
    certified: Guarantee, epsilon: float, rates: list[tuple[float, float]]
) -> Refutation | None:
    """Where the proved curve is contradicted most; None if nowhere.

    The bounds on rates hold together, so comparing them with a whole curve costs no confidence.
    """
    proved = attack_on(certified)
    found = [Refutation(false, true, proved.true_positives(false)) for true, false in rates]
    worst = max(found, key=lambda it: it.at_least - it.allowed)
    return worst if worst.at_least > worst.allowed or epsilon > certified.epsilon else None
