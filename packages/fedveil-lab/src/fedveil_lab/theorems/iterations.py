"""How many local steps and rounds: exact searches of a score, the rules of thumb, and advice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.arguments import count, not_negative
from fedveil.core.errors import ConfigError
from fedveil.tune.feasible import about
from fedveil_lab.theorems.bounds import FuBound, Numbers, Score

DEFAULT_MAX_STEPS = 100_000
MOST_TOTAL_STEPS = 10**12  # divisors are found by trial up to the square root
MOST_ROUNDS = 5 * 10**7  # candidates of a search over rounds: seconds
MOST_JOINT_STEPS = 10**7  # total steps of a joint search: seconds
_CHUNK = 1 << 20


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
    """All divisors of a positive number, ascending."""
    if count("total_steps", number) > MOST_TOTAL_STEPS:
        raise ConfigError(f"total_steps: must be at most {MOST_TOTAL_STEPS:.0e}, got {number}")
    small = np.arange(1, math.isqrt(number) + 1, dtype=np.int64)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


def score_of(score: Score, local_steps: int, rounds: int) -> Iterations:
    """One choice with its score."""
    count("local_steps", local_steps)
    count("rounds", rounds)
    value = score(np.array([float(local_steps)]), np.array([float(rounds)]))
    return Iterations(local_steps, rounds, float(value[0]))


def split(total_steps: int, local_steps: int) -> int:
    """Rounds of `local_steps` steps in `total_steps`; they must divide."""
    rounds, left = divmod(count("total_steps", total_steps), count("local_steps", local_steps))
    if left:
        raise ConfigError(
            f"total_steps = {total_steps} is not a multiple of local_steps = {local_steps}: "
            f"{total_steps - left} or {total_steps - left + local_steps} would be"
        )
    return rounds


def every_divisor(score: Score, total_steps: int) -> list[Iterations]:
    """All ways to split `total_steps` into rounds, by local steps, with their scores."""
    steps = divisors(total_steps)
    rounds = total_steps // steps
    values = score(steps.astype(np.float64), rounds.astype(np.float64))
    choices = zip(steps.tolist(), rounds.tolist(), values.tolist(), strict=True)
    return [Iterations(*choice) for choice in choices]


def best_local_steps(score: Score, total_steps: int) -> Iterations:
    """The best number of local steps for a given total, over all divisors of it."""
    return _least(every_divisor(score, total_steps))


def best_rounds(score: Score, local_steps: int, max_steps: int) -> Iterations:
    """The best number of rounds for given local steps, over all totals up to `max_steps`."""
    most = count("max_steps", max_steps) // count("local_steps", local_steps)
    if most == 0:
        raise ConfigError(
            f"max_steps = {max_steps}: too few for one round of {local_steps} local steps"
        )
    if most > MOST_ROUNDS:
        raise ConfigError(
            f"max_steps = {max_steps}: {most} rounds to try, at most {MOST_ROUNDS} are; lower it "
            "or raise local_steps"
        )
    chunks = (
        np.arange(first, min(first + _CHUNK, most + 1), dtype=np.float64)
        for first in range(1, most + 1, _CHUNK)
    )
    return _least(_best_of(score, np.full_like(rounds, local_steps), rounds) for rounds in chunks)


def best_iterations(score: Score, max_steps: int) -> Iterations:
    """The best local steps and rounds together, over all pairs with a total of up to `max_steps`.

    Exact. Every pair has one factor of at most sqrt(max_steps), so two families of short loops,
    each over whole arrays of the other factor, see them all.
    """
    if count("max_steps", max_steps) > MOST_JOINT_STEPS:
        raise ConfigError(
            f"max_steps: must be at most {MOST_JOINT_STEPS} to search both, got {max_steps}"
        )

    def families() -> Iterator[Iterations]:
        for small in range(1, math.isqrt(max_steps) + 1):
            others = np.arange(small, max_steps // small + 1, dtype=np.float64)
            fixed = np.full_like(others, small)
            yield _best_of(score, fixed, others)
            yield _best_of(score, others, fixed)

    return _least(families())


def rule_of_thumb(score: Score, total_steps: int, growth: float) -> Iterations:
    """The paper's T^(z/(z+1)) taken literally, at the nearest divisor of the total."""
    not_negative("growth", growth)
    return _at_divisor(score, total_steps, float(total_steps) ** (growth / (growth + 1)))


def asymptotic_rule(score: FuBound, total_steps: int) -> Iterations:
    """The rule with the constant that the paper leaves out, at the nearest divisor of the total."""
    return _at_divisor(score, total_steps, score.asymptotic_local_steps(total_steps))


def _at_divisor(score: Score, total_steps: int, wanted: float) -> Iterations:
    choices = divisors(total_steps)
    nearest = int(choices[np.argmin(np.abs(choices - wanted))])
    return score_of(score, nearest, total_steps // nearest)


def _best_of(score: Score, local_steps: Numbers, rounds: Numbers) -> Iterations:
    values = score(local_steps, rounds)
    at = int(np.argmin(values))
    return Iterations(int(local_steps[at]), int(rounds[at]), float(values[at]))


def _least(choices: Iterable[Iterations]) -> Iterations:
    """The first choice of the lowest score."""
    best = min(choices, key=lambda choice: choice.bound)
    if not math.isfinite(best.bound):
        raise ConfigError("the score is infinite for every choice: lower the learning rate")
    return best


@dataclass(frozen=True)
class Advice:
    """What to run, with everything it was weighed against.

    chosen: the answer; if both local steps and total were given, that choice as it stands.
    best: the best choice for the same total steps.
    rule_of_thumb: the literal T^(z/(z+1)) of the paper; asymptotic: the same with its constant;
    one_step: a round after every step. All for the same total; the rules belong to Fu's bound.
    """

    score: Score
    chosen: Iterations
    best: Iterations
    one_step: Iterations
    rule_of_thumb: Iterations | None
    asymptotic: Iterations | None
    warnings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The answer in words."""
        chosen, best, rule = self.chosen, self.best, self.rule_of_thumb
        text = (
            f"{_times(chosen.local_steps, 'local step')} in each of "
            f"{_times(chosen.rounds, 'round')} ({chosen.total_steps} steps): "
            f"score {chosen.bound:.4g}"
        )
        if best != chosen:
            text += (
                f"; {best.local_steps} local steps and {best.rounds} rounds would score "
                f"{best.bound:.4g}"
            )
        if rule is not None and rule != best:
            worse = rule.bound / best.bound
            text += (
                f"; the rule of thumb ({rule.local_steps} local steps) is {worse:.3g} times worse"
            )
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        others = ("best", "rule_of_thumb", "asymptotic", "one_step")
        return {
            **self._choice(self.chosen),
            "score": self.score.name,
            "heuristic": self.score.heuristic or None,
            **{name: (c := getattr(self, name)) and self._choice(c) for name in others},
            "warnings": list(self.warnings),
            "sentence": self.sentence,
        }

    def _choice(self, choice: Iterations) -> dict[str, Any]:
        worse = choice.bound / self.best.bound
        return {**vars(choice), "total_steps": choice.total_steps, "times_worse": worse}


def advise(
    score: Score,
    *,
    total_steps: int | None = None,
    local_steps: int | None = None,
    max_steps: int | None = None,
) -> Advice:
    """The best local steps for a total, the best total for local steps, or both at once.

    `max_steps` bounds the total where it is searched (100 000 if not given).
    """
    if total_steps is not None and max_steps is not None:
        raise ConfigError("max_steps: bounds a search for the total; leave it or total_steps out")
    limit = DEFAULT_MAX_STEPS if max_steps is None else max_steps
    if total_steps is not None and local_steps is not None:
        chosen = score_of(score, local_steps, split(total_steps, local_steps))
    elif total_steps is not None:
        chosen = best_local_steps(score, total_steps)
    elif local_steps is not None:
        chosen = best_rounds(score, local_steps, limit)
    else:
        chosen = best_iterations(score, limit)
    total = chosen.total_steps
    fu = score if isinstance(score, FuBound) else None
    return Advice(
        score,
        chosen,
        best_local_steps(score, total),
        score_of(score, 1, total),
        rule_of_thumb(score, total, fu.growth) if fu else None,
        asymptotic_rule(fu, total) if fu else None,
        _warnings(fu, chosen, limit if total_steps is None else None) if fu else (),
    )


def clients_needed(score: FuBound, total_steps: int, target: float) -> int | None:
    """Clients at which the best split of `total_steps` scores `target`, the rate kept as it is.

    The noise constant falls as 1/clients. None if no number of clients helps.
    """

    def best(clients: float) -> float:
        return best_local_steps(score.with_noise(score.clients / clients), total_steps).bound

    low, high = float(score.clients), 1e15
    if best(high) > target:
        return None
    if best(low) <= target:
        return score.clients
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if best(middle) <= target else (middle, high)
    return math.ceil(high)


def _warnings(score: FuBound, chosen: Iterations, limit: int | None) -> tuple[str, ...]:
    found = []
    if chosen.bound >= score.initial_distance:
        needed = clients_needed(score, chosen.total_steps, score.initial_distance / 2)
        cure = "more clients will not help; give it more steps, or a smaller gradient bound"
        if needed is not None and score.noise_constant > 0:
            cure = (
                f"at the same rate, {about(needed)} clients (now {score.clients}) would "
                "halve the distance"
            )
        found.append(
            f"the bound does not fall below the initial distance {score.initial_distance:g}: "
            f"nothing is proved to be learnt with this noise; {cure}"
        )
    if limit is not None and chosen.total_steps > limit - chosen.local_steps:
        found.append(f"the best total is the largest tried, {chosen.total_steps}: raise max_steps")
    return tuple(found)


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
