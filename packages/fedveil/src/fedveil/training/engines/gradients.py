"""Gradients of any module: one client through autograd, or a chunk of clients through `vmap`.

In a protected run a module or a loss that raises ends nothing: the gradient counts as zero, of the
example where single ones are clipped, else of the client's batch.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedveil.core.containment import contained
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import GradientClip
from fedveil.training.engines.contract import Job
from fedveil.training.engines.example_gradients import (
    ExampleGradients,
    example_way,
    first_line,
    zeros_like,
)
from fedveil.training.engines.kernels import tuned
from fedveil.training.engines.local_sgd import shorten
from fedveil.training.engines.records import Batch
from fedveil.training.models.flat import flatten
from fedveil.training.models.losses import example_losses
from fedveil.training.models.structure import drawing_from


class AutogradGradients:
    """One client at a time, by the fastest kernels there are for its layers."""

    def __init__(self, job: Job, device: torch.device, module: nn.Module | None = None) -> None:
        """Take a job and a device, and perhaps a module that stands in for the job's: with
        parameters of the same names and sizes."""
        self._module = (tuned(job.module) if module is None else module).train().to(device)
        self._layout, self._task, self._loss = job.layout, job.federation.task, job.rule.loss
        self._contained = contained if job.isolated else nullcontext
        named = dict(self._module.named_parameters())
        self._parameters = [named[slot.name] for slot in job.layout]
        self._weights = [parameter.data for parameter in self._parameters]
        self._clipped = _Clipped(job, device)

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is not None:
            return self._clipped(weights, batch, clip, denominator)
        self.begin(weights[0], 1)
        loss = self._backward(batch)
        gradient = torch.empty_like(weights)
        views = self._layout.views(gradient[0]).values()
        for view, parameter in zip(views, self._parameters, strict=True):
            if parameter.grad is None:  # not used in this forward pass
                view.zero_()
            else:
                view.view_as(parameter.grad).copy_(parameter.grad)
        return gradient, loss

    def begin(self, start: Tensor, clients: int) -> None:
        views = self._layout.views(start).values()
        for weight, view in zip(self._weights, views, strict=True):
            weight.copy_(view.view_as(weight))

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        loss = self._backward(batch)
        if keep != 1:
            torch._foreach_mul_(self._weights, keep)
        used = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        gradients = [cast(Tensor, self._parameters[i].grad) for i in used]
        torch._foreach_add_([self._weights[i] for i in used], gradients, alpha=-rate)
        return loss

    def finish(self, start: Tensor) -> Tensor:
        return torch.cat([weight.flatten() for weight in self._weights]).sub_(start)[None]

    def _backward(self, batch: Batch) -> Tensor:
        """Leave the gradient of one client's mean loss in the parameters; returns `[1]`."""
        inputs, targets, mask = batch
        if len(inputs) != 1:
            raise ValueError(f"one client at a time, not {len(inputs)}")
        x, y = inputs[0], targets[0]
        if mask is not None:
            x, y = x[mask[0]], y[mask[0]]
        self._forget()  # autograd then hands over its own buffer instead of adding

        with self._contained():
            loss = example_losses(self._task, self._module(x), y, self._loss).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()[None]
        return self._forget()

    def _forget(self) -> Tensor:
        """Leave no gradient in any parameter, as if none were used; a loss of zero, `[1]`."""
        for parameter in self._parameters:
            parameter.grad = None
        return torch.zeros(1, device=self._weights[0].device)


class VmapGradients:
    """A chunk of clients at once, each with weights of its own, through `torch.func`."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._contained = contained if job.isolated else nullcontext
        self._module = copy.deepcopy(job.module).train().to(device)
        self._layout, self._task, self._loss = job.layout, job.federation.task, job.rule.loss
        for parameter in self._module.parameters():
            parameter.requires_grad_(False)  # weights come as arguments, never from the module
        self._of_clients = vmap(grad_and_value(self._mean_loss), randomness="different")
        self._clipped = _Clipped(job, device)

    def _mean_loss(self, weights: Tensor, inputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        outputs = functional_call(self._module, self._layout.views(weights), (inputs,))
        losses = example_losses(self._task, outputs, targets, self._loss)
        return (losses * share).sum()

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is not None:
            return self._clipped(weights, batch, clip, denominator)
        inputs, targets, mask = batch
        real = weights.new_ones(targets.shape[:2]) if mask is None else mask.to(weights.dtype)
        share = real / real.sum(dim=1, keepdim=True)
        with self._contained():
            gradients, losses = self._of_clients(weights, inputs, targets, share)
            return gradients, losses
        return torch.zeros_like(weights), weights.new_zeros(len(weights))


class _Clipped:
    """Means of clipped gradients, one client after the other; made ready when first asked."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job, self._device = job, device

    @cached_property
    def _sums(self) -> ExampleGradients | ExampleLoop:
        way = example_way(self._job)
        if isinstance(way, str):
            return ExampleLoop(AutogradGradients(self._job, self._device))
        return ExampleGradients(self._job, self._device, way)

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip, denominator: float
    ) -> tuple[Tensor, Tensor]:
        gradients, losses = torch.empty_like(weights), weights.new_zeros(len(weights))
        for client, (inputs, targets) in enumerate(zip(*batch[:2], strict=True)):
            shares = None if batch[2] is None else batch[2][client]
            if shares is not None and shares.dtype is torch.bool:  # which examples are real
                inputs, targets, shares = inputs[shares], targets[shares], None
            total, each = self._sums(weights[client], inputs, targets, clip, shares)
            torch.div(total, denominator, out=gradients[client])
            losses[client] = each.sum() / max(1, len(each))
        return gradients, losses


class ExampleLoop:
    """Clipped gradients of one client, one example after the other: for what `vmap` cannot do."""

    def __init__(self, gradients: AutogradGradients) -> None:
        self._gradients = gradients

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        clip: GradientClip,
        shares: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the sum of clipped gradients and losses, as `ExampleGradients` does."""
        total = torch.zeros_like(weights, dtype=torch.float64)
        losses = weights.new_zeros(len(inputs))
        for place, (x, y) in enumerate(zip(inputs, targets, strict=True)):
            one: Batch = x[None, None], y[None, None], None
            if shares is not None:  # the mean over a person's records
                one = x[None], y[None], (shares[place] > 0)[None]
                if not bool(one[2].any()):
                    continue
            gradient, losses[place : place + 1] = self._gradients(weights[None], one, None, 0.0)
            shorten(gradient, Clip(clip.norm, clip.order))
            total += gradient[0]
        return total, losses


def why_not_vmap(job: Job) -> str | None:
    """Why `torch.func` cannot train several clients of this job at once; None if it can."""
    for name, child in job.module.named_modules():
        if isinstance(child, nn.RNNBase):
            return f"torch cannot batch layer {name} ({type(child).__name__}) over clients"
    if job.rule.per_example:
        way = example_way(job)
        return way if isinstance(way, str) else None
    inputs, targets = (column[None].repeat_interleave(2, 0) for column in zeros_like(job, 1))
    # As in a simulation, where what raises is seen.
    gradients = VmapGradients(replace(job, isolated=False), torch.device("cpu"))
    try:
        with drawing_from(0):
            gradients(flatten(job.module).repeat(2, 1), (inputs, targets, None), None, 1.0)
    except Exception as error:  # whatever a user's module may raise under vmap
        return f"torch.func cannot batch the model: {first_line(error)}"
    return None
