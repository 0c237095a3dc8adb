"""Gradients of any module: one client through autograd, or a chunk of clients through `vmap`.

In a protected run a module or a loss that raises ends nothing: the gradient counts as zero, of the
example where single ones are clipped, else of the client's batch.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedveil.core.containment import contained
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.engines.contract import Job
from fedveil.training.engines.kernels import tuned
from fedveil.training.engines.local_sgd import shorten
from fedveil.training.engines.records import Batch
from fedveil.training.models.flat import flatten
from fedveil.training.models.losses import example_losses
from fedveil.training.models.tensors import as_tensor

_VALUES = 16_000_000  # numbers in gradients of single examples held at once: 64 MB


class AutogradGradients:
    """One client at a time, by the fastest kernels there are for its layers."""

    def __init__(
        self,
        job: Job,
        device: torch.device,
        module: nn.Module | None = None,
        one_by_one: bool = False,
    ) -> None:
        """`module` stands in for the job's: parameters of the same names and sizes. `one_by_one`
        computes gradients of single examples without `vmap`."""
        self._module = (tuned(job.module) if module is None else module).train().to(device)
        self._layout, self._task, self._loss = job.layout, job.federation.task, job.rule.loss
        self._contained = contained if job.isolated else nullcontext
        named = dict(self._module.named_parameters())
        self._parameters = [named[slot.name] for slot in job.layout]
        self._weights = [parameter.data for parameter in self._parameters]
        self._start: list[Tensor] = []  # where a client began, if it is drawn back there
        # Neither these nor a loss of somebody's own need be fit for `vmap`.
        recurrent = any(isinstance(one, nn.RNNBase) for one in job.module.modules())
        alone = one_by_one or self._loss is not None or recurrent
        self._per_example = ExampleLoop(self) if alone else VmapGradients(job, device)

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        if clip is not None:
            return self._per_example(weights, batch, clip, denominator)
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

    def begin_near(self, start: Tensor) -> None:
        self.begin(start, 1)
        self._start = [weight.clone() for weight in self._weights]

    def descend_near(self, batch: Batch, rate: float, rule: LocalTraining) -> Tensor:
        away = torch._foreach_sub(self._weights, self._start)
        loss = self.descend(batch, rate, 1 - rate * rule.weight_decay)
        norm = torch.stack(torch._foreach_norm(away)).double().norm()
        if rule.penalty_radius == 0 or float(norm) > rule.penalty_radius:
            torch._foreach_add_(self._weights, away, alpha=-rate * rule.penalty)
        return loss

    def descend(self, batch: Batch, rate: float, keep: float) -> Tensor:
        loss = self._backward(batch)
        if keep != 1:
            torch._foreach_mul_(self._weights, keep)
        used = [i for i, parameter in enumerate(self._parameters) if parameter.grad is not None]
        gradients = [cast(Tensor, self._parameters[i].grad) for i in used]
        torch._foreach_add_([self._weights[i] for i in used], gradients, alpha=-rate)
        return loss

    def finish(self) -> Tensor:
        return torch.cat([weight.flatten() for weight in self._weights])[None]

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
    """A chunk of clients at once, each with weights of its own, through `torch.func`.

    Clipped gradients of isolated clients are added up in double precision.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self._contained = contained if job.isolated else nullcontext
        self._sums = torch.float64 if job.isolated else torch.float32
        self._module = copy.deepcopy(job.module).train().to(device)
        self._layout, self._task, self._loss = job.layout, job.federation.task, job.rule.loss
        for parameter in self._module.parameters():
            parameter.requires_grad_(False)  # weights come as arguments, never from the module
        self._of_clients = vmap(grad_and_value(self._mean_loss), randomness="different")
        of_examples = vmap(
            grad_and_value(self._example_loss), in_dims=(None, 0, 0), randomness="different"
        )
        self._of_examples = vmap(of_examples, randomness="different")

    def _losses(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = functional_call(self._module, self._layout.views(weights), (inputs,))
        return example_losses(self._task, outputs, targets, self._loss)

    def _mean_loss(self, weights: Tensor, inputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        return (self._losses(weights, inputs, targets) * share).sum()

    def _example_loss(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._losses(weights, inputs[None], targets[None])[0]

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        inputs, targets, mask = batch
        real = weights.new_ones(targets.shape[:2]) if mask is None else mask.to(weights.dtype)
        share = real / real.sum(dim=1, keepdim=True)
        if clip is None:
            return self._of_batches(weights, inputs, targets, share)
        gradients = torch.zeros_like(weights, dtype=self._sums)
        losses = weights.new_zeros(len(weights))
        piece = max(1, _VALUES // weights.numel())
        for begin in range(0, share.shape[1], piece):
            part = slice(begin, begin + piece)
            each, example = self._of_each(weights, inputs[:, part], targets[:, part])
            shorten(each.view(-1, each.shape[-1]), Clip(clip.norm, clip.order))
            wide = each.to(self._sums)
            gradients += torch.einsum("cb,cbd->cd", real[:, part].to(self._sums), wide)
            losses += (example * share[:, part]).sum(dim=1)
        return gradients.div_(denominator).to(weights.dtype), losses

    def _of_batches(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, share: Tensor
    ) -> tuple[Tensor, Tensor]:
        with self._contained():
            gradients, losses = self._of_clients(weights, inputs, targets, share)
            return gradients, losses
        return torch.zeros_like(weights), weights.new_zeros(len(weights))

    def _of_each(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients `[clients, batch, parameters]` and losses `[clients, batch]` of examples.

        If an isolated client's batch raises, each of its examples is tried by itself, in a batch of
        nothing but its copies. Those that raise give their places to copies of one that does not,
        so that the others are computed in the same shape, bit for bit, and count as zero.
        """

        def found(examples: Tensor) -> tuple[Tensor, Tensor]:
            x, y = (column.index_select(1, examples) for column in (inputs, targets))
            each, losses = self._of_examples(weights, x, y)
            return each, losses

        def works(example: int) -> bool:
            with contained() as attempt:
                found(torch.full_like(order, example))
            return not attempt.failed

        order = torch.arange(inputs.shape[1], device=inputs.device)
        with self._contained():
            return found(order)
        good = torch.tensor([works(example) for example in order.tolist()], device=inputs.device)
        with contained():
            if bool(good.any()):
                each, losses = found(torch.where(good, order, good.long().argmax()))
                each[:, ~good], losses[:, ~good] = 0, 0
                return each, losses
        nothing = weights.new_zeros(*inputs.shape[:2], weights.shape[1])
        return nothing, nothing[..., 0]


class ExampleLoop:
    """Clipped gradients of one client, one example after the other: for what `vmap` cannot do."""

    def __init__(self, gradients: AutogradGradients) -> None:
        self._gradients = gradients

    def __call__(
        self, weights: Tensor, batch: Batch, clip: GradientClip, denominator: float
    ) -> tuple[Tensor, Tensor]:
        inputs, targets, mask = batch
        real = range(inputs.shape[1]) if mask is None else torch.nonzero(mask[0])[:, 0].tolist()
        total, losses = torch.zeros_like(weights, dtype=torch.float64), weights.new_zeros(1)
        for example in real:
            one = slice(example, example + 1)
            alone = inputs[:, one], targets[:, one], None
            gradient, loss = self._gradients(weights, alone, None, 0.0)
            shorten(gradient, Clip(clip.norm, clip.order))
            total += gradient
            losses += loss
        return total.div_(denominator).to(weights.dtype), losses / max(1, len(real))


def why_not_vmap(job: Job) -> str | None:
    """Why `torch.func` cannot train several clients of this job at once; None if it can."""
    for name, child in job.module.named_modules():
        if isinstance(child, nn.RNNBase):
            return f"torch cannot batch layer {name} ({type(child).__name__}) over clients"
    federation = job.federation
    # Zeros: nobody's record decides which engine trains the others.
    example = federation.model_inputs(np.zeros_like(federation.train.inputs[:1]))
    inputs = as_tensor(example)[None].repeat_interleave(2, 0)
    target = as_tensor(np.zeros_like(federation.train.targets[:1]))
    targets = target[None].repeat_interleave(2, 0)
    # As in a simulation, where what raises is seen.
    gradients = VmapGradients(replace(job, isolated=False), torch.device("cpu"))
    clip = job.rule.gradient_clip if job.rule.per_example else None
    try:
        with torch.random.fork_rng(devices=[]):
            gradients(flatten(job.module).repeat(2, 1), (inputs, targets, None), clip, 1.0)
    except Exception as error:  # whatever a user's module may raise under vmap
        first = str(error).strip().splitlines()
        return f"torch.func cannot batch the model: {first[0] if first else type(error).__name__}"
    return None
