"""Models by name. Any other `torch.nn.Module` works as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fedveil.data.federation import Federation, Task
from fedveil.errors import BadInput


class Linear(nn.Sequential):
    """One affine map of the flattened input: linear or softmax regression. Starts at zero."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(features, outputs))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Mlp(nn.Sequential):
    """Fully connected ReLU network on the flattened input."""

    def __init__(self, features: int, hidden: Sequence[int], outputs: int) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        super().__init__(*layers, nn.Linear(features, outputs))


class SmallCnn(nn.Sequential):
    """Two 3x3 convolutions (16, 32 channels) with pooling, then one hidden layer of 64."""

    def __init__(self, shape: tuple[int, int, int], outputs: int) -> None:
        channels, height, width = shape
        flat = 32 * (height // 4) * (width // 4)
        super().__init__(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, 64),
            nn.ReLU(),
            nn.Linear(64, outputs),
        )


class ChannelsFirst(nn.Module):
    """Feeds images `[n, h, w]` or `[n, h, w, channels]` to a network that wants channels first."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        images = images.unsqueeze(-3) if images.dim() == 3 else images.movedim(-1, -3)
        outputs: Tensor = self.network(images)
        return outputs


def _image_shape(federation: Federation) -> tuple[int, int, int]:
    shape = federation.input_shape
    if len(shape) == 2:
        return 1, *shape
    if len(shape) == 3:
        return shape[2], shape[0], shape[1]
    raise BadInput(f"model: a convolutional network needs images, not inputs of shape {shape}")


def _outputs(federation: Federation) -> int:
    return 1 if federation.task is Task.REGRESSION else federation.classes


def _linear(federation: Federation, hidden: Sequence[int]) -> nn.Module:
    if federation.task is not Task.REGRESSION:
        raise BadInput("model: 'linear' predicts numbers; use 'logistic' for classes")
    return Linear(math.prod(federation.input_shape), 1)


def _logistic(federation: Federation, hidden: Sequence[int]) -> nn.Module:
    if federation.task is Task.REGRESSION:
        raise BadInput("model: 'logistic' predicts classes; use 'linear' for numbers")
    return Linear(math.prod(federation.input_shape), federation.classes)


def _mlp(federation: Federation, hidden: Sequence[int]) -> nn.Module:
    return Mlp(math.prod(federation.input_shape), hidden or (64,), _outputs(federation))


def _cnn(federation: Federation, hidden: Sequence[int]) -> nn.Module:
    return ChannelsFirst(SmallCnn(_image_shape(federation), _outputs(federation)))


MODELS: dict[str, Callable[[Federation, Sequence[int]], nn.Module]] = {
    "linear": _linear,
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
}


def build(
    name: str, federation: Federation, *, hidden: Sequence[int] = (), seed: int = 0
) -> nn.Module:
    """A freshly initialised model of this name that fits the federation.

    The seed is public: initial weights do not depend on any data.
    """
    if name == "auto":
        name = "linear" if federation.task is Task.REGRESSION else "logistic"
    if name not in MODELS:
        raise BadInput(f"model.name: unknown model {name!r}; there are {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](federation, hidden)
