"""The loss of each example, by task."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from fedveil.data.federation import Task


def example_losses(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each example, `[examples]`.

    Classification: cross-entropy of `outputs [examples, classes]`. Sequence: its mean over the
    positions of `outputs [examples, length, classes]`. Regression: half the squared error, so that
    a model linear in inputs of norm R is R^2-smooth.
    """
    if task is Task.CLASSIFICATION:
        return functional.cross_entropy(outputs, targets, reduction="none")
    if task is Task.SEQUENCE:
        return functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none").mean(-1)
    return 0.5 * (outputs.reshape(targets.shape) - targets).square()
