"""The answer to "how many iterations?": the best choice, the price of the rules, warnings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedveil.errors import BadInput
from fedveil.planning.bounds import FuBound, Score
from fedveil.planning.iterations import (
    Iterations,
    asymptotic_rule,
    best_iterations,
    best_local_steps,
    best_rounds,
    rule_of_thumb,
    score_of,
    split,
)
from fedveil.planning.spending import about

DEFAULT_MAX_STEPS = 100_000


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
        chosen = self.chosen
        text = (
            f"{_times(chosen.local_steps, 'local step')} in each of "
            f"{_times(chosen.rounds, 'round')} ({chosen.total_steps} steps): "
            f"score {chosen.bound:.4g}"
        )
        if self.best != chosen:
            text += (
                f"; {self.best.local_steps} local steps and {self.best.rounds} rounds would score "
                f"{self.best.bound:.4g}"
            )
        if self.rule_of_thumb is not None and self.rule_of_thumb != self.best:
            worse = self.rule_of_thumb.bound / self.best.bound
            text += (
                f"; the rule of thumb ({self.rule_of_thumb.local_steps} local steps) is "
                f"{worse:.3g} times worse"
            )
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **_choice(self.chosen, self.best),
            "score": self.score.name,
            "heuristic": self.score.heuristic or None,
            "best": _choice(self.best, self.best),
            "rule_of_thumb": self.rule_of_thumb and _choice(self.rule_of_thumb, self.best),
            "asymptotic": self.asymptotic and _choice(self.asymptotic, self.best),
            "one_step": _choice(self.one_step, self.best),
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
    """The best local steps for a total, the best total for local steps, or both at once.

    `max_steps` bounds the total where it is searched (100 000 if not given).
    """
    if total_steps is not None and max_steps is not None:
        raise BadInput("max_steps: goes with a search for the total; leave out total_steps or it")
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
        quiet = score.with_noise(score.clients / clients)
        return best_local_steps(quiet, total_steps).bound

    most = 1e15
    if best(most) > target:
        return None
    low, high = float(score.clients), most
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


def _choice(choice: Iterations, best: Iterations) -> dict[str, Any]:
    return {
        "local_steps": choice.local_steps,
        "rounds": choice.rounds,
        "total_steps": choice.total_steps,
        "bound": choice.bound,
        "times_worse": choice.bound / best.bound,
    }


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
