"""How the server turns a released average update into new shared weights.

All of this is post-processing of a value that is already private, so it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, positive, share
from fedveil.core.registry import Registry

State = dict[str, Tensor]  # named vectors [parameters], never changed in place; in checkpoints


class Optimizer(Protocol):
    """Turns released updates into weights; what it remembers is a `State`."""

    def start(self, weights: Tensor) -> State:
        """The state before the first round."""
        ...

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round` counts from 0."""
        ...


@dataclass(frozen=True)
class Sgd:
    """`v = momentum * v + update; w += learning_rate * v`. Rate 1 without momentum: FedAvg."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "server.", learning_rate=positive, momentum=share)

    def start(self, weights: Tensor) -> State:
        return {"velocity": torch.zeros_like(weights)} if self.momentum else {}

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round` counts from 0."""
        if self.momentum:
            update = self.momentum * state["velocity"] + update
            state = {"velocity": update}
        return weights + self.learning_rate * update, state


@dataclass(frozen=True)
class Adam:
    """Adam on the average update (FedAdam; Reddi et al. 2021), with bias correction.

    Attributes:
        learning_rate: Of the server.
        momentum: Of the first moment.
        second_momentum: Of the second moment.
        stability: Added to the root of the second moment.
        yogi: Whether the second moment takes Yogi's additive step.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    second_momentum: float = 0.99
    stability: float = 1e-3
    yogi: bool = False

    def __post_init__(self) -> None:
        numbers = {"learning_rate": positive, "stability": positive}
        check_fields(self, "server.", momentum=share, second_momentum=share, **numbers)

    def start(self, weights: Tensor) -> State:
        return {"first": torch.zeros_like(weights), "second": torch.zeros_like(weights)}

    def step(
        self, weights: Tensor, update: Tensor, state: State, round_number: int
    ) -> tuple[Tensor, State]:
        """New weights and state; `round` counts from 0."""
        fresh, square = 1 - self.second_momentum, update.square()
        first = torch.lerp(state["first"], update, 1 - self.momentum)
        if self.yogi:
            second = state["second"] + fresh * torch.sign(square - state["second"]) * square
        else:
            second = torch.lerp(state["second"], square, fresh)
        mean = first / (1 - self.momentum ** (round_number + 1))
        deviation = (second / (1 - self.second_momentum ** (round_number + 1))).sqrt()
        moved = weights + self.learning_rate * mean / (deviation + self.stability)
        return moved, {"first": first, "second": second}


# By the name in `server.optimizer`, from its learning rate and momentum.
OPTIMIZERS: Registry[Callable[[float, float], Optimizer]] = Registry(
    "server optimizer", "fedveil.optimizers", None, Callable
)
OPTIMIZERS.add("sgd", Sgd, __name__)
OPTIMIZERS.add("adam", Adam, __name__)
OPTIMIZERS.add("yogi", partial(Adam, yogi=True), __name__)
