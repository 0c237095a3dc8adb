"""The obvious way: one client after the other, one step after the other, plain autograd."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedveil.data.federation import Task
from fedveil.engine.contract import Job
from fedveil.local.batches import draw_batches
from fedveil.local.rule import LocalRule
from fedveil.privacy.noise import gaussian, rounded_gaussian
from fedveil.randomness import Stream


@dataclass(frozen=True)
class Client:
    """What one client sends, float and before any grid, and what is said about it."""

    update: Tensor
    norm: float  # before clipping
    loss: float


def clip(vector: Tensor, norm: float, order: int) -> Tensor:
    size = float(torch.linalg.vector_norm(vector.double(), ord=order))
    return vector if size <= norm else vector * (norm / size)


def loss_of(job: Job, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    out = functional_call(job.module, job.layout.views(weights), (x,))
    if job.federation.task is Task.REGRESSION:
        return 0.5 * (out.squeeze(-1) - y).square().mean()
    return torch.nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())


def gradient_of(job: Job, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    weights = weights.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(job, weights, x, y), weights)
    return gradient


def data_gradient(job: Job, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    rule = job.rule
    if not rule.per_example:
        return gradient_of(job, w, x, y)
    total = torch.zeros_like(w)
    for i in range(len(x)):
        each = gradient_of(job, w, x[i : i + 1], y[i : i + 1])
        total += clip(each, rule.gradient_clip.norm, rule.gradient_clip.order)
    return total / rule.batch_size


def train(job: Job, start: Tensor, client: int, round: int) -> Client:
    """Train one client and shape its update."""
    rule, federation = job.rule, job.federation
    rows = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
    inputs = torch.as_tensor(np.array(federation.model_inputs(federation.train.inputs[rows])))
    targets = torch.as_tensor(np.array(federation.train.targets[rows]))
    size = np.array([len(targets)])
    batches = draw_batches(np.array([client]), size, rule, round, job.randomness)
    rates = rule.learning_rate.of_round(round, int(batches.steps[0]))
    stream = job.randomness.stream("gradient-noise", round, client)
    noises = exact_noise(rule, stream, len(rates) - (not rule.last_step_noise), len(start))
    w, v, losses = start.clone(), torch.zeros_like(start), []
    for step, rate in enumerate(rates):
        positions, mask = batches.at(step)
        x, y = inputs[positions[0][mask[0]]], targets[positions[0][mask[0]]]
        losses.append(float(loss_of(job, w, x, y)))
        g = data_gradient(job, w, x, y)
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
    update = w - start
    if job.shaping.sparsity:
        update = sparsified(job, update, gradient_of(job, w, inputs, targets))
    order = job.shaping.clip.order if job.shaping.clip else 2
    norm = float(torch.linalg.vector_norm(update.double(), ord=order))
    if job.shaping.clip is not None:
        update = clip(update, job.shaping.clip.norm, order)
    if job.shaping.weight_cap is not None:
        update = update * (min(len(targets), job.shaping.weight_cap) / job.shaping.weight_cap)
    return Client(update, norm, float(np.mean(losses)))


def exact_noise(rule: LocalRule, stream: Stream, steps: int, size: int) -> Iterator[np.ndarray]:
    """Noise on the grid for a client's steps, in one draw."""
    if not rule.gradient_noise or rule.gradient_grid is None:
        return iter(())
    drawn = rounded_gaussian(stream, steps * size, rule.gradient_noise / rule.gradient_grid)
    return iter(drawn.reshape(steps, size))


def with_noise(
    gradient: Tensor, rule: LocalRule, stream: Stream, noises: Iterator[np.ndarray]
) -> Tensor:
    std, grid = rule.gradient_noise, rule.gradient_grid
    if grid is None:
        return gradient + torch.from_numpy(gaussian(stream, len(gradient), std))
    steps = torch.round(gradient.double() / grid) + torch.from_numpy(next(noises))
    return (steps * grid).float()


def sparsified(job: Job, update: Tensor, gradient: Tensor) -> Tensor:
    saliency, update = (gradient * update).abs(), update.clone()
    for slot in job.layout:
        part = saliency[slot.start : slot.stop]
        kept = len(part) - math.floor(job.shaping.sparsity * len(part))
        threshold = part.sort(descending=True).values[kept - 1]
        update[slot.start : slot.stop] *= part >= threshold
    return update
