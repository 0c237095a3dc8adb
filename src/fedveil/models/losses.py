"""The loss of each example, by task."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedveil.data.federation import Task


def example_losses(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each example, `[examples]`.

    Classification: cross-entropy of `outputs [examples, classes]`. Sequence: its mean over the
    positions of `outputs [examples, length, classes]`. Regression: half the squared error, so that
    a model linear in inputs of norm R is R^2-smooth.
    """
    if task is not Task.REGRESSION:
        outputs = class_scores(outputs, targets.dim())
    if task is Task.CLASSIFICATION:
        return functional.cross_entropy(outputs, targets, reduction="none")
    if task is Task.SEQUENCE:
        return functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none").mean(-1)
    return 0.5 * (outputs.reshape(targets.shape) - targets).square()


def class_scores(outputs: Tensor, dimensions: int = 1) -> Tensor:
    """Scores of classes in the last axis, behind this many others. A single logit is the score of
    the second of two classes, where the first has zero: cross-entropy is then the binary one."""
    logits = outputs.unsqueeze(-1) if outputs.dim() == dimensions else outputs
    if logits.shape[-1] > 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], dim=-1)
