"""Where a monotone cost meets a target, approached from the safe side."""

from __future__ import annotations

import math
from bisect import bisect_right
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
    """Return the least x in [least, most], within 0.02 %, with cost(x) <= target.

    Args:
        cost: Must not rise with x.
        target: What it may be at most.
        guess: Where to begin.
        least, most: Bounds on x.

    Returns:
        An x that was evaluated and met the target, while one smaller by 0.02 % was evaluated and
        did not (unless x is `least`); None if not even `most` meets it.
    """
    from scipy.optimize import brentq

    seen: dict[float, float] = {}

    def excess(log_x: float) -> float:
        if log_x not in seen:
            value = cost(math.exp(log_x))
            far = _FAR if math.isinf(value) else -_FAR
            seen[log_x] = math.log(value / target) if 0 < value < math.inf else far
        return seen[log_x]

    bottom, top, step = math.log(least), math.log(most), 0.02
    low = high = min(max(math.log(guess), bottom), top)
    while excess(low) <= 0 and low > bottom:
        low, high, step = max(bottom, low - step), low, 3 * step
    while excess(high) > 0 and high < top:
        low, high, step = high, min(top, high + step), 3 * step
    if excess(high) > 0:
        return None
    if excess(low) > 0:
        brentq(excess, low, high, xtol=_CLOSE / 2)
    return math.exp(min(log_x for log_x, value in seen.items() if value <= 0))


def largest_at_most(cost: Callable[[int], float], target: float, most: int) -> int | None:
    """Return the largest whole number in [1, most] with cost(n) <= target; None if there is none.

    `cost` must not fall with n. The answer was evaluated and met the target, and the next number
    (if there is one) was evaluated and did not.
    """
    if cost(1) > target:
        return None
    high = 2
    while high <= most and cost(high) <= target:
        high *= 4
    low = max(1, high // 4)
    return low + bisect_right(range(low + 1, min(high, most + 1)), target, key=cost)
