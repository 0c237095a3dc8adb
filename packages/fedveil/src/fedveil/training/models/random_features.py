"""Random Fourier features (Rahimi and Recht 2007): a linear model of them is a kernel method.

The inner product of two examples' features is the Gaussian kernel of the examples,
exp(-|x - y|^2 / (2 bandwidth^2)), up to an error of about 1 / sqrt(width). Directions are drawn
from a public seed, and no data have a part in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedveil.core.arguments import check_fields, positive
from fedveil.core.errors import ConfigError


@dataclass(frozen=True)
class RandomFeatures:
    """Cosines and sines of an example in random directions: `[width]`, of length 1.

    Examples that are much closer than `bandwidth` look alike to the model, and those that are much
    farther apart have nothing in common.
    """

    width: int = 1000
    bandwidth: float = 10.0
    seed: int = 0
    data_independent = True  # the directions come from the seed alone

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise ConfigError(f"model.width: must be even and at least 2, got {self.width}")
        check_fields(self, "model.", bandwidth=positive)

    def __call__(self, example: Tensor) -> Tensor:
        angles = directions(self, example.numel()) @ example.flatten()
        return torch.cat([angles.cos(), angles.sin()]) / math.sqrt(self.width / 2)

    def as_layer(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Return a module from examples `[n, ...]` to features `[n, width]`."""
        return RandomLayer(self, math.prod(input_shape))


@lru_cache(maxsize=8)
def directions(features: RandomFeatures, inputs: int) -> Tensor:
    """`[width / 2, inputs]`; the same in every run."""
    draw = torch.Generator().manual_seed(features.seed)
    found = torch.randn(features.width // 2, inputs, generator=draw, dtype=torch.float64)
    return (found / features.bandwidth).float()


class RandomLayer(nn.Module):
    """Random features of many examples at once, `[n, ...]` to `[n, width]`, up to rounding."""

    directions: Tensor

    def __init__(self, features: RandomFeatures, inputs: int) -> None:
        super().__init__()
        self.register_buffer("directions", directions(features, inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        angles = inputs.flatten(1) @ self.directions.T
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(len(self.directions))
