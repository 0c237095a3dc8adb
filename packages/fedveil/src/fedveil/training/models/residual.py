"""ResNet-18 for small images, with group normalisation.

Batch normalisation couples the examples of a batch and keeps statistics of the data that would
leave the client without noise; groups of channels within one example do neither.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedveil.training.models.images import Shape

_GROUPS = 2


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(_GROUPS, filters)
        self.second = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(_GROUPS, filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.GroupNorm(_GROUPS, filters)
            )

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


class ResNet18(nn.Sequential):
    """He et al. 2016 with a 3x3 stem: 11,173,962 parameters for colour images and 10 classes."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(shape[0], 64, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, 64),
            nn.ReLU(),
        ]
        channels = 64
        for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [ResidualBlock(channels, filters, stride), ResidualBlock(filters, filters, 1)]
            channels = filters
        super().__init__(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, outputs)
        )
