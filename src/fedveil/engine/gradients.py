"""Gradients of any module: one client through autograd, or a chunk of clients through `vmap`."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedveil.data.federation import Task
from fedveil.local.rule import GradientClip
from fedveil.models.flat import Layout
from fedveil.models.losses import example_losses
from fedveil.privacy.clipping import Clip, clip_rows


class AutogradGradients:
    """One client at a time; its parameters and gradients are views of one flat buffer each."""

    def __init__(self, module: nn.Module, layout: Layout, task: Task) -> None:
        self._module = copy.deepcopy(module).train()
        self._task = task
        self._weights = torch.zeros(layout.size)
        self._gradient = torch.zeros(layout.size)
        self._per_example = VmapGradients(module, layout, task)
        weights, gradients = layout.views(self._weights), layout.views(self._gradient)
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                parameter.data = weights[name]
                parameter.grad = gradients[name]

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor | None,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        if clip is not None:
            return self._per_example(weights, inputs, targets, mask, clip, denominator)
        if len(weights) != 1:
            raise ValueError(f"one client at a time, not {len(weights)}")
        x, y = inputs[0], targets[0]
        if mask is not None:
            x, y = x[mask[0]], y[mask[0]]
        self._weights.copy_(weights[0])
        self._gradient.zero_()
        loss = example_losses(self._task, self._module(x), y).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._gradient[None], loss.detach()[None]


class VmapGradients:
    """A chunk of clients at once, each with weights of its own, through `torch.func`."""

    def __init__(self, module: nn.Module, layout: Layout, task: Task) -> None:
        self._module = copy.deepcopy(module).train()
        self._layout, self._task = layout, task
        frozen = (p for p in self._module.parameters() if p.requires_grad)
        for parameter in frozen:
            parameter.requires_grad_(False)  # weights come as arguments, never from the module
        self._of_clients = vmap(grad_and_value(self._mean_loss), randomness="different")
        of_examples = vmap(
            grad_and_value(self._example_loss), in_dims=(None, 0, 0), randomness="different"
        )
        self._of_examples = vmap(of_examples, randomness="different")

    def _losses(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = functional_call(self._module, self._layout.views(weights), (inputs,))
        return example_losses(self._task, outputs, targets)

    def _mean_loss(self, weights: Tensor, inputs: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        return (self._losses(weights, inputs, targets) * share).sum()

    def _example_loss(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._losses(weights, inputs[None], targets[None])[0]

    def __call__(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        mask: Tensor | None,
        clip: GradientClip | None,
        denominator: float,
    ) -> tuple[Tensor, Tensor]:
        count = inputs.shape[:2]
        real = torch.ones(count) if mask is None else mask.float()
        share = real / real.sum(dim=1, keepdim=True)
        if clip is None:
            gradients, losses = self._of_clients(weights, inputs, targets, share)
            return gradients, losses
        each, example = self._of_examples(weights, inputs, targets)  # [clients, batch, parameters]
        each = each.contiguous()
        clip_rows(each.view(-1, each.shape[-1]), Clip(clip.norm, clip.order), in_place=True)
        gradients = torch.einsum("cb,cbd->cd", real, each) / denominator
        return gradients, (example * share).sum(dim=1)
