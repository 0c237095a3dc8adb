"""Correlated noise, drawn: fresh noise less what past rounds have left of theirs.

Exact on a grid. Let x be whole steps of it, m = 2^12 c whole numbers and G a continuous Gaussian,
rounded to 2^-12 steps. A round adds the whole number

    w_t = floor((G_t - sum_k m_k w_(t-k)) / 2^12 + 1/2).

Then y = x + w obeys y_t = floor((s_t - sum_k m_k y_(t-k)) / 2^12 + 1/2) with
s_t = 2^12 x_t + sum_k m_k x_(t-k) + G_t, since whole steps pass through the floor: y follows from
s alone, and s is the continuous mechanism on C x, rounded on a grid on which C x lies.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import FedveilError
from fedveil.core.randomness import Stream
from fedveil.privacy.correlated import BITS, ONE, Factor
from fedveil.privacy.noise.integers import rounded_gaussian
from fedveil.privacy.noise.simulated import gaussian

Noise = npt.NDArray[Any]  # int64 steps of the grid, or float64 without one

_LARGEST = 1 << 61


class NoiseMemory:
    """The noise of the last rounds of a run, as secret as their sums without noise.

    It lives in this process and is never written: not shown, not pickled, in no checkpoint. A run
    that is resumed begins with an empty one, which costs accuracy and no privacy.
    """

    def __init__(self) -> None:
        self.next_round = 0  # the one that goes on from here
        self._past: deque[Noise] = deque()  # the newest first

    def __repr__(self) -> str:
        return f"NoiseMemory(next_round={self.next_round})"

    def __reduce__(self) -> str:
        raise FedveilError("the noise of past rounds is secret; it is not copied or written down")

    def begin(self, round_number: int) -> None:
        """Forget everything: the noise of this round is the first of a new series."""
        self.next_round = round_number
        self._past.clear()

    def draw(
        self, stream: Stream, count: int, std: float, granularity: float | None, factor: Factor
    ) -> Noise:
        """The next round's noise, `[count]`: steps of the grid, or numbers if there is none."""
        past = list(zip(factor[1:], self._past, strict=False))
        if granularity is None:
            noise: Noise = gaussian(stream, count, std).astype(np.float64)
            for coefficient, before in past:
                noise -= coefficient / ONE * before
        else:
            noise = fresh_noise(stream, count, std * ONE / granularity)
            for coefficient, before in past:
                noise -= coefficient * before
            noise = (noise + ONE // 2) >> BITS
            if np.abs(noise).max(initial=0) > _LARGEST // sum(factor):
                raise FedveilError("correlated noise is beyond 64-bit integers; use a smaller clip")
        self._past.appendleft(noise)
        while len(self._past) >= len(factor):
            self._past.pop()
        self.next_round += 1
        return noise


fresh_noise = rounded_gaussian  # under a name of its own: what a round adds of new
