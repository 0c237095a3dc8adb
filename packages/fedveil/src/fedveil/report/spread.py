"""A figure over several runs: mean, deviation, and how many diverged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A figure over several seeds. `lost` runs ended in infinity or NaN and are not in the mean."""

    mean: float
    deviation: float  # of single runs; zero for one run
    runs: int
    lost: int = 0

    @property
    def error(self) -> float:
        """Return the standard error of the mean; NaN from one run."""
        return self.deviation / math.sqrt(self.runs) if self.runs > 1 else math.nan

    def __str__(self) -> str:
        if not self.runs:
            return "diverged"
        text = f"{_digits(self.mean)}"
        if self.runs > 1:
            text += f" ± {_digits(self.deviation)}"
        return text + (f" ({self.lost} diverged)" if self.lost else "")


def spread_of(values: Sequence[float | None]) -> Spread:
    finite = [value for value in values if value is not None]
    if not finite:
        return Spread(math.nan, math.nan, 0, len(values))
    deviation = statistics.stdev(finite) if len(finite) > 1 else 0.0
    return Spread(statistics.fmean(finite), deviation, len(finite), len(values) - len(finite))


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 1e5:
        return f"{value:.2e}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"
