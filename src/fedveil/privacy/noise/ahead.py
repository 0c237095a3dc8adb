"""Exact noise for several sums of one stream drawn at once: half of a short draw is its start."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedveil.core.randomness import Stream
from fedveil.privacy.noise.rounded import rounded_gaussian
from fedveil.privacy.noise.slabs import Integers

_MOST = 1_000_000  # integers held at once


class Ahead:
    """A stream that gives rounded Gaussians of one spread to `sums` vectors of one size; the
    stream itself in all else."""

    def __init__(self, stream: Stream, sums: int) -> None:
        self._stream, self._left = stream, sums
        self._drawn = np.empty((0, 0), dtype=np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def rounded_gaussian(self, count: int, std: float) -> Integers:
        """The next vector's noise, `[count]`."""
        if not len(self._drawn):
            rows = max(1, min(self._left, _MOST // max(1, count)))
            self._left -= rows
            self._drawn = rounded_gaussian(self._stream, rows * count, std).reshape(rows, count)
        row: Integers = self._drawn[0]
        self._drawn = self._drawn[1:]
        return row
