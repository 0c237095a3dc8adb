"""Recognises modules that are stacks of affine layers, whose gradients have a closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.data.federation import Federation, Task
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.models.structure import as_written


@dataclass(frozen=True)
class Affine:
    """One layer `activation(W a + b)`: where its parameters stand in the flat vector."""

    weight: Slot  # shape (outputs, inputs)
    bias: Slot | None
    activation: str = "none"  # none, relu or tanh

    @property
    def outputs(self) -> int:
        return self.weight.shape[0]

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def weight_of(self, rows: Tensor) -> Tensor:
        """The weight as a view `[..., outputs, inputs]` of flat vectors `[..., parameters]`."""
        return rows[..., self.weight.start : self.weight.stop].view(
            *rows.shape[:-1], *self.weight.shape
        )

    def bias_of(self, rows: Tensor) -> Tensor | None:
        """The bias as a view `[..., outputs]`."""
        return None if self.bias is None else rows[..., self.bias.start : self.bias.stop]


Stack = tuple[Affine, ...]


def affine_stack(module: nn.Module, layout: Layout, federation: Federation) -> Stack | str:
    """The layers of a fully connected network, or one sentence on why it is none."""
    if federation.task is Task.SEQUENCE:
        return "it predicts sequences"
    slots = {slot.name: slot for slot in layout}
    layers: list[Affine] = []
    flat = len(federation.input_shape) == 1
    for name, child in _leaves(module, ""):
        kind = type(child)
        if not as_written(child):
            return f"layer {name or kind.__name__} has hooks, or a forward pass of its own"
        if kind is nn.Flatten and not layers and child.start_dim == 1:
            flat = flat or child.end_dim in (-1, len(federation.input_shape))
        elif kind is nn.Linear:
            if not flat:
                return "its inputs are not flattened"
            weight, bias = slots.get(f"{name}weight"), slots.get(f"{name}bias")
            if weight is None or (child.bias is not None and bias is None):
                return f"layer {name}Linear is frozen or shares parameters"
            if child.weight.dtype != torch.float32:
                return f"its parameters are {child.weight.dtype}"
            layers.append(Affine(weight, bias))
        elif kind in (nn.ReLU, nn.Tanh) and layers and layers[-1].activation == "none":
            activation = "relu" if kind is nn.ReLU else "tanh"
            layers[-1] = Affine(layers[-1].weight, layers[-1].bias, activation)
        elif kind is not nn.Identity:
            return f"layer {name or ''}{kind.__name__} has no closed-form gradient here"
    return _checked(tuple(layers), layout, federation)


def _checked(stack: Stack, layout: Layout, federation: Federation) -> Stack | str:
    if not stack:
        return "it has no affine layer"
    held = sum(
        math.prod(slot.shape) for layer in stack for slot in (layer.weight, layer.bias) if slot
    )
    if held != layout.size:
        return "it has parameters outside its affine layers"
    if stack[0].inputs != math.prod(federation.input_shape):
        return f"its first layer reads {stack[0].inputs} numbers"
    if federation.task is Task.REGRESSION and stack[-1].outputs != 1:
        return f"it gives {stack[-1].outputs} numbers for one target"
    if federation.task is Task.CLASSIFICATION and stack[-1].outputs == 1:
        return "it gives one logit for two classes"
    return stack


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Layers in the order of the forward pass, each with the prefix of its parameters' names."""
    sequence = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    if sequence and as_written(module):
        for name, child in module._modules.items():  # with those that are used twice
            if child is not None:
                yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module
