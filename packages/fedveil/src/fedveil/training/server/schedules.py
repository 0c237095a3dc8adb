"""Learning rates of the server that fall from round to round.

Late rounds then add less noise to weights that are nearly where they should be. The rate follows
from public counters, and what it multiplies is released already: it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, number_of, one_of
from fedveil.core.errors import ConfigError
from fedveil.training.server.optimizers import Optimizer, State


class RateSchedule(StrEnum):
    """How the rate falls, as a share of its first value."""

    CONSTANT = "constant"
    LINEAR = "linear"  # in even steps, to `setting` after the last round
    COSINE = "cosine"  # half a cosine, to `setting` after the last round
    INVERSE_SQRT = "inverse-sqrt"  # 1 / sqrt(1 + t / setting) after t rounds


@dataclass(frozen=True)
class Scheduled:
    """An optimizer whose steps are shortened by a schedule.

    >>> from fedveil.training.server.optimizers import Sgd
    >>> falling = Scheduled(Sgd(), RateSchedule.LINEAR, 0.0, rounds=4)
    >>> [falling.share(done) for done in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    optimizer: Optimizer
    kind: RateSchedule
    setting: float
    rounds: int  # planned

    def __post_init__(self) -> None:
        check_fields(self, kind=one_of(RateSchedule))
        value, kind = number_of("server.schedule_setting", self.setting), self.kind
        fits = {
            RateSchedule.CONSTANT: False,
            RateSchedule.LINEAR: 0 <= value <= 1,
            RateSchedule.COSINE: 0 <= value <= 1,
            RateSchedule.INVERSE_SQRT: 0 < value < math.inf,
        }
        if not fits[kind]:
            raise ConfigError(f"server.schedule_setting: {value:g} does not fit {kind}")

    def share(self, done: int) -> float:
        """What is left of the rate after so many rounds."""
        if self.kind is RateSchedule.INVERSE_SQRT:
            return 1 / math.sqrt(1 + done / self.setting)
        way = min(1.0, done / self.rounds)
        fallen = way if self.kind is RateSchedule.LINEAR else (1 - math.cos(math.pi * way)) / 2
        return 1 - (1 - self.setting) * fallen

    def start(self, weights: Tensor) -> State:
        return self.optimizer.start(weights)

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round_number` counts from 0."""
        moved, state = self.optimizer.step(weights, update, state, round_number)
        return torch.lerp(weights, moved, self.share(round_number)), state
