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


def _rounded(number: float, digits: int, direction: str) -> str:
    if not math.isfinite(number):
        return f"{number:g}"
    written = repr(float(number))  # 1e-05 is meant, not the binary number a hair above it
    return f"{float(Context(digits, direction).create_decimal(written)):.{digits}g}"
