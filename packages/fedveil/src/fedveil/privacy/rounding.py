"""Numbers for the eye. A bound that is rounded to nearest may be less than what is proved."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context


def at_most(bound: float, digits: int = 4) -> str:
    """An upper bound, such as epsilon or delta, to so many digits: never below itself."""
    return _rounded(bound, digits, ROUND_CEILING)


def at_least(bound: float, digits: int = 4) -> str:
    """A lower bound, such as a noise multiplier, to so many digits: never above itself."""
    return _rounded(bound, digits, ROUND_FLOOR)


def percent_at_most(share: float) -> str:
    """Write an upper bound on a share in percent, to three digits or as many as it takes.

    A share below one is never written as 100.

    >>> percent_at_most(0.6551), percent_at_most(0.999995), percent_at_most(1.0)
    ('65.6', '99.9995', '100')
    """
    percent = round(100 * share, 9)
    written = (at_most(percent, digits) for digits in range(3, 12))
    return next((text for text in written if float(text) < 100), "100")


def _rounded(number: float, digits: int, direction: str) -> str:
    if not math.isfinite(number):
        return f"{number:g}"
    written = repr(float(number))  # 1e-05 is meant, not the binary number a hair above it
    return f"{float(Context(digits, direction).create_decimal(written)):.{digits}g}"
