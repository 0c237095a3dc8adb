"""How many local steps and rounds: exact searches of a score, and rules of thumb beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import BadInput
from fedveil.planning.bounds import FuBound, Score
from fedveil.privacy.arguments import count, not_negative

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


def fu_bound(
    steps: int,
    local_steps: int,
    rounds: int,
    strong_convexity: float,
    smoothness: float,
    gradient_bound: float,
    heterogeneity: float,
    initial_distance: float,
    noise_constant: float,
    growth: float,
    clients: int,
    cohort: int,
) -> float:
    """Theorem 3 of Fu et al. after `steps` steps, in the order of the paper's symbols.

    k, E, T_g, mu, lambda, G, Gamma, Y_0, C_M, z, N, b.
    """
    bound = FuBound(
        strong_convexity,
        smoothness,
        gradient_bound,
        heterogeneity,
        initial_distance,
        clients,
        cohort,
        noise_constant,
        growth,
    )
    for name, value in (("steps", steps), ("local_steps", local_steps), ("rounds", rounds)):
        count(name, value)
    return float(bound.after(*(np.array(float(x)) for x in (steps, local_steps, rounds))))


def divisors(number: int) -> NDArray[np.int64]:
    """All divisors of a positive number, ascending."""
    if count("total_steps", number) > MOST_TOTAL_STEPS:
        raise BadInput(f"total_steps: need at most {MOST_TOTAL_STEPS:.0e}, got {number}")
    small = np.arange(1, math.isqrt(number) + 1, dtype=np.int64)
    small = small[number % small == 0]
    large = number // small[::-1]
    return np.concatenate([small, large[large > small[-1]]])


def score_of(score: Score, local_steps: int, rounds: int) -> Iterations:
    """One choice with its score."""
    count("local_steps", local_steps)
    count("rounds", rounds)
    value = score(np.array([float(local_steps)]), np.array([float(rounds)]))
    return Iterations(local_steps, rounds, float(value[0]))


def split(total_steps: int, local_steps: int) -> int:
    """Rounds of `local_steps` steps in `total_steps`; they must divide."""
    count("total_steps", total_steps)
    count("local_steps", local_steps)
    rounds, left = divmod(total_steps, local_steps)
    if left:
        raise BadInput(
            f"total_steps = {total_steps} is no multiple of local_steps = {local_steps}: "
            f"{total_steps - left} or {total_steps - left + local_steps} would be"
        )
    return rounds


def every_divisor(score: Score, total_steps: int) -> list[Iterations]:
    """All ways to split `total_steps` into rounds, by local steps, with their scores."""
    steps = divisors(total_steps)
    rounds = total_steps // steps
    values = score(steps.astype(np.float64), rounds.astype(np.float64))
    return [
        Iterations(int(e), int(r), float(v)) for e, r, v in zip(steps, rounds, values, strict=True)
    ]


def best_local_steps(score: Score, total_steps: int) -> Iterations:
    """The best number of local steps for a given total, over all divisors of it."""
    return _finite(min(every_divisor(score, total_steps), key=lambda choice: choice.bound))


def best_rounds(score: Score, local_steps: int, max_steps: int) -> Iterations:
    """The best number of rounds for given local steps, over all totals up to `max_steps`."""
    count("local_steps", local_steps)
    most = count("max_steps", max_steps) // local_steps
    if most == 0:
        raise BadInput(f"max_steps = {max_steps}: not one round of {local_steps} local steps")
    if most > MOST_ROUNDS:
        raise BadInput(
            f"max_steps = {max_steps}: {most} rounds to try, at most {MOST_ROUNDS} are; lower it "
            "or raise local_steps"
        )
    best = Iterations(local_steps, 1, math.inf)
    steps = np.float64(local_steps)
    for first in range(1, most + 1, _CHUNK):
        rounds = np.arange(first, min(first + _CHUNK, most + 1), dtype=np.float64)
        values = score(np.broadcast_to(steps, rounds.shape), rounds)
        at = int(np.argmin(values))
        if values[at] < best.bound:
            best = Iterations(local_steps, first + at, float(values[at]))
    return _finite(best)


def best_rounds_within(score: Score, best: Iterations, slack: float) -> Iterations:
    """The fewest rounds of as many local steps whose score is at most `slack` times the best."""
    rounds = np.arange(1, best.rounds + 1, dtype=np.float64)
    values = score(np.full_like(rounds, best.local_steps), rounds)
    at = int(np.argmax(values <= slack * best.bound))
    return Iterations(best.local_steps, at + 1, float(values[at]))


def best_iterations(score: Score, max_steps: int) -> Iterations:
    """The best local steps and rounds together, over all pairs with a total of up to `max_steps`.

    Exact. Every pair has one factor of at most sqrt(max_steps), so two families of short loops,
    each over whole arrays of the other factor, see them all.
    """
    if count("max_steps", max_steps) > MOST_JOINT_STEPS:
        raise BadInput(f"max_steps: a joint search takes up to {MOST_JOINT_STEPS}, got {max_steps}")
    best = Iterations(1, 1, math.inf)
    root = math.isqrt(max_steps)
    for small in range(1, root + 1):
        others = np.arange(small, max_steps // small + 1, dtype=np.float64)
        fixed = np.full_like(others, small)
        for steps_small in (True, False):
            values = score(fixed, others) if steps_small else score(others, fixed)
            at = int(np.argmin(values))
            if values[at] < best.bound:
                pair = (small, small + at) if steps_small else (small + at, small)
                best = Iterations(*pair, float(values[at]))
    return _finite(best)


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


def _finite(best: Iterations) -> Iterations:
    if not math.isfinite(best.bound):
        raise BadInput("the score is infinite for every choice: lower the learning rate")
    return best
