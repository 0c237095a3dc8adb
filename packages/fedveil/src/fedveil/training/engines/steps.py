"""Local SGD for a chunk of clients at once: rows of a matrix `[clients, parameters]`.

How gradients are computed is the engine's matter (`Gradients`); everything else that the local
rule says is here, once, for every engine that keeps its clients' weights as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.randomness import Stream
from fedveil.privacy.clipping import Clip, clip_factors, clip_rows, row_norms
from fedveil.privacy.noise.grid import protect_sum, unsnap
from fedveil.privacy.noise.integers import Ahead
from fedveil.privacy.noise.simulated import gaussian_rows
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.engines.records import Batch


class Gradients(Protocol):
    """Gradients of the mean loss of each client's batch.

    `weights [clients, parameters]`. With `clip`, each example's gradient is clipped first and the
    sum divided by `denominator`. Returns gradients `[clients, parameters]`, which the caller may
    overwrite and keep until the next call, and mean losses `[clients]`.
    """

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]: ...


class Descent(Protocol):
    """Gradients that can also take a step of plain SGD without forming a gradient apart."""

    def begin(self, start: Tensor, clients: int) -> None:
        """Put this many clients at `start` `[parameters]`."""
        ...

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        """`weights = keep * weights - rate * gradient` for the first clients, the batch's.

        Returns their mean losses.
        """
        ...

    def finish(self) -> Tensor:
        """The weights of all clients, `[clients, parameters]`, which the caller may overwrite."""
        ...


class NearDescent(Protocol):
    """The same for one client that is drawn back to where it began (BLUR, FedProx)."""

    def begin_near(self, start: Tensor) -> None: ...

    def descend_near(self, batch: Batch, rate: float, rule: LocalTraining) -> Tensor: ...

    def finish(self) -> Tensor: ...


class Supply(Protocol):
    """What the local steps of a chunk of clients see; clients in order of falling step counts."""

    steps: npt.NDArray[np.int64]  # [clients]
    active: list[int]  # how many clients take each step

    def __len__(self) -> int: ...

    def batch(self, step: int) -> Batch:
        """Of the clients that take this step."""
        ...


def local_updates(
    start: Tensor,
    supply: Supply,
    rule: LocalTraining,
    rates: Sequence[float],
    gradients: Gradients,
    noise: Sequence[Stream],
) -> tuple[Tensor, Tensor]:
    """Train each client of a chunk from `start` `[parameters]`.

    `rates[s]` is the learning rate of step s; `noise` holds a stream for each client if the rule
    adds gradient noise. Returns updates `[clients, parameters]` and mean losses `[clients]`.
    """
    if rule.plain and hasattr(gradients, "descend"):  # isinstance of a protocol takes too long
        moved, losses = _descend(start, supply, rule, rates, cast(Descent, gradients))
    elif rule.plain_but_penalty and len(supply) == 1 and hasattr(gradients, "descend_near"):
        moved, losses = _descend_near(start, supply, rule, rates, cast(NearDescent, gradients))
    else:
        moved, losses = _walk(start, supply, rule, rates, gradients, noise)
    counts = torch.from_numpy(supply.steps).clamp(min=1).to(losses.device)
    return moved, losses / counts


def _descend(
    start: Tensor, supply: Supply, rule: LocalTraining, rates: Sequence[float], descent: Descent
) -> tuple[Tensor, Tensor]:
    """Plain SGD: the weights themselves are the only state."""
    descent.begin(start, len(supply))
    losses = start.new_zeros(len(supply))
    for step, active in enumerate(supply.active):
        rate = rates[step]
        keep = 1 - rate * rule.weight_decay
        losses[:active] += descent.descend(supply.batch(step), rate, keep)
    return descent.finish().sub_(start), losses


def _descend_near(
    start: Tensor, supply: Supply, rule: LocalTraining, rates: Sequence[float], descent: NearDescent
) -> tuple[Tensor, Tensor]:
    """SGD of one client with a penalty on the way that it has gone."""
    descent.begin_near(start)
    losses = start.new_zeros(1)
    for step in range(len(supply.active)):
        losses += descent.descend_near(supply.batch(step), rates[step], rule)
    return descent.finish().sub_(start), losses


def _walk(
    start: Tensor,
    supply: Supply,
    rule: LocalTraining,
    rates: Sequence[float],
    gradients: Gradients,
    noise: Sequence[Stream],
) -> tuple[Tensor, Tensor]:
    """The whole rule, line by line."""
    moved = start.new_zeros(len(supply), len(start))  # weights - start
    velocity = torch.zeros_like(moved) if rule.momentum else None
    losses = start.new_zeros(len(supply))
    clip = rule.gradient_clip
    each = clip if rule.per_example else None
    denominator = float(rule.batch_size or 0)
    ahead: list[Ahead] = []
    if rule.gradient_grid is not None:
        last = 0 if rule.last_step_noise else 1
        ahead = [Ahead(s, int(n) - last) for s, n in zip(noise, supply.steps, strict=True)]
    for step, active in enumerate(supply.active):
        rows = moved[:active]
        weights = rows + start
        gradient, loss = gradients(weights, supply.batch(step), each, denominator)
        losses[:active] += loss
        noisy = active
        if not rule.last_step_noise:  # those that go on are the first rows
            noisy = supply.active[step + 1] if step + 1 < len(supply.active) else 0
        if rule.per_example and rule.gradient_noise:
            _add_noise(gradient[:noisy], rule, noise, ahead)
        # One operation at a time from here on: no row's rounding depends on another (`lanes`).
        if rule.weight_decay:
            gradient.add_(weights.mul_(rule.weight_decay))
        if rule.penalty:
            gradient.add_(rows * _pull(rows, rule))
        if clip is not None and not clip.per_example:
            shorten(gradient, Clip(clip.norm, clip.order))
        if rule.gradient_noise and not rule.per_example:
            _add_noise(gradient[:noisy], rule, noise, ahead)
        if velocity is not None:
            gradient = velocity[:active].mul_(rule.momentum).add_(gradient)
        rows.sub_(gradient * rates[step])
        if rule.projection_radius is not None:
            shorten(rows, Clip(rule.projection_radius, 2))
    return moved, losses


def _pull(rows: Tensor, rule: LocalTraining) -> Tensor | float:
    """Strength of the penalty's pull on each client: none inside the radius."""
    if rule.penalty_radius == 0:
        return rule.penalty
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    if rows.device.type == "cpu" and not _clear(norms, rule.penalty_radius):
        norms = torch.from_numpy(row_norms(rows))
    return ((norms > rule.penalty_radius) * rule.penalty).to(rows.dtype)[:, None]


def _clear(norms: Tensor, radius: float) -> bool:
    """Whether norms in single precision, wrong by less than a percent, tell who is outside.

    So they are, for any number of weights that fits memory, if their squares do not underflow."""
    sure = torch.isfinite(norms) & ((norms - radius).abs() > 0.01 * radius)
    return 1e-10 < radius < 1e10 and bool(sure.all())


def shorten(rows: Tensor, clip: Clip) -> None:
    """Clip each row in place, on any device; the bound holds in exact arithmetic."""
    if rows.device.type == "cpu":
        clip_rows(rows, clip, in_place=True)
        return
    norms = torch.linalg.vector_norm(rows.double(), ord=clip.order, dim=1).float().cpu()
    # Rounding the norm to single precision is the largest error by far.
    factors = clip_factors(norms, clip, relative_error=2.0**-23)
    rows.mul_(factors.to(rows.device)[:, None])
    rows[(factors == 0).to(rows.device)] = 0  # a row that is not finite


def _add_noise(
    gradient: Tensor, rule: LocalTraining, streams: Sequence[Stream], ahead: Sequence[Ahead]
) -> None:
    """Add a step's noise to the first rows; on a grid, of what was drawn ahead."""
    std, grid = rule.gradient_noise, rule.gradient_grid
    if grid is None:
        rows = gaussian_rows(streams[: len(gradient)], gradient.shape[1], std)
        gradient.add_(torch.from_numpy(rows).to(gradient.device))
        return
    near = gradient.double().cpu().div_(grid).nan_to_num_(posinf=0.0, neginf=0.0)
    steps = near.round_().long().numpy()
    for row, stream in zip(steps, ahead, strict=False):
        row[:] = protect_sum(row, std, grid, stream)
    gradient.copy_(torch.from_numpy(unsnap(steps, grid)))
