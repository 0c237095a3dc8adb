"""How good a model is on held-out examples, in large batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.engines.kernels import tuned
from fedveil.training.models.check import with_readable
from fedveil.training.models.flat import Layout
from fedveil.training.models.losses import class_scores, example_losses
from fedveil.training.models.tensors import as_tensor

_VALUES = 4_000_000  # input values in one batch of evaluation
_HEAVY = 256  # examples in one batch for convolutional and recurrent networks


@dataclass(frozen=True)
class Metrics:
    """Figures of a model on some examples.

    Attributes:
        loss: Mean cross-entropy in nats; for regression half of the mean squared error, in units of
            the standardised target where a table was standardised.
        accuracy: Share of examples (of positions for sequences) that are right; None for
            regression.
    """

    loss: float
    accuracy: float | None

    @property
    def rmse(self) -> float:
        """Return the root of the mean squared error, for regression."""
        return math.sqrt(2 * self.loss)


def rows_at_once(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return how many examples to evaluate together."""
    heavy = (nn.modules.conv._ConvNd, nn.RNNBase)
    # Activations of such layers outgrow their inputs, and the cache soon after.
    wide = any(isinstance(child, heavy) for child in module.modules())
    return _HEAVY if wide else max(1, _VALUES // max(1, math.prod(input_shape)))


class Evaluator:
    """Evaluates flat weights on the usable examples of one part of a federation."""

    def __init__(self, federation: Federation, module: nn.Module, layout: Layout) -> None:
        self._federation, self._layout = federation, layout
        self._module = tuned(module).eval()
        named = dict(self._module.named_parameters())
        self._parameters = [named[slot.name] for slot in layout]
        self._batch = rows_at_once(module, federation.input_shape)

    @torch.inference_mode()
    def __call__(self, weights: Tensor, examples: Examples) -> Metrics:
        """Return metrics of `weights` `[parameters]` on `examples`; NaN if there are none."""
        task = self._federation.task
        examples = with_readable(self._module, self._federation, examples).only_usable()
        views = self._layout.views(weights).values()
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.copy_(view)
        loss = correct = 0.0
        for begin in range(0, len(examples), self._batch):
            part = slice(begin, begin + self._batch)
            inputs = as_tensor(self._federation.model_inputs(examples.inputs[part]))
            targets = as_tensor(examples.targets[part])
            outputs = self._module(inputs)
            loss += float(example_losses(task, outputs, targets).sum(dtype=torch.float64))
            if task is not Task.REGRESSION:
                scores = class_scores(outputs, targets.dim())
                hits = (scores.argmax(dim=-1) == targets).float().reshape(len(targets), -1)
                correct += float(hits.mean(dim=1).sum())
        count = len(examples)
        if not count:
            return Metrics(math.nan, None if task is Task.REGRESSION else math.nan)
        return Metrics(loss / count, None if task is Task.REGRESSION else correct / count)
