"""Checks of single numbers: each returns the value as a plain Python number or raises BadInput."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from fedveil.errors import BadInput

LARGEST_COUNT = 10**12  # more rounds, clients or uses than this is a typing error


def positive(name: str, value: Any) -> float:
    """A finite float above zero."""
    number = _real(name, value)
    if not (math.isfinite(number) and number > 0):
        raise BadInput(f"{name}: need a finite number above 0, got {value!r}")
    return number


def not_negative(name: str, value: Any) -> float:
    """A finite float, zero allowed."""
    number = _real(name, value)
    if not (math.isfinite(number) and number >= 0):
        raise BadInput(f"{name}: need a finite number of at least 0, got {value!r}")
    return number


def fraction(name: str, value: Any) -> float:
    """A float in (0, 1]."""
    number = _real(name, value)
    if not 0 < number <= 1:
        raise BadInput(f"{name}: need a number above 0 and at most 1, got {value!r}")
    return number


def delta_value(value: Any) -> float:
    """A delta in [0, 1): zero asks for pure differential privacy."""
    number = _real("delta", value)
    if not 0 <= number < 1:
        raise BadInput(f"delta: need a number of at least 0 and below 1, got {value!r}")
    return number


def count(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{name}: need a whole number of at least {least}, got {value!r}")
    number = int(value)
    if not least <= number <= LARGEST_COUNT:
        raise BadInput(
            f"{name}: need a whole number of at least {least} and at most {LARGEST_COUNT:.0e}, "
            f"got {value!r}"
        )
    return number


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadInput(f"{name}: need a number, got {value!r}")
    return float(value)
