"""Local SGD on the coefficients of a client's examples: a kernel in other coordinates (see `dual`).

A row of the loop holds a client's coefficients A, one after the other, and as its last number the
multiple 1 + r of the shared weights. All that the local rule does is linear in these, but for
norms, which the kernel computes. Layers above the one whose weights are such combinations are
trained as they are, by plain SGD.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.batches import Batches
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.affine import Affine, Parts, Stack
from fedveil.training.engines.isolated_arithmetic import products, softmax

if TYPE_CHECKING:
    from fedveil.training.engines.dual import Dual, Span

_LARGEST = torch.finfo(torch.float32).max
_GATHERED = 1_000_000  # numbers that the steps of one block take: 4 MB


@dataclass(frozen=True)
class Upper:
    """The layers above the dual's, each client with weights of its own, which training changes."""

    layers: Stack
    parts: Parts


class StepBatch(NamedTuple):
    """What a step reads of the clients that take it."""

    places: Tensor | None  # in the padded chunk, [clients * batch]; None: all examples in order
    gram: Tensor  # rows of XX', [clients, batch, examples]
    start: Tensor  # outputs at the shared weights, [clients, batch, outputs]
    targets: Tensor  # [clients, batch]
    shares: Tensor  # of each example in its client's mean, [clients, batch, 1]
    even: float | None  # the share of every example, if all are real


class DualSupply:
    """The batches of a chunk of clients, gathered for many steps at once."""

    def __init__(self, dual: Dual, batches: Batches, width: int) -> None:
        """`width` is how many places a batch has, at least as many as are drawn."""
        self._dual, self._batches = dual, batches
        self.steps, self._full = batches.steps, batches.full
        self.active: list[int] = (
            (batches.steps[:, None] > np.arange(batches.most_steps)).sum(axis=0).tolist()
        )
        positions = batches.positions if not batches.full else batches.positions[:, :, :0]
        clients, steps, drawn = batches.mask.shape
        mask = np.zeros((steps, clients, width), np.float32)
        mask[:, :, :drawn] = batches.mask.transpose(1, 0, 2)
        # Places that are not real read the client's first example, and add zero to it.
        places = np.zeros((steps, clients, positions.shape[2] and width), np.int64)
        places[:, :, : positions.shape[2]] = positions.transpose(1, 0, 2)
        places *= mask[:, :, : places.shape[2]] > 0
        places += np.arange(clients)[:, None] * dual.gram.shape[1]
        self._places = torch.from_numpy(places)
        counts = np.maximum(1, batches.mask.sum(axis=2)).T[:, :, None]
        self._shares = torch.from_numpy(mask / counts.astype(np.float32))[..., None]
        own = np.arange(steps) < batches.steps[:, None]
        taken = batches.mask if batches.full else batches.mask[own]
        self._even = 1 / width if drawn == width and bool(taken.all()) else None
        self._width, self._block = width, range(0)
        self._gathered: list[StepBatch] = []

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int) -> StepBatch:
        if step not in self._block:
            self._gather(step)
        return self._gathered[step - self._block.start]

    def _gather(self, first: int) -> None:
        """Gather this step and those after it that the same clients take, as many as fit."""
        active, dual = self.active[first], self._dual
        alike = itertools.takewhile(lambda count: count == active, self.active[first:])
        numbers = active * self._width * (dual.gram.shape[2] + 2 * dual.outputs.shape[2])
        count = min(sum(1 for _ in alike), max(1, _GATHERED // max(1, numbers)))
        self._block = range(first, first + count)
        parts = (dual.gram, dual.outputs, dual.targets)
        if self._full:
            gram, start, targets = (part[:active] for part in parts)
            whole = StepBatch(None, gram, start, targets, self._shares[0, :active], self._even)
            self._gathered = [whole] * count
            return
        steps = slice(first, first + count)
        places = self._places[steps, :active]
        gram, start, targets = (
            part.flatten(0, 1)
            .index_select(0, places.reshape(-1))
            .view(*places.shape, *part.shape[2:])
            for part in parts
        )
        lists = places.flatten(1), gram, start, targets, self._shares[steps, :active]
        self._gathered = [StepBatch(*each, self._even) for each in zip(*lists, strict=True)]


class DualKernel:
    """Gradients and plain descent of a chunk of clients."""

    def __init__(self, dual: Dual, upper: Upper, isolated: bool) -> None:
        self._dual, self._upper, self._isolated = dual, upper, isolated
        self._moved = torch.zeros_like(dual.outputs)  # A [clients, examples, outputs]
        self._scale, self._scales = 1.0, dual.outputs.new_ones(len(dual.outputs))  # 1 + r

    @property
    def origin(self) -> Tensor:
        """The shared weights in these coordinates: no coefficient, and once themselves."""
        row = self._moved.new_zeros(self._moved[0].numel() + 1)
        row[-1] = 1
        return row

    def span(self, moved: Tensor) -> Span:
        """Return what rows of coordinates stand for."""
        from fedveil.training.engines.dual import Span

        return Span(moved[:, :-1].view(-1, *self._moved.shape[1:]), moved[:, -1])

    # The whole rule, by the loop.

    def __call__(
        self, weights: Tensor, batch: StepBatch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if self._upper.layers:
            raise ValueError("networks go through the dual by plain SGD alone")
        here = self.span(weights)
        start = batch.start * here.shift[:, None, None]
        scores = torch.baddbmm(start, batch.gram, here.coefficients)
        error, losses = self._errors(scores, batch.targets)
        shares = batch.shares[..., 0]
        loss = (losses * shares).sum(dim=1)
        if clip is not None:
            shares = (shares > 0) * self._example_factors(error, batch, clip) / denominator
            error = torch.nan_to_num(error, 0.0, 0.0, 0.0)  # where its factor is zero
        coefficients = torch.zeros_like(self._moved[: len(weights)])
        _scatter(coefficients, batch.places, error * shares[..., None])
        return torch.nn.functional.pad(coefficients.flatten(1), (0, 1)), loss

    def norms(self, rows: Tensor) -> Tensor:
        return self._dual.norms(self.span(rows))

    # Plain SGD with weight decay, in as few operations as it takes.

    def begin(self, start: Tensor, clients: int) -> None:
        """Clients have not moved yet."""

    def descend(self, batch: StepBatch, rate: float, keep: float) -> Tensor:
        active, layers = len(batch.gram), self._upper.layers
        here = self._moved[:active]
        if self._isolated:
            scores = products(batch.gram, here)
            scores += batch.start if self._scale == 1 else batch.start * self._scale
        else:
            scores = torch.baddbmm(batch.start, batch.gram, here, beta=self._scale)
        states, parts = [scores], self._upper.parts
        if parts:
            parts = [(w[:active], None if b is None else b[:active]) for w, b in parts]
            states = _rise(scores, self._dual.layer, layers, parts)
        error, losses = self._errors(states[-1], batch.targets)
        if batch.even is None or self._isolated:  # others decide whether all examples are real
            error = error * (batch.shares * -rate)
        else:
            error = error * (batch.even * -rate)
        if parts:
            error = _fall([*states[:-1], error], self._dual.layer, layers, parts, keep)
        if keep != 1:
            here.mul_(keep)
            self._scale *= keep
            if abs(self._scale) > _LARGEST:  # as weights overflow: torch takes no such number
                self._scale = math.copysign(math.inf, self._scale)
            self._scales[:active] = self._scale
        _scatter(here, batch.places, error)
        loss: Tensor = torch.linalg.vecdot(losses, batch.shares[..., 0])
        return loss

    def finish(self) -> Tensor:
        return torch.cat([self._moved.flatten(1), self._scales[:, None]], dim=1)

    def _errors(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return derivatives of each example's loss by its outputs `[clients, batch, outputs]`, and
        the losses `[clients, batch]`; scores may be overwritten."""
        if self._dual.task is Task.REGRESSION:
            error = scores.sub_(targets[:, :, None])
            return error, error[:, :, 0].square() / 2
        # Classes first: softmax over few classes side by side is slow.
        turned, wanted = scores.permute(2, 0, 1).contiguous(), targets[None]
        if self._isolated:
            share, total = softmax(turned)
            losses = total.log() - turned.gather(0, wanted)[0]
        else:
            logs = torch.log_softmax(turned.flatten(1), 0).view(turned.shape)
            losses = logs.gather(0, wanted)[0].neg_()
            share = logs.exp_()
        return share.scatter_(0, wanted, -1.0, reduce="add").permute(1, 2, 0), losses

    def _example_factors(self, error: Tensor, batch: StepBatch, clip: GradientClip) -> Tensor:
        """Return clipping factors of single examples, whose gradients are outer products."""
        dual, active = self._dual, len(error)
        lengths = dual.absolute_sums if clip.order == 1 else dual.lengths
        own = lengths[:active]
        if batch.places is not None:
            own = lengths.flatten().index_select(0, batch.places).view(active, -1)
        norms = torch.linalg.vector_norm(error, ord=clip.order, dim=2, dtype=torch.float64) * own
        # Factors are rounded to single precision, and so is what they are multiplied by.
        slack = 2.0**-22 + (2 * dual.inputs.shape[2] + 16) * 2.0**-52
        bound = Clip(clip.norm, clip.order)
        factors: Tensor = clip_factors(norms.flatten(), bound, relative_error=slack)
        return factors.view(norms.shape).to(error.dtype)


def _rise(state: Tensor, first: Affine, layers: Stack, parts: Parts) -> list[Tensor]:
    """Return what each layer above the first reads, and the network's output, each
    `[clients, batch, units]`.

    `state` is what the first layer gives before its activation; it is overwritten.
    """
    states = [first.activate(state)]
    for layer, (weight, bias) in zip(layers, parts, strict=True):
        if bias is None:
            state = torch.bmm(states[-1], weight.mT)
        else:
            state = torch.baddbmm(bias[:, None], states[-1], weight.mT)
        states.append(layer.activate(state))
    return states


def _fall(states: list[Tensor], first: Affine, layers: Stack, parts: Parts, keep: float) -> Tensor:
    """Move every layer above the first by its error, and return the error below.

    `weights = keep * weights + error' state`, where the last of `states` is the network's error by
    now. Returned is the error before the first activation.
    """
    error = states[-1]
    for index in range(len(layers) - 1, -1, -1):
        (weight, bias), state = parts[index], states[index]
        below = torch.bmm(error, weight)
        weight.baddbmm_(error.mT, state, beta=keep)
        if bias is not None:
            bias.mul_(keep).add_(error.sum(dim=1))
        error = (layers[index - 1] if index else first).before_activation(below, state)
    return error


def _scatter(into: Tensor, places: Tensor | None, values: Tensor) -> None:
    """Add the batch's rows to `[clients, examples, outputs]`; no real example comes twice."""
    if places is None:
        into.add_(values)
    else:
        into.flatten(0, 1).index_add_(0, places, values.flatten(0, 1))
