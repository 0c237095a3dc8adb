"""Networks on images, channels first; `ChannelsFirst` feeds them images as they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

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
        # In the default order: torch 2.13 crashes in group normalisation of images that are kept
        # otherwise and need no gradient.
        outputs: Tensor = self.network(images.contiguous())
        return outputs


class _Pooled(nn.Sequential):
    """Two convolutions that keep the size, each with pooling; hidden layers; the outputs."""

    blocks: ClassVar[tuple[tuple[int, int], tuple[int, int]]]  # filters and kernel of each
    hidden: ClassVar[tuple[int, ...]] = ()

    def __init__(self, shape: Shape, outputs: int) -> None:
        channels, height, width = shape
        (first, large), (second, small) = self.blocks
        layers = [*_block(channels, first, large, large // 2)]
        layers += [*_block(first, second, small, small // 2), nn.Flatten()]
        widths = (second * _area(height // 4, width // 4, shape), *self.hidden)
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], outputs))


class SmallCnn(_Pooled):
    """Two 3x3 convolutions (16, 32 channels) with pooling, then one hidden layer of 64."""

    blocks, hidden = ((16, 3), (32, 3)), (64,)


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


class FuCnn(_Pooled):
    """Fu's network for FEMNIST: 7x7x32 and 3x3x64 convolutions with pooling, then the classes.

    214,590 parameters for 28x28 grey images and 62 classes.
    """

    blocks = ((32, 7), (64, 3))


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


class WideCnn(_Pooled):
    """The CNN of FedAvg (McMahan et al. 2017): 5x5x32 and 5x5x64 with pooling, hidden layer of 512.

    1,663,370 parameters for 28x28 grey images and 10 classes.
    """

    blocks, hidden = ((32, 5), (64, 5)), (512,)


class LiangCnn(_Pooled):
    """Liang's network for SVHN: 5x5x64 and 5x5x128 with pooling, hidden layers of 384 and 192.

    3,431,754 parameters for 32x32 colour images and 10 classes.
    """

    blocks, hidden = ((64, 5), (128, 5)), (384, 192)


def _block(channels: int, filters: int, kernel: int, padding: int = 0) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()


def _area(height: int, width: int, shape: Shape) -> int:
    """Positions left after the convolutions."""
    if height < 1 or width < 1:
        raise ConfigError(f"model: images of {shape[1]}x{shape[2]} are too small for this network")
    return height * width
