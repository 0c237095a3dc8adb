"""Networks on images, channels first; `ChannelsFirst` feeds them images as they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedveil.core.errors import ConfigError

Shape = tuple[int, int, int]  # channels, height, width

# ReLU commutes with max pooling; after it there is a quarter of the work.


class ChannelsFirst(nn.Module):
    """Feeds images `[n, h, w]` or `[n, h, w, channels]` to a network that wants channels first."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        images = images.unsqueeze(-3) if images.dim() == 3 else images.movedim(-1, -3)
        outputs: Tensor = self.network(images)
        return outputs


class SmallCnn(nn.Sequential):
    """Two 3x3 convolutions (16, 32 channels) with pooling, then one hidden layer of 64."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        super().__init__(
            *_block(channels, 16, 3, padding=1),
            *_block(16, 32, 3, padding=1),
            nn.Flatten(),
            nn.Linear(32 * _area(height // 4, width // 4, shape), 64),
            nn.ReLU(),
            nn.Linear(64, outputs),
        )


class LeanCnn(nn.Sequential):
    """Few weights and little work a step, for privacy with hundreds of clients on a small machine.

    7x7 with stride 4, 3x3 with stride 2, any further ones 3x3 with stride 1, then the classes;
    `filters` of each. With (16, 16): 19,054 parameters for 28x28 grey images and 62 classes, 7,258
    for 32x32 colour images and 10 classes.
    """

    def __init__(self, shape: Shape, outputs: int, filters: Sequence[int] = (16, 16)) -> None:
        channels, height, width = shape
        if len(filters) < 2 or min(filters) < 1:
            raise ConfigError(f"model.hidden: two or more numbers of filters, got {list(filters)}")
        layers: list[nn.Module] = []
        for place, (before, after) in enumerate(pairwise((channels, *filters))):
            kernel, stride = {0: (7, 4), 1: (3, 2)}.get(place, (3, 1))
            layers += [nn.Conv2d(before, after, kernel, stride, kernel // 2), nn.ReLU()]
        area = _area(math.ceil(height / 8), math.ceil(width / 8), shape)
        super().__init__(*layers, nn.Flatten(), nn.Linear(filters[-1] * area, outputs))


class FuCnn(nn.Sequential):
    """Fu's network for FEMNIST: 7x7x32 and 3x3x64 convolutions with pooling, then the classes.

    214,590 parameters for 28x28 grey images and 62 classes.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        super().__init__(
            *_block(channels, 32, 7, padding=3),
            *_block(32, 64, 3, padding=1),
            nn.Flatten(),
            nn.Linear(64 * _area(height // 4, width // 4, shape), outputs),
        )


class ChengCnn(nn.Sequential):
    """Cheng's CNN-2-Layers: 3x3x32, pool, 3x3x64, a hidden layer of 128.

    1,018,174 parameters for 28x28 grey images and 62 classes, which is the network of that size
    in the work on the distributed discrete Gaussian (just below 2^20); 1,405,258 for 32x32 colour
    images and 10 classes.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        area = _area((height - 2) // 2 - 2, (width - 2) // 2 - 2, shape)
        super().__init__(
            *_block(channels, 32, 3),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * area, 128),
            nn.ReLU(),
            nn.Linear(128, outputs),
        )


class WideCnn(nn.Sequential):
    """The CNN of FedAvg (McMahan et al. 2017): 5x5x32 and 5x5x64 with pooling, hidden layer of 512.

    1,663,370 parameters for 28x28 grey images and 10 classes.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        super().__init__(
            *_block(channels, 32, 5, padding=2),
            *_block(32, 64, 5, padding=2),
            nn.Flatten(),
            nn.Linear(64 * _area(height // 4, width // 4, shape), 512),
            nn.ReLU(),
            nn.Linear(512, outputs),
        )


class LiangCnn(nn.Sequential):
    """Liang's network for SVHN: 5x5x64 and 5x5x128 with pooling, hidden layers of 384 and 192.

    3,431,754 parameters for 32x32 colour images and 10 classes.
    """

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        super().__init__(
            *_block(channels, 64, 5, padding=2),
            *_block(64, 128, 5, padding=2),
            nn.Flatten(),
            nn.Linear(128 * _area(height // 4, width // 4, shape), 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, outputs),
        )


def _block(channels: int, filters: int, kernel: int, padding: int = 0) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()


def _area(height: int, width: int, shape: Shape) -> int:
    """Positions left after the convolutions."""
    if height < 1 or width < 1:
        raise ConfigError(f"model: images of {shape[1]}x{shape[2]} are too small for this network")
    return height * width
