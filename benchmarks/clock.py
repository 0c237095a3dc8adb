"""Counts rounds inside a measured process: warm-up apart, until there are enough."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Span:
    """How long to measure: at least `least` rounds, then until `seconds` or `most` rounds."""

    started: float  # `time.time()` when the process was asked for
    warm_up: int
    seconds: float
    least: int
    most: int
    processor: bool = False  # seconds of this process on a processor, instead of wall time

    @property
    def rounds(self) -> int:
        """The most rounds that can happen, warm-up included."""
        return self.warm_up + self.most


@dataclass
class Clock:
    """Call `lap` after every round; `enough` says when to stop."""

    span: Span
    start_seconds: float = 0.0
    laps: list[float] = field(default_factory=list)  # seconds of rounds after the warm-up
    configuration: str = ""  # what the system chose by itself
    _rounds: int = 0
    _last: float = 0.0

    def lap(self) -> None:
        now = self._now()
        if self._rounds == 0:
            self.start_seconds = time.time() - self.span.started
        elif self._rounds >= self.span.warm_up:
            self.laps.append(now - self._last)
        self._rounds += 1
        self._last = self._now()

    def _now(self) -> float:
        return time.process_time() if self.span.processor else time.perf_counter()

    @property
    def enough(self) -> bool:
        if len(self.laps) < self.span.least:
            return False
        return len(self.laps) >= self.span.most or sum(self.laps) >= self.span.seconds


def peak_memory_mb() -> float:
    """The largest resident memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
