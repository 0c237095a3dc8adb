"""Local SGD: the one loop by which every engine trains its clients.

`local_updates` trains a chunk of clients at once, each a row of a matrix `[clients, parameters]`.
`_reference` below is the whole local rule, step by step. An engine brings a kernel, a function that
computes the gradients of a step (`Gradients`). A kernel may also take whole steps of plain SGD by
itself, which saves forming a gradient (`Descent`); it is then asked for nothing else, and the
contract suite compares the result with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

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

Correction = Callable[[Tensor], Tensor]  # of the gradients, from how far clients have moved


class Gradients(Protocol):
    """A kernel: computes the gradient of the mean loss of each client's batch."""

    def __call__(
        self, weights: Tensor, batch: Any, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        """Return gradients and mean losses of a step.

        Args:
            weights: The clients' weights, `[clients, parameters]`.
            batch: What `Supply.batch` gives for the step: for most kernels inputs, targets and
                which examples are real (`records.Batch`).
            clip: If given, each example's gradient is clipped by it, and the sum over the batch is
                divided by `denominator`.
            denominator: The nominal batch size.

        Returns:
            Gradients `[clients, parameters]`, which the caller may overwrite and keep until the
            next call, and mean losses `[clients]`.
        """
        ...


class Descent(Protocol):
    """A kernel that takes steps of plain SGD without forming gradients."""

    def begin(self, start: Tensor, clients: int) -> None:
        """Put this many clients at `start` `[parameters]`."""
        ...

    def descend(self, batch: Any, rate: float, keep: float) -> Tensor:
        """Set `weights = keep * weights - rate * gradient` for the first clients, those of the
        batch, and return their mean losses `[clients]`."""
        ...

    def finish(self, start: Tensor) -> Tensor:
        """Return all clients' updates `[clients, parameters]`, given where they began."""
        ...


class Supply(Protocol):
    """The batches of a chunk of clients; clients in order of falling step counts."""

    steps: npt.NDArray[np.int64]  # how many steps each client takes, [clients]
    active: list[int]  # how many clients take each step, [steps]

    def __len__(self) -> int: ...

    def batch(self, step: int) -> Any:
        """Return the batches of the clients that take this step."""
        ...


def local_updates(
    start: Tensor,
    supply: Supply,
    rule: LocalTraining,
    rates: Sequence[float],
    kernel: Gradients | Descent,
    noise: Sequence[Stream],
    correction: Correction | None = None,
) -> tuple[Tensor, Tensor]:
    """Train each client of a chunk by the local rule.

    Args:
        start: The shared weights, `[parameters]`.
        supply: The clients' batches.
        rule: The local rule.
        rates: The learning rate of each step.
        kernel: Computes the gradients, or takes the steps.
        noise: A stream for each client, if the rule adds noise to gradients.
        correction: What a local step adds to the gradients, if the rule has one.

    Returns:
        Updates `[clients, parameters]`, and the mean over the steps of each client's batch losses
        `[clients]`.
    """
    if rule.plain and hasattr(kernel, "descend"):  # isinstance of a protocol takes too long
        moved, losses = _fused(start, supply, rule, rates, cast(Descent, kernel))
    else:
        own = cast(Gradients, kernel)
        moved, losses = _reference(start, supply, rule, rates, own, noise, correction)
    counts = torch.from_numpy(supply.steps).clamp(min=1).to(losses.device)
    return moved, losses / counts


def _fused(
    start: Tensor, supply: Supply, rule: LocalTraining, rates: Sequence[float], kernel: Descent
) -> tuple[Tensor, Tensor]:
    """Let the kernel take every step."""
    losses = start.new_zeros(len(supply))
    kernel.begin(start, len(supply))
    for step, active in enumerate(supply.active):
        keep = 1 - rates[step] * rule.weight_decay
        losses[:active] += kernel.descend(supply.batch(step), rates[step], keep)
    return kernel.finish(start), losses


def _reference(
    start: Tensor,
    supply: Supply,
    rule: LocalTraining,
    rates: Sequence[float],
    kernel: Gradients,
    noise: Sequence[Stream],
    correction: Correction | None,
) -> tuple[Tensor, Tensor]:
    """Carry out the local rule, line by line (`LocalTraining` has it as a formula)."""
    moved = start.new_zeros(len(supply), len(start))  # weights - start
    velocity = torch.zeros_like(moved) if rule.momentum else None
    losses = start.new_zeros(len(supply))
    clip = rule.gradient_clip
    each, whole = (clip, None) if rule.per_example else (None, clip)
    exact = _exact_noise(supply, rule, noise)
    for step, active in enumerate(supply.active):
        rows = moved[:active]
        weights = rows + start
        gradient, loss = kernel(weights, supply.batch(step), each, float(rule.batch_size or 0))
        losses[:active] += loss
        noisy = active
        if not rule.last_step_noise:  # those that go on are the first rows
            noisy = supply.active[step + 1] if step + 1 < len(supply.active) else 0
        if rule.gradient_noise and each is not None:
            _add_noise(gradient[:noisy], rule, noise, exact)
        # From here on one operation at a time: no row's rounding depends on another's.
        if rule.weight_decay:
            gradient.add_(weights.mul_(rule.weight_decay))
        if rule.penalty:
            gradient.add_(rows * _pull(rows, rule))
        if correction is not None:
            gradient.add_(correction(rows))
        if whole is not None:
            shorten(gradient, Clip(whole.norm, whole.order))
        if rule.gradient_noise and each is None:
            _add_noise(gradient[:noisy], rule, noise, exact)
        if velocity is not None:
            gradient = velocity[:active].mul_(rule.momentum).add_(gradient)
        rows.sub_(gradient * rates[step])
        if rule.projection_radius is not None:
            shorten(rows, Clip(rule.projection_radius, 2))
    return moved, losses


def _pull(rows: Tensor, rule: LocalTraining) -> Tensor | float:
    """Return the strength of the penalty on each client `[clients, 1]`: zero inside the radius."""
    radius = rule.penalty_radius
    if radius == 0:
        return rule.penalty
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    # In single precision they are wrong by less than a percent, for any number of weights that fits
    # memory, unless their squares underflow. So isolated clients' sums do not depend on others.
    sure = torch.isfinite(lengths) & ((lengths - radius).abs() > 0.01 * radius)
    if rows.device.type == "cpu" and not (1e-10 < radius < 1e10 and bool(sure.all())):
        lengths = torch.from_numpy(row_norms(rows))
    return ((lengths > radius) * rule.penalty).to(rows.dtype)[:, None]


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


def _exact_noise(supply: Supply, rule: LocalTraining, noise: Sequence[Stream]) -> list[Ahead]:
    """Return each client's noise on the grid, drawn for all of its steps at once."""
    if rule.gradient_grid is None:
        return []
    last = 0 if rule.last_step_noise else 1
    return [
        Ahead(stream, int(steps) - last) for stream, steps in zip(noise, supply.steps, strict=True)
    ]


def _add_noise(
    gradient: Tensor, rule: LocalTraining, streams: Sequence[Stream], exact: Sequence[Ahead]
) -> None:
    """Add a step's noise to the first rows."""
    std, grid = rule.gradient_noise, rule.gradient_grid
    if grid is None:
        rows = gaussian_rows(streams[: len(gradient)], gradient.shape[1], std)
        gradient.add_(torch.from_numpy(rows).to(gradient.device))
        return
    near = gradient.double().cpu().div_(grid).nan_to_num_(posinf=0.0, neginf=0.0)
    steps = near.round_().long().numpy()
    for row, stream in zip(steps, exact, strict=False):
        row[:] = protect_sum(row, std, grid, stream)
    gradient.copy_(torch.from_numpy(unsnap(steps, grid)))
