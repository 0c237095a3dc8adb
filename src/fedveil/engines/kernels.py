"""The same network in the form that torch computes fastest.

Measured on CPU: convolutions and pooling in channels-last memory are up to twice as fast as in the
default order and never slower; ReLU commutes with max pooling and has a quarter of the work after
it; convolutions of many channels go through the Fourier transform. Nothing of this changes the
function or its gradient beyond rounding, nor the parameters' names.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedveil.engines import fourier


def tuned(module: nn.Module) -> nn.Module:
    """A copy of the module in its fastest form. Parameters keep names and shapes, not memory."""
    module = copy.deepcopy(module)
    if any(isinstance(child, nn.Conv2d) for child in module.modules()):
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for child in module.modules():
        if type(child) is nn.Conv2d and fourier.suits(child):
            child.weight.data = child.weight.data.contiguous()
            child.__class__ = fourier.Conv2d
        if isinstance(child, nn.Sequential) and type(child).forward is nn.Sequential.forward:
            _pool_first(child)
    return module


def _pool_first(layers: nn.Sequential) -> None:
    """Exchange every ReLU with the max pooling right after it."""
    for index in range(len(layers) - 1):
        first, second = layers[index], layers[index + 1]
        exchangeable = type(first) is nn.ReLU and type(second) is nn.MaxPool2d
        if exchangeable and not (_watched(first) or _watched(second) or second.return_indices):
            layers[index], layers[index + 1] = second, first


def _watched(module: nn.Module) -> bool:
    """Whether somebody looks at what this layer reads or gives."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
