"""What consecutive steps of the same clients need, gathered before the first of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.training.engines.dual import Dual
from fedveil.training.engines.records import Records


class StepBlock:
    """Lists with one entry a step: a step itself then takes no more than its arithmetic."""

    gram: Sequence[Tensor]  # [clients, batch, examples]
    start: Sequence[Tensor]  # outputs at the shared weights, [clients, batch, outputs]
    rows: Sequence[Tensor | None]  # of the batch, clients and examples flattened; None: all
    shares: Sequence[Tensor | float]  # weight of each example in the mean, [clients, batch, 1]

    def __init__(
        self, dual: Dual, records: Records, steps: range, active: int, outputs: int
    ) -> None:
        """`outputs` of the network, which are those of the dual unless it has more layers."""
        rows, mask = records.places_of(steps, active)
        parts = (dual.gram, dual.outputs, dual.targets)
        if rows is None:
            gram, start, targets = (
                part[:active].expand(len(steps), *part[:active].shape) for part in parts
            )
            self.rows = [None] * len(steps)
        else:
            flat = rows.reshape(-1)
            gram, start, targets = (
                part.flatten(0, 1).index_select(0, flat).view(*rows.shape, *part.shape[2:])
                for part in parts
            )
            self.rows = rows.flatten(1).unbind()
        self.gram, self.start = gram.unbind(), start.unbind()
        self._shares = None
        self.shares = [1 / targets.shape[2]] * len(steps)
        if mask is not None:
            self._shares = mask / mask.sum(dim=2, keepdim=True)
            self.shares = self._shares[..., None].unbind()
        self._shape = targets.shape  # [steps, clients, batch]
        self._classifies = dual.task is not Task.REGRESSION
        if self._classifies:
            self._prepare_classes(targets.reshape(len(steps), -1), outputs)
        else:
            self._wanted = targets.unsqueeze(3).unbind()
            self._gaps = start.new_empty(self._shape)

    def _prepare_classes(self, targets: Tensor, classes: int) -> None:
        """Classes first, `[classes, examples]`: softmax over few classes side by side is slow."""
        steps, count = targets.shape
        self._targets = targets[:, None]
        ones = torch.zeros(steps, classes, count)
        self._ones = ones.scatter_(1, self._targets, 1.0).unbind()
        self._logs = torch.empty_like(ones)
        self._log = self._logs.unbind()
        self._scores = torch.empty(classes, count)

    def differentiate(self, place: int, outputs: Tensor, factor: float) -> None:
        """Turn a step's outputs `[clients, batch, outputs]` into derivatives of each client's mean
        loss, times a factor."""
        share = self.shares[place] * factor
        if not self._classifies:
            outputs.sub_(self._wanted[place])
            self._gaps[place] = outputs[..., 0]
            outputs.mul_(share)
            return
        rows, scores, log = outputs.view(-1, outputs.shape[2]), self._scores, self._log[place]
        scores.copy_(rows.t())
        torch.log_softmax(scores, 0, out=log)
        torch.exp(log, out=scores).sub_(self._ones[place])
        if isinstance(share, Tensor):
            rows.copy_(scores.t())
            outputs.mul_(share)
        else:
            torch.mul(scores.t(), share, out=rows)

    def losses(self) -> Tensor:
        """Sum over the steps of each client's mean loss, `[clients]`."""
        if self._classifies:
            single = self._logs.gather(1, self._targets).neg_().view(self._shape)
        else:
            single = self._gaps.square_().mul_(0.5)
        if self._shares is None:
            return single.mean(dim=2).sum(dim=0)
        return (single * self._shares).sum(dim=(0, 2))
