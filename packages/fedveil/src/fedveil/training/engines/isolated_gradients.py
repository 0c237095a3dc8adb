"""Fully connected networks of isolated clients: products of each alone, all else side by side.

Every matrix product reads and writes one client's own memory, in a shape that its own records
decide, at a place that starts at a multiple of 64 bytes. What lies between goes through operations
in which no client's numbers depend on those beside it (`privacy.lanes`).

Sums of clipped gradients hold whatever the values. Errors and inputs of layers are single-precision
numbers, whose squares, and products of squares, neither over- nor underflow in double precision.
Norms, factors and sums are computed there; an example of which anything is not finite counts as
zero, it alone; the result is rounded once. One record then moves it by at most twice the clip, up
to rounding: each of the other examples brings the same product, times a factor of its own.

The mean gradient of a person's records is a sum of products, whose norm follows from products of
records with records. These may cancel: the norm could be small beside the products, and adding them
up would lose what others have contributed. So the norm counts as at least 2^-10 of the sum of its
products' norms: no product is then longer than 2^10 clips, and adding up 64 of them in double
precision is off by less than 2^-36 clips. Which places they have may round products of d units
otherwise, by d * 2^-52 of that sum's square, so a factor by less than (d + 64) * 2^-33.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.privacy.elementwise import tree_sum
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.affine import Affine, Stack
from fedveil.training.engines.isolated_arithmetic import aligned_stack, softmax
from fedveil.training.engines.records import Batch, Packed

_ROOMS = 4  # shapes whose memory is kept: of whole batches, of the last ones, of all records
LEAST_NORM = 2.0**-10  # of a person's mean gradient, beside the sum of its records' norms


class ApartGradients:
    """Gradients of a stack in which no client's numbers depend on another's."""

    def __init__(self, stack: Stack, task: Task) -> None:
        self._stack, self._task = stack, task
        self._rooms: dict[tuple[int, int], _Room] = {}

    def __call__(
        self,
        weights: Tensor,
        batch: Batch | Packed,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        shares = owners = None
        if isinstance(batch, Packed):
            inputs, targets, shares, owners = batch
            mask = None
        else:
            inputs, targets, mask = batch
        if mask is not None:  # real records come first; their number decides the shapes
            real = mask.sum(dim=1)
            if bool((real != real[0]).any()):
                columns = (torch.split(part, 1) for part in (weights, inputs, targets, mask))
                parts = zip(*columns, strict=True)
                each = [self(w, (x, y, own), clip, denominator) for w, x, y, own in parts]
                gradients, losses = zip(*each, strict=True)
                return torch.cat(gradients), torch.cat(losses)
            inputs, targets = inputs[:, : int(real[0])], targets[:, : int(real[0])]
        shape = len(inputs), inputs.shape[1]
        if shape not in self._rooms:
            while len(self._rooms) >= _ROOMS:
                del self._rooms[next(iter(self._rooms))]
            self._rooms[shape] = _Room(self._stack, self._task, *shape)
        room, whose = self._rooms[shape], (shares, owners)
        return room.gradients(weights, inputs, targets, whose, clip, denominator)


class _Room:
    """Memory for so many clients' batches of one size, used again in every step: all layers of a
    client side by side, `[clients, units, batch]`. A layer with a bias reads a one as well."""

    def __init__(self, stack: Stack, task: Task, clients: int, batch: int) -> None:
        self._stack, self._task, self._shape = stack, task, (clients, batch)
        outputs = [layer.outputs for layer in stack]
        inputs = [layer.inputs + (layer.bias is not None) for layer in stack]
        self._states = aligned_stack(clients, sum(inputs), batch).fill_(1)
        self._errors = aligned_stack(clients, sum(outputs), batch)
        self._read = torch.split(self._states, inputs, dim=1)
        self._made = torch.split(self._errors, outputs, dim=1)
        pairs = list(zip(outputs, inputs, strict=True))
        self._weights = [aligned_stack(clients, *pair) for pair in pairs]
        self._slopes = [aligned_stack(clients, *pair) for pair in pairs]
        triples = zip(self._weights, self._read, self._made, strict=True)
        self._forward = [list(zip(*triple, strict=True)) for triple in triples]
        self._back = [
            [(w[:, : layer.inputs].t(), e, b) for w, e, b in zip(*parts, strict=True)]
            for layer, *parts in zip(
                stack[1:], self._weights[1:], self._made[1:], self._made, strict=False
            )
        ]
        self._products = _products(self._made, self._read, self._slopes)
        self._doubles: DoubleSums | None = None

    def gradients(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        whose: tuple[Tensor | None, Tensor | None],
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        stack, (shares, owners) = self._stack, whose
        for layer, own in zip(stack, self._weights, strict=True):
            own[:, :, : layer.inputs].copy_(layer.weight_of(weights))
            bias = layer.bias_of(weights)
            if bias is not None:
                own[:, :, -1].copy_(bias)
        self._read[0][:, : stack[0].inputs].copy_(inputs.flatten(2).transpose(1, 2))
        for place, layer in enumerate(stack):
            for weight, state, made in self._forward[place]:
                torch.mm(weight, state, out=made)
            self._activate(place, layer)
        losses = self._differentiate(targets)
        if clip is None:
            self._made[-1].mul_(1 / self._shape[1])
        elif shares is not None:
            self._made[-1].mul_(shares[:, None])
        for place in range(len(stack) - 1, 0, -1):
            for turned, error, below in self._back[place - 1]:
                torch.mm(turned, error, out=below)
            self._before_activation(place)
        slopes = self._slopes
        if clip is None:
            for error, state, slope in self._products:
                torch.mm(error, state, out=slope)
        else:
            if self._doubles is None:
                self._doubles = DoubleSums(stack, self._errors, self._states)
            slopes = self._doubles.clipped_sums(clip, denominator, owners)
        gradient = torch.empty_like(weights)
        for layer, slope in zip(stack, slopes, strict=True):
            layer.weight_of(gradient).copy_(slope[:, :, : layer.inputs])
            bias = layer.bias_of(gradient)
            if bias is not None:
                bias.copy_(slope[:, :, -1])
        return gradient, losses

    def _activate(self, place: int, layer: Affine) -> None:
        """From what a layer made to what the next one reads."""
        made = self._made[place]
        into = made if place + 1 == len(self._stack) else self._read[place + 1][:, : layer.outputs]
        if layer.activation == "relu":
            torch.clamp(made, min=0, out=into)
        elif layer.activation == "tanh":  # not rounded correctly: each client alone
            for one, other in zip(made, into, strict=True):
                torch.tanh(one, out=other)
        elif into is not made:
            into.copy_(made)

    def _before_activation(self, place: int) -> None:
        """The error of what the activation before layer `place` read, in its place."""
        error, below = self._made[place - 1], self._stack[place - 1]
        state = self._read[place][:, : below.outputs]
        if below.activation == "relu":
            error.masked_fill_(state <= 0, 0.0)
        elif below.activation == "tanh":
            error.mul_(1 - state.square())

    def _differentiate(self, targets: Tensor) -> Tensor:
        """Put the derivative of each example's loss in the place of the outputs; mean losses."""
        outputs = self._made[-1]
        if self._task is Task.REGRESSION:
            outputs.sub_(targets[:, None])
            return outputs[:, 0].square().mean(dim=1) / 2
        if self._task is Task.MULTI_LABEL:  # of no and yes, each label's, where no scores zero
            wanted = targets.transpose(1, 2)
            scores = torch.stack((torch.zeros_like(outputs), outputs))
            share, total = softmax(scores)
            losses = total.log() - scores.gather(0, wanted[None])[0]
            outputs.copy_((share[1] - wanted) / outputs.shape[1])
            return losses.mean(dim=(1, 2))
        scores = outputs.movedim(1, 0)
        share, total = softmax(scores)
        losses = total.log() - scores.gather(0, targets[None])[0]
        minus = share.new_full((), -1.0).expand(1, *targets.shape)
        scores.copy_(share.scatter_add_(0, targets[None], minus))
        return losses.mean(dim=1)


class DoubleSums:
    """Sums of clipped gradients in double precision, from errors and inputs of all layers."""

    def __init__(self, stack: Stack, errors: Tensor, states: Tensor) -> None:
        self.given = errors, states
        (clients, made, batch), read = errors.shape, states.shape[1]
        double = partial(aligned_stack, clients, dtype=torch.float64)
        self._errors, self._states = double(made, batch), double(read, batch)
        self._powers = double(made, batch), double(read, batch)
        self._sizes = double(len(stack), batch), double(len(stack), batch)
        outputs = [layer.outputs for layer in stack]
        inputs = [layer.inputs + (layer.bias is not None) for layer in stack]
        pairs = zip(outputs, inputs, strict=True)
        self.sums = [double(*pair) for pair in pairs]
        self._norms = [
            (ones, power, size)
            for ones, powers, sizes in zip(
                (_segments(outputs), _segments(inputs)), self._powers, self._sizes, strict=True
            )
            for power, size in zip(powers, sizes, strict=True)
        ]
        mine, own = (
            torch.split(self._errors, outputs, dim=1),
            torch.split(self._states, inputs, dim=1),
        )
        self._products = _products(mine, own, self.sums)
        self._layers = list(zip(mine, own, strict=True))
        # Sums of squares over a layer may be off by this much, relatively.
        self._slack = (2 * max(*outputs, *inputs) + 16) * 2.0**-52

    def clipped_sums(
        self, clip: GradientClip, denominator: float, owners: Tensor | None = None
    ) -> list[Tensor]:
        """The sum over the denominator of each layer, `[clients, outputs, inputs]`.

        Args:
            clip: The bound on each example, or on all of an owner's together.
            denominator: What the sum is divided by.
            owners: Whose the examples are, `[clients, examples]`, numbers up to that of examples.
        """
        self._errors.copy_(self.given[0])
        self._states.copy_(self.given[1])
        norms = self._norms_of(clip) if owners is None else self._norms_of_owners(owners)
        finite = torch.isfinite(norms)
        if not bool(finite.all()):
            # A factor of zero would not do, as infinity times it is no zero.
            self._errors.masked_fill_(~finite[:, None], 0.0)
            self._states.masked_fill_(~finite[:, None], 0.0)
        bound = Clip(clip.norm, clip.order)
        factors = clip_factors(norms.flatten(), bound, relative_error=self._slack)
        self._errors.mul_(factors.view(norms.shape).div_(denominator)[:, None])
        for error, state, total in self._products:
            torch.mm(error, state, out=total)
        return self.sums

    def _norms_of_owners(self, owners: Tensor) -> Tensor:
        """The norm of the sum of its owner's products, at each example, all layers together."""
        pairs = torch.zeros(*owners.shape, owners.shape[1], dtype=torch.float64)
        for error, state in self._layers:
            pairs += torch.bmm(error.mT, error) * torch.bmm(state.mT, state)
        return norms_of_owners(pairs, owners)

    def _norms_of(self, clip: GradientClip) -> Tensor:
        """Norms `[clients, examples]`, all layers together."""
        of = torch.abs if clip.order == 1 else torch.square
        of(self._errors, out=self._powers[0])
        of(self._states, out=self._powers[1])
        for ones, power, size in self._norms:  # not finite where anything of an example is not
            torch.mm(ones, power, out=size)
        squares = tree_sum((self._sizes[0] * self._sizes[1]).movedim(1, 0))
        return (squares.sqrt() if clip.order == 2 else squares).contiguous()


def norms_of_owners(pairs: Tensor, owners: Tensor) -> Tensor:
    """Return the norms of sums of gradients, at each example `[clients, examples]`.

    Args:
        pairs: Products of examples' gradients with each other, `[clients, examples, examples]`.
        owners: Whose gradients are added up, `[clients, examples]`, numbers up to that of examples.
    """
    clients, examples = owners.shape
    # Of others' products none may count, whether or not it is finite.
    others = owners[:, :, None] != owners[:, None]
    rows = pairs.masked_fill(others, 0.0).sum(2)
    lengths = pairs.diagonal(dim1=1, dim2=2).sqrt()
    sums = pairs.new_zeros(2, clients, examples + 1)
    sums[0].scatter_add_(1, owners, rows)
    sums[1].scatter_add_(1, owners, lengths)
    norms = torch.hypot(sums[0].clamp_(min=0).sqrt_(), sums[1].mul_(LEAST_NORM))
    return norms.gather(1, owners)


def _products(
    errors: tuple[Tensor, ...], states: tuple[Tensor, ...], sums: list[Tensor]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each client's error, turned input and where their product goes, of all layers."""
    return [
        (error, state.t(), total)
        for layer in zip(errors, states, sums, strict=True)
        for error, state, total in zip(*layer, strict=True)
    ]


def _segments(widths: list[int]) -> Tensor:
    """Ones where a unit belongs to a layer, `[layers, units]`."""
    ones = torch.zeros(len(widths), sum(widths), dtype=torch.float64)
    ends = [0, *itertools.accumulate(widths)]
    for row, (begin, end) in zip(ones, itertools.pairwise(ends), strict=True):
        row[begin:end] = 1
    return ones
