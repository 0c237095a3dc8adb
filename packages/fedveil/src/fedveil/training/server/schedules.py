"""Learning rates of the server that fall from round to round.

Late rounds then add less noise to weights that are nearly where they should be. The rate follows
from public counters, and what it multiplies is released already: it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, interval, optional
from fedveil.core.errors import ConfigError
from fedveil.core.registry import Registry
from fedveil.training.server.optimizers import Optimizer, State


class RateSchedule(StrEnum):
    """The package's own schedules, by name; `SCHEDULES` also has those of others."""

    CONSTANT = "constant"
    LINEAR = "linear"  # in even steps, to `setting` after the last round
    COSINE = "cosine"  # half a cosine, to `setting` after the last round
    INVERSE_SQRT = "inverse-sqrt"  # 1 / sqrt(1 + t / setting) after t rounds


# By the name in `server.schedule`: the share of the first rate, in [0, 1], that is left after so
# many of so many rounds. A third argument with a default is `server.schedule_setting`.
SCHEDULES: Registry[Callable[..., float]] = Registry(
    "server schedule", "fedveil.schedules", None, Callable
)


@SCHEDULES.register(RateSchedule.LINEAR)
def _linear(done: int, rounds: int, setting: float = 0.0) -> float:
    return 1 - (1 - setting) * min(1.0, done / rounds)


@SCHEDULES.register(RateSchedule.COSINE)
def _cosine(done: int, rounds: int, setting: float = 0.0) -> float:
    return 1 - (1 - setting) * (1 - math.cos(math.pi * min(1.0, done / rounds))) / 2


@SCHEDULES.register(RateSchedule.INVERSE_SQRT)
def _inverse_sqrt(done: int, rounds: int, setting: float = 10.0) -> float:
    return 1 / math.sqrt(1 + done / setting)


@dataclass(frozen=True)
class Scheduled:
    """An optimizer whose steps are shortened by a schedule.

    >>> from fedveil.training.server.optimizers import Sgd
    >>> falling = Scheduled(Sgd(), RateSchedule.LINEAR, 0.0, rounds=4)
    >>> [falling.share(done) for done in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    optimizer: Optimizer
    kind: str
    setting: float | None  # None: the schedule's own
    rounds: int  # planned

    def __post_init__(self) -> None:
        SCHEDULES.find(self.kind, "server.schedule", (RateSchedule.CONSTANT,))
        check_fields(self, "server.schedule_", setting=optional(interval("(-inf, inf)")))
        try:
            fits = all(0 <= self.share(done) <= 1 for done in range(self.rounds + 1))
        except (ArithmeticError, ValueError):
            fits = False
        if not fits:
            raise ConfigError(
                f"server.schedule_setting: {self.setting} does not fit {self.kind}, because some "
                "round's share of the learning rate is not in [0, 1]. Choose another setting."
            )

    def share(self, done: int) -> float:
        """Return what is left of the rate after so many rounds, in [0, 1]."""
        more = () if self.setting is None else (self.setting,)
        return SCHEDULES[self.kind](done, self.rounds, *more)

    def start(self, weights: Tensor) -> State:
        return self.optimizer.start(weights)

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round_number` counts from 0."""
        moved, state = self.optimizer.step(weights, update, state, round_number)
        return torch.lerp(weights, moved, self.share(round_number)), state
