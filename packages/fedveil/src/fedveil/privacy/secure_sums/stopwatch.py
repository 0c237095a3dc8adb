"""Where the time of a round goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Seconds by phase. A phase inside another one stops the outer one's clock."""

    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    _inside: float = 0.0  # seconds of the phases within the present one

    def phase(self, name: str) -> _Phase:
        return _Phase(self, name)


class _Phase:
    """By hand: a generator would cost as much as a small round's arithmetic."""

    __slots__ = ("_before", "_name", "_start", "_watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        self._before, self._watch._inside = self._watch._inside, 0.0
        self._start = self._watch.clock()

    def __exit__(self, *_: object) -> None:
        watch, spent = self._watch, self._watch.clock() - self._start
        watch.seconds[self._name] = watch.seconds.get(self._name, 0.0) + spent - watch._inside
        watch._inside = self._before + spent
