"""A model that does not fit the data is refused while planning, in one line that says why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation, Task
from fedveil.methods.fedavg import fedavg
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.planning.plan import plan
from fedveil.training.client.local_training import LearningRate, LocalTraining

RULE = LocalTraining(LearningRate(0.1), steps=1)


class Tokens(nn.Module):
    def __init__(self, rows: int, outputs: int, *, cast: bool = True, last: bool = True) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(rows, 4), nn.Linear(4, outputs)
        self.cast, self.last = cast, last

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embedding(tokens.long() if self.cast else tokens)
        scores: Tensor = self.head(states.mean(dim=1) if self.last else states)
        return scores


def with_nan() -> nn.Module:
    module = nn.Linear(6, 2)
    with torch.no_grad():
        module.weight[1, 2] = float("nan")
    return module


def table(labels: np.ndarray, classes: int = 2) -> Federation:
    inputs = np.zeros((len(labels), 6), np.float32)
    return data(inputs, labels, Task.CLASSIFICATION, classes)


def texts(labels: np.ndarray, task: Task, classes: int) -> Federation:
    return data(np.arange(20).reshape(4, 5) % 7, labels, task, classes)


def data(inputs: np.ndarray, targets: np.ndarray, task: Task, classes: int) -> Federation:
    examples = Examples(inputs, targets)
    return Federation(examples, np.array([0, 2, 4]), examples, task, classes)


FOUR = np.array([0, 1, 0, 1])
EVERY = np.arange(20).reshape(4, 5) % 7
WRONG: dict[str, tuple[Callable[[], nn.Module], Callable[[], Federation], str]] = {
    "too wide": (lambda: nn.Linear(6, 5), lambda: table(FOUR), r"5 scores.* 2 classes"),
    "too narrow": (
        lambda: nn.Linear(6, 2),
        lambda: table(FOUR, 3),
        r"2 scores.* 3 classes; class numbers count from 0$",
    ),
    "one logit for three": (lambda: nn.Linear(6, 1), lambda: table(FOUR, 3), r"1 scores.* 3 class"),
    "input shape": (lambda: nn.Linear(7, 2), lambda: table(FOUR), r"fails on inputs \[2, 6\]"),
    "nothing to train": (
        lambda: nn.Linear(6, 2).requires_grad_(False),
        lambda: table(FOUR),
        r"no trainable parameters",
    ),
    "no parameters": (nn.Flatten, lambda: table(FOUR), r"no trainable parameters"),
    "NaN at the start": (with_nan, lambda: table(FOUR), r"parameter weight starts with NaN"),
    "a regression of two outputs": (
        lambda: nn.Linear(6, 2),
        lambda: data(np.zeros((4, 6), np.float32), np.zeros(4, np.float32), Task.REGRESSION, 0),
        r"regression needs one output",
    ),
    "several labels for an example": (
        lambda: nn.Linear(6, 3),
        lambda: data(
            np.zeros((4, 6), np.float32), np.zeros((4, 3), np.int64), Task.CLASSIFICATION, 2
        ),
        r"one label for each example, got \[4, 3\]; of several say task=.multi-label.",
    ),
    "one label for a sequence": (
        lambda: Tokens(7, 7, last=False),
        lambda: texts(FOUR, Task.SEQUENCE, 7),
        r"a label at each of its 5 positions.*task 'classification'",
    ),
    "last position of a sequence": (
        lambda: Tokens(7, 7),
        lambda: texts(EVERY, Task.SEQUENCE, 7),
        r"gives \[2, 7\] for 2 examples; needed: \[2, 5, 7\]",
    ),
    "floats in an Embedding": (
        lambda: Tokens(7, 2, cast=False),
        lambda: texts(FOUR, Task.CLASSIFICATION, 2),
        r"Embedding reads whole numbers.*inputs.long\(\)",
    ),
    "a tuple": (
        lambda: nn.LSTM(6, 2),
        lambda: table(FOUR),
        r"must return a tensor, not tuple",
    ),
}
RIGHT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Federation]]] = {
    "two scores": (lambda: nn.Linear(6, 2), lambda: table(FOUR)),
    "one logit": (lambda: nn.Linear(6, 1), lambda: table(FOUR)),
    "a flat logit": (
        lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
        lambda: table(FOUR),
    ),
    "token ids": (lambda: Tokens(7, 2), lambda: texts(FOUR, Task.CLASSIFICATION, 2)),
    "every position": (lambda: Tokens(7, 7, last=False), lambda: texts(EVERY, Task.SEQUENCE, 7)),
}


def planned(model: nn.Module, federation: Federation) -> None:
    plan(fedavg(rounds=1, cohort=CohortRule(Scheme.EVERYONE), local=RULE), federation, model)


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(case: str) -> None:
    model, federation, reason = WRONG[case]
    with pytest.raises(ConfigError, match=reason) as refused:
        planned(model(), federation())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("case", RIGHT)
def test_what_fits_is_planned_and_nothing_of_it_is_changed(case: str) -> None:
    model, federation = RIGHT[case]
    module = model().eval()
    before = {name: part.clone() for name, part in module.state_dict().items()}
    drawn = torch.get_rng_state()
    planned(module, federation())
    assert not module.training
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(before[name], part) for name, part in module.state_dict().items())
