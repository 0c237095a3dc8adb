"""How good a model is on held-out examples, in large batches."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.data.federation import Examples, Federation, Task
from fedveil.engine.rows import as_tensor
from fedveil.models.flat import Layout
from fedveil.models.losses import example_losses

_VALUES = 4_000_000  # input values in one batch of evaluation


@dataclass(frozen=True)
class Metrics:
    """Mean loss, and accuracy as a share of examples (of positions for sequences)."""

    loss: float
    accuracy: float | None  # None for regression

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, for regression."""
        return math.sqrt(2 * self.loss)


class Evaluator:
    """Evaluates flat weights on one part of a federation."""

    def __init__(self, federation: Federation, module: nn.Module, layout: Layout) -> None:
        self._federation, self._layout = federation, layout
        self._module = copy.deepcopy(module).eval()

    @torch.no_grad()
    def __call__(self, weights: Tensor, examples: Examples) -> Metrics:
        """Metrics of `weights` `[parameters]` on `examples`."""
        task = self._federation.task
        parameters = self._layout.views(weights)
        per_example = max(1, math.prod(self._federation.input_shape))
        batch = max(1, _VALUES // per_example)
        loss = correct = 0.0
        for begin in range(0, len(examples), batch):
            part = slice(begin, begin + batch)
            inputs = as_tensor(self._federation.model_inputs(examples.inputs[part]))
            targets = as_tensor(examples.targets[part])
            outputs = functional_call(self._module, parameters, (inputs,))
            loss += float(example_losses(task, outputs, targets).sum(dtype=torch.float64))
            if task is not Task.REGRESSION:
                hits = (outputs.argmax(dim=-1) == targets).float().reshape(len(targets), -1)
                correct += float(hits.mean(dim=1).sum())
        count = len(examples)
        accuracy = None if task is Task.REGRESSION else correct / count
        return Metrics(loss / count, accuracy)
