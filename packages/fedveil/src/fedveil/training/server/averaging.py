"""Averages of the weights after each round: what is released instead of the last of them.

Every round adds fresh noise to the weights, and an average of several rounds has less of it. The
rounds themselves go on from the weights as they are. An average of released values is
post-processing: it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.errors import ConfigError
from fedveil.training.server.optimizers import Optimizer, State

AVERAGE = "average"  # its name in the server's state


class Average(StrEnum):
    """How much each round counts."""

    NONE = "none"  # the last one alone
    EXPONENTIAL = "exponential"  # each one `setting` times as much as the next; setting in (0, 1)
    TAIL = "tail"  # the last share of the rounds equally, the others not; setting in (0, 1]
    POLYNOMIAL = "polynomial"  # round t about t^setting (Shamir and Zhang 2013); 0: all alike


@dataclass(frozen=True)
class Averaged:
    """An optimizer beside whose weights their average over the rounds is kept."""

    optimizer: Optimizer
    kind: Average
    setting: float
    rounds: int  # planned

    def __post_init__(self) -> None:
        check_fields(self, kind=one_of(Average))
        value, kind = self.setting, self.kind
        fits = {
            Average.NONE: False,
            Average.EXPONENTIAL: 0 < value < 1,
            Average.TAIL: 0 < value <= 1,
            Average.POLYNOMIAL: 0 <= value < math.inf,
        }
        if not fits[kind]:
            raise ConfigError(f"server.average_setting: {value} does not fit a {kind} average")

    def share(self, number: int) -> float:
        """How far the average moves to the weights after round `number`, from 1."""
        if self.kind is Average.EXPONENTIAL:
            return (1 - self.setting) / (1 - self.setting**number)
        if self.kind is Average.POLYNOMIAL:
            return (1 + self.setting) / (number + self.setting)
        before = self.rounds - math.ceil(self.setting * self.rounds)
        return 1 / max(1, number - before)

    def start(self, weights: Tensor) -> State:
        return {**self.optimizer.start(weights), AVERAGE: weights.clone()}

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round_number` counts from 0."""
        own = {name: value for name, value in state.items() if name != AVERAGE}
        moved, own = self.optimizer.step(weights, update, own, round_number)
        average = torch.lerp(state[AVERAGE], moved, self.share(round_number + 1))
        return moved, {**own, AVERAGE: average}


def released(weights: Tensor, state: State) -> Tensor:
    """The weights to use and to show: their average, where one is kept."""
    return state.get(AVERAGE, weights)
