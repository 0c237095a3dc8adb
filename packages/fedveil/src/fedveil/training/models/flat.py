"""How a module becomes one flat vector, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fedveil.core.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @cached_property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where each parameter of a module stands in its flat vector of `size` float32 numbers."""

    slots: tuple[Slot, ...]

    @cached_property
    def size(self) -> int:
        return self.slots[-1].stop if self.slots else 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters as views of `vector` `[..., size]`, keyed by name."""
        lead = vector.shape[:-1]
        return {s.name: vector[..., s.start : s.stop].view((*lead, *s.shape)) for s in self.slots}


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's trainable parameters.

    Refuses running statistics (batch normalisation): they would leave the client without noise.
    """
    for name, child in module.named_modules():
        if getattr(child, "running_mean", None) is not None:
            raise ConfigError(
                f"model: {name or type(child).__name__} keeps running statistics of the data, "
                "which would be uploaded without noise; use group normalisation instead"
            )
    slots, start = [], 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        slots.append(Slot(name, tuple(parameter.shape), start))
        start = slots[-1].stop
    if not slots:
        raise ConfigError("model: it has no trainable parameters")
    return Layout(tuple(slots))


def flatten(module: nn.Module) -> Tensor:
    """A copy of the trainable parameters as one float32 vector, in the layout's order."""
    parts = [p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]
    if not parts:
        raise ConfigError("model: it has no trainable parameters")
    return torch.cat(parts).float()


def load(module: nn.Module, vector: Tensor) -> None:
    """Copy a flat vector into a module's trainable parameters."""
    layout = layout_of(module)
    if vector.shape != (layout.size,):
        raise ConfigError(f"weights: a vector of {vector.numel()} for a model of {layout.size}")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(layout.views(vector)[name])
