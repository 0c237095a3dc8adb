"""From counts to lower bounds on epsilon, at a stated confidence.

An attack that says "it was there" with probability `tpr` if it was and `fpr` if it was not refutes
every (epsilon, delta) with tpr > exp(epsilon) * fpr + delta. Clopper-Pearson intervals stand for
the two probabilities; nothing else is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from fedveil.privacy.accountants.exact import gaussian_epsilon

Floats = npt.NDArray[np.float64]


def at_most(hits: npt.ArrayLike, tries: int, alpha: float) -> Floats:
    """Upper Clopper-Pearson bound on a probability; wrong with probability alpha at most."""
    k = np.asarray(hits, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(np.minimum(k + 1, tries), np.maximum(tries - k, 1e-300), 1 - alpha)
    return np.where(k >= tries, 1.0, bound)


def at_least(hits: npt.ArrayLike, tries: int, alpha: float) -> Floats:
    """Lower Clopper-Pearson bound on a probability."""
    return 1.0 - at_most(tries - np.asarray(hits), tries, alpha)


def refuted_epsilon(tpr: npt.ArrayLike, fpr: npt.ArrayLike, delta: float) -> Floats:
    """The largest epsilon that these probabilities refute at `delta`; 0 if none."""
    gain = np.maximum(np.asarray(tpr) - delta, 1e-300)
    epsilon: Floats = np.maximum(0.0, np.log(gain / np.maximum(np.asarray(fpr), 1e-300)))
    return epsilon


def gaussian_separation(tpr: npt.ArrayLike, fpr: npt.ArrayLike) -> Floats:
    """The mu at which two unit Gaussians are told apart this well."""
    with np.errstate(invalid="ignore"):
        mu = ndtri(np.asarray(tpr)) - ndtri(np.asarray(fpr))
    return np.where(np.isfinite(mu), mu, 0.0)


def gaussian_dp_epsilon(mu: float, delta: float) -> float:
    """Epsilon at `delta` of two Gaussians mu standard deviations apart."""
    return 0.0 if mu <= 0 else gaussian_epsilon(1 / mu, delta)


@dataclass(frozen=True)
class Rates:
    """How often an attack said "there": of `present` games with it, and of `absent` without."""

    hits: int
    present: int
    false_alarms: int
    absent: int

    def bounds(self, alpha: float) -> tuple[float, float]:
        """The true rate at least, the false rate at most; each wrong with probability alpha."""
        return (
            float(at_least(self.hits, self.present, alpha)),
            float(at_most(self.false_alarms, self.absent, alpha)),
        )

    def separation(self, alpha: float) -> tuple[float, float]:
        """An interval for mu, if the two are Gaussians; infinite above where nothing was missed."""
        low = float(gaussian_separation(*self.bounds(alpha)))
        most = at_most(self.hits, self.present, alpha)
        least = at_least(self.false_alarms, self.absent, alpha)
        high = float(ndtri(most) - ndtri(least))
        return max(0.0, low), high if high > low else math.inf


def guessing_p_value(
    guesses: int, right: int, canaries: int, epsilon: float, delta: float
) -> float:
    """How likely an (epsilon, delta)-private run is to let `right` of `guesses` guesses be right.

    One run in which each of `canaries` units was there by a fair coin of its own (Steinke, Nasr,
    Jagielski 2023, theorem 5.2). Without delta the right guesses are no more than a binomial
    with the accuracy of randomised response; delta moves some of its tail.
    """
    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, accuracy))
    if right == 0 or delta == 0:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - steps, guesses, accuracy))
    return min(1.0, tail + float((below / steps).max()) * 2 * canaries * delta)


def contradicted(
    least: Callable[[float], float], guesses: int, right: int, canaries: int, alpha: float
) -> bool:
    """Whether so many right guesses have probability alpha at most, whatever the adversary does.

    `least(p)` is the smallest probability, without a unit, of what has probability p with it: the
    whole curve of a mechanism and not one epsilon (Mahloujifar, Melis and Chaudhuri 2024,
    algorithm 3, for two worlds). Goes down from `right` guesses to none: if their probability were
    alpha, so much would have to be spent on fewer right guesses that it exceeds all there is.
    """
    hit, missed = alpha * right / canaries, alpha * (guesses - right) / canaries
    for fewer in range(right - 1, -1, -1):
        more = max(missed, least(hit))
        if more == missed:
            break
        hit = min(1.0, hit + fewer / (guesses - fewer) * (more - missed))
        missed = more
    return hit + missed > guesses / canaries


def guessed_separation(guesses: int, right: int, canaries: int, alpha: float) -> float:
    """The largest mu whose Gaussian curve so many right guesses contradict; 0 if none."""

    def refuted(mu: float) -> bool:
        return contradicted(lambda p: float(ndtr(ndtri(p) - mu)), guesses, right, canaries, alpha)

    return _largest(refuted)


def guessed_epsilon(guesses: int, right: int, canaries: int, delta: float, alpha: float) -> float:
    """The largest epsilon that so many right guesses refute, wrong with probability alpha."""
    return _largest(lambda e: guessing_p_value(guesses, right, canaries, e, delta) <= alpha)


def _largest(refuted: Callable[[float], bool]) -> float:
    """Where a statement that is refuted from zero on ceases to be; 0 if it never is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < 64:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low
