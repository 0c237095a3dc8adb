"""What every engine does: a cohort's shaped updates, summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from fedveil.data.federation import Federation
from fedveil.local.rule import LocalRule
from fedveil.local.shaping import Shaping
from fedveil.models.flat import Layout
from fedveil.randomness import Randomness

Cohort = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Everything an engine needs to know besides the weights, the cohort and the round."""

    federation: Federation
    module: nn.Module
    layout: Layout
    rule: LocalRule
    shaping: Shaping
    randomness: Randomness


@dataclass(frozen=True)
class RoundSum:
    """What an engine gives back. Statistics follow the order of the cohort, `[cohort]`.

    They describe single clients without noise: a protected run must not show or keep them.
    """

    total: Tensor  # [parameters]; float64, or int64 in units of the grid
    norms: Tensor  # norm of each update before clipping, in the clip's order (else L2)
    shaped_norms: Tensor  # the same after shaping
    losses: Tensor  # mean batch loss over the client's local steps, each before its step
    rejected: int  # clients whose update was not finite and counted as zero


class Engine(Protocol):
    """Computes rounds. Implementations differ in speed only: one test suite holds them together."""

    @property
    def name(self) -> str: ...

    def round_sum(self, weights: Tensor, cohort: Cohort, round: int) -> RoundSum:
        """Train the clients of `cohort` (distinct ids) from `weights` `[parameters]`, float32,
        in round `round`, and sum their shaped updates. An empty cohort gives zero."""
        ...

    def close(self) -> None:
        """Release worker processes and memory."""
        ...
