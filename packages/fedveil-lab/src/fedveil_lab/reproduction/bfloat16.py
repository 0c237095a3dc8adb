"""An engine for long experiments: layers multiply in bfloat16, and add up in float32.

Processors with AVX512-BF16 or AMX do it about twice as fast; on others it is slower. Weights,
updates, clips and noise stay in float32, so noise is what it was: only gradients are rounded.
Simulations alone have it: `engine.name = "bfloat16"`, after this module was imported.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.contract import Engine, Job
from fedveil.training.engines.gradients import AutogradGradients
from fedveil.training.engines.records import Batch
from fedveil.training.engines.registry import engine
from fedveil.training.models.images import ChannelsFirst

NAME = "bfloat16"


def _why_not(job: Job, device: torch.device) -> str | None:
    if job.isolated:
        return "protected runs compute in float32"
    return None if device.type == "cpu" else "it was made for CPUs"


@engine(NAME, _why_not)
def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
    return RowEngine(NAME, job, RoundedGradients(job, device), 1, device, draws=True)


class RoundedGradients(AutogradGradients):
    """Gradients of one client at a time, whose products are of numbers of eight bits."""

    def __init__(self, job: Job, device: torch.device) -> None:
        super().__init__(job, device, channels_last(job.module))

    def _backward(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super()._backward(batch)


class LinearOfImages(nn.Module):
    """Flatten, then a linear layer: of images whose channels lie together, without moving them.

    Its weights `[outputs, channels, pixels]` lie in memory as the images do.
    """

    def __init__(self, layer: nn.Linear, channels: int) -> None:
        super().__init__()
        weight = layer.weight.detach().view(layer.out_features, channels, -1)
        self.weight = nn.Parameter(weight.transpose(1, 2).contiguous().transpose(1, 2))
        self.bias = layer.bias

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(2).transpose(1, 2).flatten(1)
        return functional.linear(rows, self.weight.transpose(1, 2).flatten(1), self.bias)


def channels_last(module: nn.Module) -> nn.Module:
    """A copy whose images keep the channels of a pixel together, with the same parameters."""
    module = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if isinstance(module, ChannelsFirst) and isinstance(module.network, nn.Sequential):
        layers, channels = module.network, 0
        for index, layer in enumerate(layers):
            if isinstance(layer, nn.Conv2d):
                channels = layer.out_channels
            elif type(layer) is nn.Linear and channels and type(layers[index - 1]) is nn.Flatten:
                layers[index - 1] = nn.Identity()
                layers[index] = LinearOfImages(layer, channels)
                break
    return module
