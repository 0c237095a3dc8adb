"""Fully connected networks: a chunk of clients through batched matrix products, by hand.

All activations are kept as `[clients, units, batch]`. An example's gradient in an affine layer is
the outer product of its error and its input, so its norm is a product of two norms and no gradient
of a single example is ever formed (ghost norms; Goodfellow 2015), in L1 as in L2.

Where single precision might over- or underflow, clipped gradients go through double precision
(`isolated_gradients`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedveil.data.federation import Task
from fedveil.privacy.clipping import Clip, clip_factors
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.affine import Parts, Stack, parts_of, rows_of
from fedveil.training.engines.isolated_gradients import ApartGradients, norms_of_owners
from fedveil.training.engines.records import Batch, Packed

_LARGEST = 1e8  # whose fourth power is far from overflow, and so are sums of such


class MlpGradients:
    """Gradients and plain descent of a stack of affine layers."""

    def __init__(self, stack: Stack, task: Task) -> None:
        self._stack, self._task = stack, task
        widest = max(max(layer.inputs, layer.outputs) for layer in stack)
        # Sums of squares over a layer may be off by this many roundings, relatively.
        self._roundings = 2 * widest + 16
        self._exact = ApartGradients(stack, task)
        self._parts: Parts = []

    def __call__(
        self,
        weights: Tensor,
        batch: Batch | Packed,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        if isinstance(batch, Packed):
            return self._of_persons(weights[:1], batch, clip, denominator)
        inputs, targets, mask = batch
        parts = [(layer.weight_of(weights), layer.bias_of(weights)) for layer in self._stack]
        states = self._forward(parts, inputs)
        error, losses = output_error(self._task, states.pop(), targets)
        share = _share(losses, mask)
        if clip is None:
            error *= share[:, None]
        errors = self._errors(parts, error, states)
        if clip is not None:
            factors = self._quick_factors(errors, states, clip)
            if factors is None:
                w, x, y = (part.cpu() for part in (weights, inputs, targets))
                real = None if mask is None else mask.cpu()
                clipped, _ = self._exact(w, (x, y, real), clip, denominator)
                return clipped.to(weights.device), (losses * share).sum(dim=1)
            factors /= denominator
            if mask is not None:
                factors *= mask
            for each in errors:
                each *= factors[:, None]
        return self._products(weights, errors, states), (losses * share).sum(dim=1)

    def _of_persons(
        self, weights: Tensor, batch: Packed, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        """The sum of persons' clipped gradients `[1, parameters]`, and of their losses `[1]`."""
        inputs, targets, shares = (part.flatten(0, 1)[None] for part in batch[:3])
        parts = [(layer.weight_of(weights), layer.bias_of(weights)) for layer in self._stack]
        states = self._forward(parts, inputs)
        error, losses = output_error(self._task, states.pop(), targets)
        error *= shares[:, None]
        errors = self._errors(parts, error, states)
        pairs, owners = torch.zeros((), device=weights.device), batch.owners
        for layer, one, state in zip(self._stack, errors, states, strict=True):
            bias = 0.0 if layer.bias is None else 1.0
            pairs = pairs + _grams(one, owners) * (_grams(state, owners) + bias)
        largest = max(float(each.abs().amax()) for each in (*errors, *states, pairs))
        if clip is None or not largest < _LARGEST:  # may over- or underflow
            rows, exact = weights.cpu().expand(len(owners), -1), Packed(*(c.cpu() for c in batch))
            clipped = self._exact(rows, exact, clip, denominator)[0].sum(0, keepdim=True)
            return clipped.to(weights.device), (losses * shares).sum(dim=1)
        lengths = norms_of_owners(pairs, owners).flatten().cpu()
        factors = clip_factors(lengths, Clip(clip.norm), relative_error=self._roundings * 2.0**-24)
        for each in errors:
            each *= factors.to(each.device) / denominator
        return self._products(weights, errors, states), (losses * shares).sum(dim=1)

    def _errors(self, parts: Parts, error: Tensor, states: list[Tensor]) -> list[Tensor]:
        """The errors of all layers' outputs, from the last one's."""
        errors = [error]
        for index in range(len(parts) - 1, 0, -1):
            errors.insert(0, self._back(index, parts[index][0], errors[0], states[index]))
        return errors

    def _products(self, weights: Tensor, errors: list[Tensor], states: list[Tensor]) -> Tensor:
        """Gradients `[clients, parameters]` from errors and inputs of all layers."""
        gradient = torch.empty_like(weights)
        for layer, state, each in zip(self._stack, states, errors, strict=True):
            # Straight into the flat gradient the product would go one client at a time.
            layer.weight_of(gradient).copy_(torch.bmm(each, state.transpose(1, 2)))
            bias = layer.bias_of(gradient)
            if bias is not None:
                bias.copy_(each.sum(dim=2))
        return gradient

    def begin(self, start: Tensor, clients: int) -> None:
        self._parts = parts_of(self._stack, start, clients)

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        inputs, targets, mask = batch
        active = len(inputs)
        parts = [(w[:active], None if b is None else b[:active]) for w, b in self._parts]
        states = self._forward(parts, inputs)
        error, losses = output_error(self._task, states.pop(), targets)
        share = _share(losses, mask)
        error *= share[:, None]
        for index in range(len(parts) - 1, -1, -1):
            (weight, bias), state, here = parts[index], states[index], error
            if index:
                error = self._back(index, weight, here, state)
            weight.baddbmm_(here, state.transpose(1, 2), beta=keep, alpha=-rate)
            if bias is not None:
                if keep != 1:
                    bias *= keep
                bias.add_(here.sum(dim=2), alpha=-rate)
        return (losses * share).sum(dim=1)

    def finish(self) -> Tensor:
        rows = rows_of(self._stack, self._parts)
        self._parts = []
        return rows

    def _forward(self, parts: Parts, inputs: Tensor) -> list[Tensor]:
        """What each layer reads, and the last one's output; each `[clients, units, batch]`."""
        states = [inputs.flatten(2).transpose(1, 2)]
        for layer, (weight, bias) in zip(self._stack, parts, strict=True):
            if bias is None:
                state = torch.bmm(weight, states[-1])
            else:
                state = torch.baddbmm(bias[:, :, None], weight, states[-1])
            states.append(layer.activate(state))
        return states

    def _back(self, index: int, weight: Tensor, error: Tensor, state: Tensor) -> Tensor:
        """The error before the activation that made `state`, which layer `index` reads."""
        below = torch.bmm(weight.transpose(1, 2), error)
        return self._stack[index - 1].before_activation(below, state)

    def _quick_factors(
        self, errors: list[Tensor], states: list[Tensor], clip: GradientClip
    ) -> Tensor | None:
        """What each example's gradient is multiplied by to be clipped, `[clients, batch]`, in
        single precision; None if that may be wrong."""
        sizes = _sizes(errors, states, clip.order)
        # Squares that vanish, times the largest, must be nothing beside the clip.
        vanishing = self._roundings * len(errors) * 2.0**-125
        limit = 1e18 if clip.order == 1 else min(1e18, 1e-8 * clip.norm**2 / vanishing)
        if not float(torch.stack([size for pair in sizes for size in pair]).amax()) < limit:
            return None
        norms = torch.zeros_like(sizes[0][0])
        for layer, (error, state) in zip(self._stack, sizes, strict=True):
            norms += error * (state + (0.0 if layer.bias is None else 1.0))
        return _factors(norms, clip, self._roundings * 2.0**-24)


def _grams(values: Tensor, owners: Tensor) -> Tensor:
    """Products of each piece's columns `[pieces, places, places]`, from `[1, units, columns]`."""
    each = values[0].t().reshape(*owners.shape, -1)
    return torch.bmm(each, each.mT)


def _factors(norms: Tensor, clip: GradientClip, slack: float) -> Tensor:
    """What each example's gradient is multiplied by to be clipped, `[clients, batch]`, from its
    norm, or for L2 its square."""
    norms = norms.sqrt() if clip.order == 2 else norms
    bound = Clip(clip.norm, clip.order)
    factors = clip_factors(norms.flatten().cpu(), bound, relative_error=slack)
    return factors.view(norms.shape).to(norms.device)


def _sizes(errors: list[Tensor], states: list[Tensor], order: int) -> list[tuple[Tensor, Tensor]]:
    """Sums of squares, or of absolute values, of each layer's errors and inputs, each
    `[clients, batch]`."""
    pairs = zip(errors, states, strict=True)
    if order == 1:
        return [(error.abs().sum(dim=1), state.abs().sum(dim=1)) for error, state in pairs]
    return [(error.square().sum(dim=1), state.square().sum(dim=1)) for error, state in pairs]


def output_error(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Derivative of each example's loss `[clients, outputs, batch]` by its outputs, and the loss.

    `outputs [clients, outputs, batch]` are overwritten.
    """
    if task is Task.REGRESSION:
        error = outputs.sub_(targets[:, None])
        return error, 0.5 * error[:, 0].square()
    if task is Task.MULTI_LABEL:
        wanted = targets.transpose(1, 2).to(outputs.dtype)
        losses = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        return outputs.sigmoid_().sub_(wanted).div_(outputs.shape[1]), losses.mean(dim=1)
    # Written out, because softmax over few classes does not vectorise.
    wanted = targets[:, None]
    outputs -= outputs.amax(dim=1, keepdim=True)
    chosen = outputs.gather(1, wanted)
    share = outputs.exp_()
    total = share.sum(dim=1, keepdim=True)
    losses = total.log().sub_(chosen)[:, 0]
    share /= total
    share.scatter_add_(1, wanted, share.new_full((), -1.0).expand(wanted.shape))
    return share, losses


def _share(losses: Tensor, mask: Tensor | None) -> Tensor:
    """The weight of each example in its client's mean, `[clients, batch]`."""
    if mask is None:
        return losses.new_full((), 1 / losses.shape[1]).expand(losses.shape)
    real = mask.to(losses.dtype)
    return real / real.sum(dim=1, keepdim=True)
