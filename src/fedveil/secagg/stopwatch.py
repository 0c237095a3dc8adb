"""Where the time of a round goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Seconds by phase. A phase inside another one stops the outer one's clock."""

    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter
    _inside: float = 0.0  # seconds of the phases within the present one

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before, self._inside = self._inside, 0.0
        start = self.clock()
        try:
            yield
        finally:
            spent = self.clock() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._inside
            self._inside = before + spent

    def since(self, before: dict[str, float]) -> dict[str, float]:
        """What was added to an earlier state of `seconds`."""
        added = ((name, spent - before.get(name, 0.0)) for name, spent in self.seconds.items())
        return {name: spent for name, spent in added if spent > 0}
