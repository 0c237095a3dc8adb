"""The obvious way: one client after the other, one step after the other, plain autograd.

In double precision, so that it is right beside engines that compute in single precision. How far
these may be off follows from an analysis of errors: in every step an engine makes an error of at
most `ROUNDINGS` units of rounding, relative to the weights that it reads and to the gradient that
it finds (no sum here has more terms, through all layers). What becomes of such errors until the end
of a round depends on the model and the rule, and is measured: the reference is run again with
errors of one unit in every step, of random signs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.core.randomness import Stream
from fedveil.data.federation import Task
from fedveil.privacy.noise.integers import rounded_gaussian
from fedveil.privacy.noise.simulated import gaussian
from fedveil.training.client.batches import draw_batches
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.engines.contract import Job

UNIT = 2.0**-24  # the largest relative error of rounding to single precision
ROUNDINGS = 256


@dataclass(frozen=True)
class Client:
    """What one client sends, before any grid, and what is said about it; and how far an engine may
    be off: an update in Euclidean length (its norm in the clip's order), and a loss."""

    update: Tensor
    before: Tensor  # clipping
    norm: float  # before clipping
    loss: float
    path: float  # sum of the rates
    doubtful: float  # length of what LUS keeps or not by rounding errors
    update_error: float = 0.0
    norm_error: float = 0.0
    loss_error: float = 0.0


def clip(vector: Tensor, norm: float, order: int) -> Tensor:
    size = float(torch.linalg.vector_norm(vector, ord=order))
    return vector if size <= norm else vector * (norm / size)


class Reference:
    """Trains single clients of a job; `errors` draws what is wrong with every step, if anything."""

    def __init__(self, job: Job, errors: np.random.Generator | None = None) -> None:
        self.job, self.errors = job, errors
        self.module: nn.Module = copy.deepcopy(job.module).double()

    def loss(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out = functional_call(self.module, self.job.layout.views(weights), (x,))
        if self.job.federation.task is Task.REGRESSION:
            return 0.5 * (out.squeeze(-1) - y).square().mean()
        if out.shape[-1] == 1:
            logits, wanted = out.flatten(), y.flatten().double()
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)
        return torch.nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weights = weights.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(weights, x, y), weights)
        return gradient

    def data_gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        rule = self.job.rule
        if not rule.per_example:
            return self.gradient(w, x, y)
        total = torch.zeros_like(w)
        for i in range(len(x)):
            each = self.gradient(w, x[i : i + 1], y[i : i + 1])
            total += clip(each, rule.gradient_clip.norm, rule.gradient_clip.order)
        return total / rule.batch_size

    def rounded(self, vector: Tensor, sizes: Tensor | float) -> Tensor:
        """The vector with one unit of error on every entry, relative to `sizes`."""
        if self.errors is None:
            return vector
        signs = torch.from_numpy(self.errors.choice([-1.0, 1.0], len(vector)))
        return vector + UNIT * sizes * signs

    def train(self, start: Tensor, client: int, round_number: int) -> Client:
        """Train one client and shape its update."""
        job, rule, federation = self.job, self.job.rule, self.job.federation
        rows = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
        inputs = torch.as_tensor(np.array(federation.model_inputs(federation.train.inputs[rows])))
        targets = torch.as_tensor(np.array(federation.train.targets[rows]))
        if federation.task is not Task.SEQUENCE:
            inputs = inputs.double()
        size = np.array([len(targets)])
        batches = draw_batches(np.array([client]), size, rule, round_number, job.randomness)
        rates = rule.learning_rate.of_round(round_number, int(batches.steps[0]))
        stream = job.randomness.stream("gradient-noise", round_number, client)
        noises = exact_noise(rule, stream, len(rates) - (not rule.last_step_noise), len(start))
        start = start.double()
        w, v, losses = start.clone(), torch.zeros_like(start), []
        for step, rate in enumerate(rates):
            positions, mask = batches.at(step)
            x, y = inputs[positions[0][mask[0]]], targets[positions[0][mask[0]]]
            read = self.rounded(w, w.abs())
            losses.append(float(self.loss(read, x, y)))
            g = self.data_gradient(read, x, y)
            g = self.rounded(g, float(g.norm()) / math.sqrt(len(g)))
            noisy = rule.gradient_noise > 0 and (rule.last_step_noise or step + 1 < len(rates))
            if noisy and rule.per_example:
                g = with_noise(g, rule, stream, noises)
            g = g + rule.weight_decay * w
            if (w - start).norm() > rule.penalty_radius:
                g = g + rule.penalty * (w - start)
            if rule.gradient_clip and not rule.per_example:
                g = clip(g, rule.gradient_clip.norm, rule.gradient_clip.order)
            if noisy and not rule.per_example:
                g = with_noise(g, rule, stream, noises)
            v = rule.momentum * v + g
            w = w - rate * v
            if rule.projection_radius:
                w = start + clip(w - start, rule.projection_radius, 2)
        update, doubtful = w - start, 0.0
        if job.pipeline.sparsity:
            update, doubtful = sparsified(job, update, self.gradient(w, inputs, targets))
        order = job.pipeline.clip.order if job.pipeline.clip else 2
        before, norm = update, float(torch.linalg.vector_norm(update, ord=order))
        if job.pipeline.clip is not None:
            update = clip(update, job.pipeline.clip.norm, order)
        if job.pipeline.weight_cap is not None:
            update = update * (min(len(targets), job.pipeline.weight_cap) / job.pipeline.weight_cap)
        mean_loss = float(np.mean(losses))
        return Client(update, before, norm, mean_loss, math.fsum(rates), doubtful)


def train(job: Job, start: Tensor, client: int, round_number: int) -> Client:
    """One client's update, and how far an engine may be off it."""
    right = Reference(job).train(start, client, round_number)
    off = Reference(job, np.random.default_rng([client, round_number])).train(
        start, client, round_number
    )
    order = job.pipeline.clip.order if job.pipeline.clip else 2
    moved = float((off.update - right.update).norm()) + UNIT * float(right.update.norm())
    longer = float(torch.linalg.vector_norm(off.before - right.before, ord=order))
    loss = abs(off.loss - right.loss) + UNIT * (1 + right.loss)
    # Rounding to a grid may go to the next point, in every step and coordinate.
    grid = (job.rule.gradient_grid or 0.0) * right.path * math.sqrt(len(start))
    jump = grid + 2 * right.doubtful * (1 if order == 2 else math.sqrt(len(start)))
    return replace(
        right,
        update_error=ROUNDINGS * moved + jump,
        norm_error=ROUNDINGS * (longer + UNIT * right.norm) + jump,
        loss_error=ROUNDINGS * max(loss, moved) + grid,
    )


def exact_noise(rule: LocalTraining, stream: Stream, steps: int, size: int) -> Iterator[np.ndarray]:
    """Noise on the grid for a client's steps, in one draw."""
    if not rule.gradient_noise or rule.gradient_grid is None:
        return iter(())
    drawn = rounded_gaussian(stream, steps * size, rule.gradient_noise / rule.gradient_grid)
    return iter(drawn.reshape(steps, size))


def with_noise(
    gradient: Tensor, rule: LocalTraining, stream: Stream, noises: Iterator[np.ndarray]
) -> Tensor:
    std, grid = rule.gradient_noise, rule.gradient_grid
    if grid is None:
        return gradient + torch.from_numpy(gaussian(stream, len(gradient), std))
    steps = torch.round(gradient / grid) + torch.from_numpy(next(noises))
    return steps * grid


def sparsified(job: Job, update: Tensor, gradient: Tensor) -> tuple[Tensor, float]:
    """The update after LUS, and the length of its entries that are too close to the threshold."""
    saliency, kept, close = (gradient * update).abs(), update.clone(), torch.zeros_like(update)
    for slot in job.layout:
        own = slice(slot.start, slot.stop)
        part = saliency[own]
        count = len(part) - math.floor(job.pipeline.sparsity * len(part))
        threshold = part.sort(descending=True).values[count - 1]
        kept[own] *= part >= threshold
        near = (part - threshold).abs() <= ROUNDINGS * UNIT * part.max()
        if int(near.sum()) > 1:
            close[own] = update[own] * near
    return kept, float(close.norm())
