"""The loss of each example: by task, with weights of classes, or of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task

# Of outputs `[examples, ...]` and targets, each example's `[examples]`.
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ClassWeights:
    """Cross-entropy, of which each example counts by the public weight of its class. Of several
    labels, each that an example has counts by its weight, and each that it lacks once.

    Weights that were worked out from how often classes occur would tell of the labels: declare
    them.
    """

    weights: tuple[float, ...]  # in the order of the classes

    def __post_init__(self) -> None:
        if not all(math.isfinite(one) and one >= 0 for one in self.weights) or not any(
            self.weights
        ):
            raise ConfigError(
                f"class weights: must be zero or positive, got {', '.join(map(str, self.weights))}"
            )

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weight = outputs.new_tensor(self.weights)
        if targets.dim() == 2:
            wanted = targets.to(outputs.dtype)
            return functional.binary_cross_entropy_with_logits(
                outputs, wanted, pos_weight=weight, reduction="none"
            ).mean(-1)
        scores = class_scores(outputs, targets.dim())
        return functional.cross_entropy(scores, targets, weight, reduction="none")


def example_losses(
    task: Task, outputs: Tensor, targets: Tensor, loss: Loss | None = None
) -> Tensor:
    """Loss of each example, `[examples]`, by a given loss or that of the task.

    Classification: cross-entropy of `outputs [examples, classes]`. Sequence: its mean over the
    positions of `outputs [examples, length, classes]`. Several labels: its mean over their logits
    `outputs [examples, labels]`. Regression: half the squared error, so that a model linear in
    inputs of norm R is R^2-smooth.

    An example whose target is none (`data.unusable.no_target`) has a loss of NaN, and so a gradient
    that is not finite.
    """
    given = targets == targets if task is Task.REGRESSION else targets >= 0
    counts = given if given.dim() == 1 else given.flatten(1).all(1)
    targets = torch.where(given, targets, 0)
    losses = _losses(task, outputs, targets, loss)
    return losses * torch.where(counts, 1.0, math.nan).to(losses.dtype)


def _losses(task: Task, outputs: Tensor, targets: Tensor, loss: Loss | None) -> Tensor:
    """The losses of examples that have targets."""
    if loss is not None:
        return loss(outputs, targets)
    if task is not Task.REGRESSION:
        outputs = class_scores(outputs, targets.dim())
    if task is Task.CLASSIFICATION:
        return _cross_entropy(outputs, targets)
    if task in (Task.SEQUENCE, Task.MULTI_LABEL):
        return _cross_entropy(outputs.movedim(-1, 1), targets).mean(-1)
    return 0.5 * (outputs.reshape(targets.shape) - targets).square()


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of scores `[examples, classes, ...]`, bit for bit that of torch.

    Under `vmap` torch takes its own cross-entropy apart in Python, which is slower and imports
    sympy: 37 MB that nothing else here needs.
    """
    return -functional.log_softmax(outputs, 1).gather(1, targets.unsqueeze(1)).squeeze(1)


def class_scores(outputs: Tensor, dimensions: int = 1) -> Tensor:
    """Scores of classes in the last axis, behind this many others. A single logit is the score of
    the second of two classes, where the first has zero: cross-entropy is then the binary one."""
    logits = outputs.unsqueeze(-1) if outputs.dim() == dimensions else outputs
    if logits.shape[-1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=-1)
