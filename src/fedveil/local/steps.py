"""Local SGD for a chunk of clients at once: rows of a matrix `[clients, parameters]`.

How gradients are computed is the engine's matter (`Gradients`); everything else that the local
rule says is here, once, for every engine that keeps its clients' weights as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedveil.local.batches import Batches
from fedveil.local.rule import GradientClip, LocalRule
from fedveil.privacy.clipping import Clip, clip_rows
from fedveil.privacy.noise import gaussian
from fedveil.randomness import Stream


class Gradients(Protocol):
    """Gradients of the mean loss of each client's batch.

    `weights [clients, parameters]`, `inputs [clients, batch, ...]`, `targets [clients, batch, ...]`,
    `mask [clients, batch]` (which records are real; None: all). With `clip`, each example's gradient is clipped
    first and the sum divided by `denominator`. Returns gradients `[clients, parameters]`, which the
    caller may overwrite, and mean losses `[clients]`.
    """

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor | None,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]: ...


class Chunk:
    """The records of a chunk of clients, padded to the largest, and the batches of their steps.

    Clients must come in order of falling step counts, so that those still training are the first
    rows: `inputs [clients, most, ...]`, `targets [clients, most, ...]`, `sizes [clients]`.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, sizes: Tensor, batches: Batches) -> None:
        self.inputs, self.targets, self.sizes, self.batches = inputs, targets, sizes, batches
        self._rows = torch.arange(len(inputs))[:, None]

    def active(self, step: int) -> int:
        """How many clients take step `step`: the first so many rows."""
        return int((self.batches.steps > step).sum())

    def batch(self, step: int, active: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and mask of one step of the first `active` clients."""
        positions, valid = self.batches.at(step)
        mask = None if valid[:active].all() else torch.from_numpy(valid[:active])
        if self.batches.full:
            return self.inputs[:active], self.targets[:active], mask
        where = (self._rows[:active], torch.from_numpy(positions[:active]))
        return self.inputs[where], self.targets[where], mask

    def everything(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """All records of all clients, and which are real."""
        mask = torch.arange(self.inputs.shape[1]) < self.sizes[:, None]
        return self.inputs, self.targets, None if bool(mask.all()) else mask


def local_updates(
    start: Tensor,
    chunk: Chunk,
    rule: LocalRule,
    rates: Sequence[float],
    gradients: Gradients,
    noise: Sequence[Stream],
) -> tuple[Tensor, Tensor]:
    """Train each client of a chunk from `start` `[parameters]`.

    `rates[s]` is the learning rate of step s; `noise` holds a stream for each client if the rule
    adds gradient noise. Returns updates `[clients, parameters]` and mean losses `[clients]`.
    """
    count = len(chunk.inputs)
    moved = start.new_zeros(count, len(start))  # weights - start
    velocity = torch.zeros_like(moved) if rule.momentum else None
    losses = start.new_zeros(count)
    clip = rule.gradient_clip
    denominator = float(rule.batch_size or 0)
    for step, rate in enumerate(rates):
        active = chunk.active(step)
        if active == 0:
            break
        rows = moved[:active]
        weights = rows + start
        inputs, targets, mask = chunk.batch(step, active)
        gradient, loss = gradients(
            weights, inputs, targets, mask, clip if rule.per_example else None, denominator
        )
        losses[:active] += loss
        if rule.per_example and rule.gradient_noise:
            _add_noise(gradient, rule.gradient_noise, noise)
        if rule.weight_decay:
            gradient.add_(weights, alpha=rule.weight_decay)
        if rule.penalty:
            outside = torch.linalg.vector_norm(rows, dim=1) > rule.penalty_radius
            gradient.add_(rows * outside[:, None], alpha=rule.penalty)
        if clip is not None and not clip.per_example:
            clip_rows(gradient, Clip(clip.norm, clip.order), in_place=True)
        if rule.gradient_noise and not rule.per_example:
            _add_noise(gradient, rule.gradient_noise, noise)
        if velocity is not None:
            gradient = velocity[:active].mul_(rule.momentum).add_(gradient)
        rows.add_(gradient, alpha=-rate)
        if rule.projection_radius is not None:
            clip_rows(rows, Clip(rule.projection_radius, 2), in_place=True)
    return moved, losses / torch.from_numpy(chunk.batches.steps).clamp(min=1)


def _add_noise(gradient: Tensor, std: float, streams: Sequence[Stream]) -> None:
    for row, stream in zip(gradient, streams, strict=False):
        row.add_(torch.from_numpy(gaussian(stream, len(row), std)))
