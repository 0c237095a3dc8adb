"""Where a monotone cost meets a target, approached from the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

_CLOSE = 2e-4  # relative width of the last bracket
_FAR = 700.0  # stands for log(inf), and its negative for log(0)


def least_at_most(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    *,
    least: float = 1e-9,
    most: float = 1e15,
) -> float | None:
    """The least x in [least, most], within 0.02 %, with cost(x) <= target; None if there is none.

    `cost` must not rise with x. The x returned was evaluated and met the target, and an x smaller
    by 0.02 % was evaluated and did not (unless x is `least`). Regula falsi on logarithms, with a
    bisection whenever the bracket did not halve.
    """

    def excess(log_x: float) -> float:
        value = cost(math.exp(log_x))
        if value <= 0:
            return -_FAR
        return _FAR if math.isinf(value) else math.log(value / target)

    bottom, top = math.log(least), math.log(most)
    low = high = min(max(math.log(guess), bottom), top)
    below = above = excess(low)
    step = 0.02
    while below <= 0 and low > bottom:  # walk down to where the target is exceeded
        high, above = low, below
        low = max(bottom, low - step)
        below, step = excess(low), 3 * step
    if below <= 0:
        return math.exp(low)
    step = 0.02
    while above > 0 and high < top:  # walk up to where it is met
        low, below = high, above
        high = min(top, high + step)
        above, step = excess(high), 3 * step
    if above > 0:
        return None
    while high - low > _CLOSE:
        width = high - low
        share = below / (below - above) if abs(below - above) < _FAR else 0.5
        # Aim a little to the safe side of the crossing, so that both ends move.
        middle = low + width * min(max(share + 0.1 * _CLOSE / width, 0.02), 0.98)
        value = excess(middle)
        low, below, high, above = (
            (middle, value, high, above) if value > 0 else (low, below, middle, value)
        )
        if high - low > width / 2:
            middle = (low + high) / 2
            value = excess(middle)
            low, below, high, above = (
                (middle, value, high, above) if value > 0 else (low, below, middle, value)
            )
    return math.exp(high)


def largest_at_most(cost: Callable[[int], float], target: float, most: int) -> int | None:
    """The largest whole number in [1, most] with cost(n) <= target; None if there is none.

    `cost` must not fall with n. The answer was evaluated and met the target, and the next number
    (if there is one) was evaluated and did not. Regula falsi on logarithms, then bisection.
    """
    low, below = 1, cost(1)
    if below > target:
        return None
    high = 2
    while True:
        if high > most:
            high, above = most + 1, math.inf
            break
        above = cost(high)
        if above > target:
            break
        low, below, high = high, above, 4 * high
    guesses = 6
    while high - low > 1:
        middle = (low + high) // 2
        if guesses and 0 < below < above < math.inf:
            share = math.log(target / below) / math.log(above / below)
            middle = round(math.exp(math.log(low) + share * math.log(high / low)))
            # Both ends of a tight bracket are wanted, so the guesses step aside by turns.
            aside = max(1, middle // 2000) * (1 if guesses % 2 else -1)
            middle = min(max(middle + aside, low + 1), high - 1)
            guesses -= 1
        value = cost(middle)
        if value <= target:
            low, below = middle, value
        else:
            high, above = middle, value
    return low
