"""Gradients of fully connected networks by hand, for a chunk of clients at once.

States and errors of all layers are kept as `[clients, units, batch]`. An example's gradient in an
affine layer is the outer product of its error and its input, so its norm is a product of two norms
and no gradient of a single example is ever formed (ghost norms; Goodfellow 2015), in L1 as in L2.

For isolated clients every product is one of `isolated_arithmetic`, and all else goes through
operations in which no client's numbers depend on those beside it (`privacy.elementwise`).

Sums of clipped gradients hold whatever the values. Errors and inputs of layers are single-precision
numbers, whose squares, and products of squares, neither over- nor underflow in double precision.
Norms, factors and sums are computed there (in simulations only where single precision might over-
or underflow); an example of which anything is not finite counts as zero, it alone; the result is
rounded once. One record then moves it by at most twice the clip, up to rounding: each of the other
examples brings the same product, times a factor of its own.

The mean gradient of a person's records is a sum of products, whose norm follows from products of
records with records. These may cancel: the norm could be small beside the products, and adding them
up would lose what others have contributed. So the norm counts as at least 2^-10 of the sum of its
products' norms: no product is then longer than 2^10 clips, and adding up 64 of them in double
precision is off by less than 2^-36 clips. Which places they have may round products of d units
otherwise, by d * 2^-52 of that sum's square, so a factor by less than (d + 64) * 2^-33.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedveil.data.federation import Task
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.affine import Stack
from fedveil.training.engines.isolated_arithmetic import aligned, products, softmax, widened
from fedveil.training.engines.records import Batch, Packed

LEAST_NORM = 2.0**-10  # of a person's mean gradient, beside the sum of its records' norms

Product = Callable[[Tensor, Tensor], Tensor]
Layers = list[tuple[Tensor, Tensor]]  # errors and inputs of each layer, [clients, units, batch]


class AffineGradients:
    """Gradients of a stack of affine layers.

    Args:
        stack: The layers.
        task: What is predicted.
        isolated: Whether no client's numbers may depend on another's.
    """

    def __init__(self, stack: Stack, task: Task, isolated: bool) -> None:
        self._stack, self._task, self._isolated = stack, task, isolated
        self._multiply: Product = products if isolated else torch.bmm

    def __call__(
        self,
        weights: Tensor,
        batch: Batch | Packed,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(batch, Packed):
            inputs, targets, shares, owners = batch
            if not self._isolated:  # one client's pieces, side by side
                weights = weights[:1]
                inputs, targets, shares = (part.flatten(0, 1)[None] for part in batch[:3])
            whose = None if clip is None or clip.sites_per_person is None else owners
            return self._gradients(weights, inputs, targets, shares, whose, clip, denominator)
        inputs, targets, mask = batch
        if mask is None:
            shares = weights.new_full((), 1 / max(1, inputs.shape[1])).expand(inputs.shape[:2])
        elif self._isolated:  # real records come first; their number decides the shapes
            real = mask.sum(dim=1)
            if bool((real != real[0]).any()):
                columns = (torch.split(part, 1) for part in (weights, inputs, targets, mask))
                parts = zip(*columns, strict=True)
                each = [self(w, (x, y, own), clip, denominator) for w, x, y, own in parts]
                gradients, losses = zip(*each, strict=True)
                return torch.cat(gradients), torch.cat(losses)
            held = int(real[0])
            return self(weights, (inputs[:, :held], targets[:, :held], None), clip, denominator)
        else:
            shares = mask.to(weights.dtype) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return self._gradients(weights, inputs, targets, shares, None, clip, denominator)

    def _gradients(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        shares: Tensor,
        owners: Tensor | None,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        multiply, stack = self._multiply, self._stack
        matrices = [layer.weight_of(weights) for layer in stack]
        if self._isolated:
            matrices = [aligned(matrix) for matrix in matrices]
        inputs = inputs.flatten(2)
        states = [(aligned(inputs) if self._isolated else inputs).mT]
        for layer, matrix in zip(stack, matrices, strict=True):
            bias = layer.bias_of(weights)
            if bias is None or self._isolated:
                state = multiply(matrix, states[-1])
                state += 0 if bias is None else bias[:, :, None]
            else:
                state = torch.baddbmm(bias[:, :, None], matrix, states[-1])
            states.append(self._activate(layer.activation, state))
        scores = states.pop().movedim(1, 0)
        wanted = targets.movedim(2, 0) if self._task is Task.MULTI_LABEL else targets
        error, losses = output_error(self._task, scores, wanted, self._isolated)
        error = error.movedim(0, 1)
        if clip is None or owners is not None:
            error = error * shares[:, None]
        errors = [error]
        for index in range(len(stack) - 1, 0, -1):
            below, state = multiply(matrices[index].mT, errors[0]), states[index]
            if stack[index - 1].activation == "relu":
                below = torch.ops.aten.threshold_backward(below, state, 0)
            elif stack[index - 1].activation == "tanh":
                below.mul_(1 - state.square())
            errors.insert(0, below)
        layers = list(zip(errors, states, strict=True))
        if clip is not None:
            layers = self._clipped(layers, clip, denominator, owners, shares > 0)
        gradient = torch.empty_like(weights)
        for layer, (error, state) in zip(stack, layers, strict=True):
            # Straight into the flat gradient the product would go one client at a time.
            layer.weight_of(gradient).copy_(multiply(error, state.mT))
            bias = layer.bias_of(gradient)
            if bias is not None:
                bias.copy_(self._sums(error.mT)[:, 0])
        return gradient, (losses * shares).sum(dim=1)

    def _activate(self, kind: str, state: Tensor) -> Tensor:
        """Apply an activation in place."""
        if kind == "relu":
            return state.relu_()
        if kind == "tanh":  # not rounded correctly: isolated clients one by one
            for part in state if self._isolated else (state,):
                part.tanh_()
        return state

    def _sums(self, values: Tensor) -> Tensor:
        """Sum over the second axis, `[clients, n, m]` to `[clients, 1, m]`."""
        if not self._isolated:
            return values.sum(dim=1, keepdim=True)
        return products(values.new_ones(1, 1, values.shape[1]).expand(len(values), -1, -1), values)

    def _clipped(
        self,
        layers: Layers,
        clip: GradientClip,
        denominator: float,
        owners: Tensor | None,
        counts: Tensor,
    ) -> Layers:
        """Return the layers with errors that make clipped gradients, of examples or of persons."""
        widths = [width for layer in self._stack for width in (layer.inputs, layer.outputs)]
        roundings = 2 * max(widths) + 16  # of a sum over a layer, and a few more
        # Squares that vanish, times the largest, must be nothing beside the clip.
        vanishing = roundings * len(layers) * 2.0**-125
        limit = min(1e18, 1e-8 * clip.norm**2 / vanishing)
        norms, largest = self._norms(layers, clip.order, owners)
        slack = roundings * 2.0**-24
        if self._isolated or not largest < limit:  # else single precision is certain to do
            layers = [(widened(error), widened(state)) for error, state in layers]
            norms, _ = self._norms(layers, clip.order, owners)
            slack = roundings * 2.0**-52
            lost = ~norms.isfinite()[:, None]
            if bool(lost.any()):  # a factor of zero would not do, as infinity times it is no zero
                for part in (part for layer in layers for part in layer):
                    part.masked_fill_(lost, 0.0)
        bound = Clip(clip.norm, clip.order)
        factors = clip_factors(norms.flatten().cpu(), bound, relative_error=slack)
        factors = factors.view(norms.shape).to(norms.device) * counts.to(norms.device)
        return [(error.mul_((factors / denominator)[:, None]), state) for error, state in layers]

    def _norms(self, layers: Layers, order: int, owners: Tensor | None) -> tuple[Tensor, float]:
        """Return the norm of each example's gradient, or its owner's, `[clients, examples]`.

        It is not finite where anything of an example is not. Also returned is the largest square,
        or absolute value, of an error or a state.
        """
        if self._isolated and layers[0][0].dtype is torch.float32:
            return torch.empty(0), math.inf  # these are measured in double precision alone
        total, sizes = torch.zeros((), device=layers[0][0].device), list[Tensor]()
        for layer, sides in zip(self._stack, layers, strict=True):
            if owners is not None:
                of_error, of_state = (_grams(side, owners) for side in sides)
            else:
                power = torch.abs if order == 1 else torch.square
                of_error, of_state = (self._sums(power(side))[:, 0] for side in sides)
            sizes += [of_error, of_state]
            total = total + of_error * (of_state + (0.0 if layer.bias is None else 1.0))
        if owners is not None:
            norms = norms_of_owners(total, owners).view(layers[0][0].shape[::2])
        else:
            norms = total.sqrt() if order == 2 else total
        return norms, float(torch.stack(sizes).amax()) if total.numel() else 0.0


def _grams(values: Tensor, owners: Tensor) -> Tensor:
    """Products of each piece's columns `[pieces, places, places]`, from `[.., units, columns]`."""
    each = values.mT.reshape(*owners.shape, -1)
    return torch.bmm(each, each.mT)


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


def output_error(
    task: Task, scores: Tensor, targets: Tensor, isolated: bool
) -> tuple[Tensor, Tensor]:
    """Return the derivative of each example's loss by its scores, and the loss.

    Classes come first, because softmax over few classes side by side does not vectorise.

    Args:
        task: What is predicted.
        scores: `[outputs, clients, batch]`; they may be overwritten.
        targets: `[clients, batch]`, of several labels `[labels, clients, batch]`.
        isolated: Whether no client's numbers may depend on another's.

    Returns:
        Derivatives `[outputs, clients, batch]` and losses `[clients, batch]`.
    """
    if task is Task.REGRESSION:
        error = scores.sub_(targets)
        return error, error[0].square() / 2
    if task is Task.MULTI_LABEL:  # softmax of no and yes, for each label; where no scores zero
        scores, targets = torch.stack((torch.zeros_like(scores), scores)), targets[None]
    else:
        targets = targets[None]
    if isolated:
        share, total = softmax(scores)
        losses = total.log() - scores.gather(0, targets)[0]
    else:
        logs = torch.log_softmax(scores.flatten(1), 0).view(scores.shape)
        losses = logs.gather(0, targets)[0].neg_()
        share = logs.exp_()
    share.scatter_(0, targets, -1.0, reduce="add")
    if task is Task.MULTI_LABEL:
        return share[1] / len(losses), losses.mean(dim=0)
    return share, losses
