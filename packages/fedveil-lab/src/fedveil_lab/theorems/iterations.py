"""How many local steps and rounds: an exact search of a score, and the papers' rules beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil_lab.theorems.bounds import FuBound, Score

DEFAULT_MAX_STEPS = 100_000
MOST_TOTAL_STEPS = 10**12  # divisors are found by trial up to the square root
MOST_CHOICES = 10**7  # of a search: seconds, and less than a gigabyte


@dataclass(frozen=True)
class Iterations:
    """A choice of local steps and rounds with its score."""

    local_steps: int
    rounds: int
    bound: float

    @property
    def total_steps(self) -> int:
        return self.local_steps * self.rounds


def divisors(number: int) -> NDArray[np.int64]:
    """Return all divisors of a positive number, ascending."""
    if count("total_steps", number) > MOST_TOTAL_STEPS:
        raise ConfigError(f"total_steps: must be at most {MOST_TOTAL_STEPS:.0e}, got {number}")
    small = np.arange(1, math.isqrt(number) + 1, dtype=np.int64)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


def score_of(score: Score, local_steps: int, rounds: int) -> Iterations:
    """Return one choice with its score."""
    counts = float(count("local_steps", local_steps)), float(count("rounds", rounds))
    value = score(*(np.array([number]) for number in counts))
    return Iterations(local_steps, rounds, float(value[0]))


def every_divisor(score: Score, total_steps: int) -> list[Iterations]:
    """Return all ways to split `total_steps` into rounds, by local steps, with their scores."""
    return [score_of(score, int(e), total_steps // int(e)) for e in divisors(total_steps)]


def best(
    score: Score,
    *,
    total_steps: int | None = None,
    local_steps: int | None = None,
    max_steps: int = DEFAULT_MAX_STEPS,
) -> Iterations:
    """Search a score exactly; of equal scores the one with the fewest local steps is taken.

    Args:
        score: What to make small.
        total_steps: Local steps times rounds. If given, all its divisors are tried.
        local_steps: Steps in a round. If only they are given, all numbers of rounds are tried; if
            neither is, all pairs.
        max_steps: The largest total that is tried where it is not given.

    Raises:
        ConfigError: The numbers do not fit together, there are too many choices, or the score is
            infinite for all of them.
    """
    if total_steps is not None and local_steps is not None:
        rounds, left = divmod(count("total_steps", total_steps), count("local_steps", local_steps))
        if left:
            raise ConfigError(
                f"total_steps = {total_steps} is not a multiple of local_steps = {local_steps}: "
                f"{total_steps - left} or {total_steps - left + local_steps} would be"
            )
        return score_of(score, local_steps, rounds)
    if total_steps is not None:
        steps = divisors(total_steps)
        turns = total_steps // steps
    else:
        most = count("max_steps", max_steps)
        if most > MOST_CHOICES * (local_steps or 1):
            raise ConfigError(f"max_steps = {max_steps}: too many choices to try. Lower it.")
        lengths = np.arange(1, most + 1)
        if local_steps is not None:
            lengths = np.array([count("local_steps", local_steps)])
        tried = most // lengths  # numbers of rounds for each number of local steps
        choices = int(tried.sum())
        if not 0 < choices <= MOST_CHOICES:
            cure = "Lower it, or give local_steps." if choices else "Raise it."
            raise ConfigError(f"max_steps = {max_steps}: {choices} choices to try. {cure}")
        steps = np.repeat(lengths, tried)
        turns = np.arange(1, choices + 1) - np.repeat(np.cumsum(tried) - tried, tried)
    values = score(steps.astype(np.float64), turns.astype(np.float64))
    at = int(np.argmin(values))
    if not math.isfinite(values[at]):
        raise ConfigError("the score is infinite for every choice: lower the learning rate")
    return Iterations(int(steps[at]), int(turns[at]), float(values[at]))


@dataclass(frozen=True)
class Advice:
    """The recommended settings, with everything they were weighed against.

    Attributes:
        score: What was searched.
        chosen: The answer; if both local steps and total were given, that choice as it stands.
        best: The best choice for the same total steps.
        rule_of_thumb: The literal T^(z/(z+1)) of Fu et al., for the same total; None for other
            scores.
        warnings: What speaks against the answer, a sentence each.
    """

    score: Score
    chosen: Iterations
    best: Iterations
    rule_of_thumb: Iterations | None
    warnings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The answer in words."""
        chosen, best, rule = self.chosen, self.best, self.rule_of_thumb
        text = (
            f"{chosen.local_steps} local steps in each of {chosen.rounds} rounds "
            f"({chosen.total_steps} steps): score {chosen.bound:.4g}"
        )
        if best != chosen:
            text += f"; {best.local_steps} in each of {best.rounds} would score {best.bound:.4g}"
        if rule is not None and rule != best:
            text += (
                f"; the rule of thumb ({rule.local_steps} local steps) is "
                f"{rule.bound / best.bound:.3g} times worse"
            )
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        rule = self.rule_of_thumb
        return {
            **vars(self.chosen),
            "score": self.score.name,
            "heuristic": self.score.heuristic or None,
            "best": vars(self.best),
            "rule_of_thumb": rule and vars(rule),
            "warnings": list(self.warnings),
            "sentence": self.sentence,
        }


def advise(
    score: Score,
    *,
    total_steps: int | None = None,
    local_steps: int | None = None,
    max_steps: int | None = None,
) -> Advice:
    """Search a score (`best`), and hold the answer against Fu's rule at the same total.

    Raises:
        ConfigError: Both a total and the largest total to try are given, or nothing can be found.
    """
    if total_steps is not None and max_steps is not None:
        raise ConfigError("max_steps: bounds a search for the total; leave it or total_steps out")
    limit = DEFAULT_MAX_STEPS if max_steps is None else max_steps
    chosen = best(score, total_steps=total_steps, local_steps=local_steps, max_steps=limit)
    total, rule, warnings = chosen.total_steps, None, list[str]()
    if isinstance(score, FuBound):
        choices, wanted = divisors(total), float(total) ** (score.growth / (score.growth + 1))
        nearest = int(choices[np.argmin(np.abs(choices - wanted))])
        rule = score_of(score, nearest, total // nearest)
        if chosen.bound >= score.initial_distance:
            warnings.append(
                f"the bound does not fall below the initial distance {score.initial_distance:g}: "
                "nothing is proved to be learnt with this noise; take more clients or steps, or a "
                "smaller gradient bound"
            )
        if total_steps is None and total > limit - chosen.local_steps:
            warnings.append(f"the best total is the largest tried, {total}: raise max_steps")
    return Advice(score, chosen, best(score, total_steps=total), rule, tuple(warnings))
