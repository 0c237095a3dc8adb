"""Models by name. Any other `torch.nn.Module` works as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedveil.core.arguments import count, instance_of, positive
from fedveil.core.errors import ConfigError
from fedveil.core.registry import Registry
from fedveil.data.federation import Federation, Task
from fedveil.training.models.frozen import adapt, freeze
from fedveil.training.models.images import (
    ChannelsFirst,
    ChengCnn,
    FuCnn,
    LeanCnn,
    LiangCnn,
    Shape,
    SmallCnn,
    WideCnn,
)
from fedveil.training.models.residual import ResNet18
from fedveil.training.models.structure import drawing_from
from fedveil.training.models.text import CharacterLstm, CharacterNgrams


@dataclass(frozen=True)
class Options:
    """Options of a model: widths of hidden layers, and the longest input it sees."""

    hidden: tuple[int, ...] = ()
    input_norm: float | None = None

    def __post_init__(self) -> None:
        for width in self.hidden:
            count("model.hidden", width)


Builder = Callable[[Federation, Options], nn.Module]


class BoundedInputs(nn.Module):
    """Shortens inputs `[n, features]` to Euclidean length `norm`; shorter ones pass as they are."""

    def __init__(self, norm: float) -> None:
        super().__init__()
        self.norm = positive("model.input_norm", norm)

    def forward(self, inputs: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
        return inputs * (self.norm / length.clamp(min=self.norm))


class Linear(nn.Sequential):
    """One affine map of the flattened input: linear or softmax regression. Starts at zero.

    With an `input_norm`, longer inputs are shortened to it first, which bounds the curvature of
    the loss.
    """

    def __init__(self, features: int, outputs: int, input_norm: float | None = None) -> None:
        bound = [] if input_norm is None else [BoundedInputs(input_norm)]
        super().__init__(nn.Flatten(), *bound, nn.Linear(features, outputs))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def input_norm(self) -> float | None:
        return next((part.norm for part in self if isinstance(part, BoundedInputs)), None)


class Mlp(nn.Sequential):
    """Fully connected ReLU network on the flattened input."""

    def __init__(self, features: int, hidden: Sequence[int], outputs: int) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        super().__init__(*layers, nn.Linear(features, outputs))


def _image_shape(federation: Federation) -> Shape:
    shape = federation.input_shape
    if len(shape) == 2:
        return 1, *shape
    if len(shape) == 3:
        return shape[2], shape[0], shape[1]
    raise ConfigError(f"model: a convolutional network needs images, not inputs of shape {shape}")


def _outputs(federation: Federation) -> int:
    return 1 if federation.task is Task.REGRESSION else federation.classes


def _linear(federation: Federation, options: Options) -> nn.Module:
    if federation.task is not Task.REGRESSION:
        raise ConfigError("model: 'linear' predicts numbers; use 'logistic' for classes")
    return Linear(math.prod(federation.input_shape), 1, options.input_norm)


def _logistic(federation: Federation, options: Options) -> nn.Module:
    if federation.task is Task.REGRESSION:
        raise ConfigError("model: 'logistic' predicts classes; use 'linear' for numbers")
    features = math.prod(federation.input_shape)
    return Linear(features, federation.classes, options.input_norm)


def _mlp(federation: Federation, options: Options) -> nn.Module:
    return Mlp(math.prod(federation.input_shape), options.hidden or (64,), _outputs(federation))


def _hu(federation: Federation, options: Options) -> nn.Module:
    """Hu's 3-layer ReLU network for Adult."""
    return _mlp(federation, replace(options, hidden=options.hidden or (64, 32)))


def _images(network: Callable[[Shape, int], nn.Module]) -> Builder:
    def make(federation: Federation, options: Options) -> nn.Module:
        return ChannelsFirst(network(_image_shape(federation), _outputs(federation)))

    return make


def _lean(federation: Federation, options: Options) -> nn.Module:
    """`hidden` are numbers of filters here."""
    shape, outputs = _image_shape(federation), _outputs(federation)
    return ChannelsFirst(LeanCnn(shape, outputs, options.hidden or (16, 16)))


def _texts(name: str, network: Callable[..., nn.Module], usual: tuple[int, ...]) -> Builder:
    def make(federation: Federation, options: Options) -> nn.Module:
        if federation.task is Task.REGRESSION or len(federation.input_shape) != 1:
            raise ConfigError(
                f"model: {name!r} reads texts of token ids, not {federation.task} of inputs of "
                f"shape {federation.input_shape}"
            )
        every = federation.task is Task.SEQUENCE
        return network(federation.classes, every_position=every, hidden=options.hidden or usual)

    return make


_OWN: dict[str, Builder] = {
    "linear": _linear,
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _images(SmallCnn),
    "cnn-lean": _lean,
    "cnn-wide": _images(WideCnn),
    "fu-cnn": _images(FuCnn),
    "hu-mlp": _hu,
    "liang-cnn": _images(LiangCnn),
    "cheng-cnn": _images(ChengCnn),
    "resnet18": _images(ResNet18),
    "lstm": _texts("lstm", CharacterLstm, (256, 256)),
    "ngrams": _texts("ngrams", CharacterNgrams, (80, 6480, 8192, 8192)),
}
# Builders of other packages are found through the entry-point group.
MODELS: Registry[Builder] = Registry("model", "fedveil.models", None, Callable)
for _name, _builder in _OWN.items():
    MODELS.add(_name, _builder, __name__)


def own_name(name: str, task: Task) -> str:
    """Return the name of a model: "auto" stands for the linear one of a task."""
    if name != "auto":
        return name
    return "linear" if task is Task.REGRESSION else "logistic"


def build(
    name: str,
    federation: Federation,
    *,
    hidden: Sequence[int] = (),
    input_norm: float | None = None,
    seed: int = 0,
    frozen: Sequence[str] = (),
    adapter_rank: int | None = None,
) -> nn.Module:
    """Return a freshly initialised model that fits the federation.

    Args:
        name: Of the model.
        federation: The data.
        hidden: Widths of hidden layers.
        input_norm: The longest input that the model sees; longer ones are shortened.
        seed: Of the initial weights, which do not depend on any data; it is public.
        frozen: Names of layers that are not trained (`freeze`).
        adapter_rank: Rank of adapters beside them (`adapt`).

    >>> import fedveil as fv
    >>> digits = fv.load("digits", clients=10)
    >>> [tuple(p.shape) for p in build("mlp", digits, hidden=[32]).parameters()]
    [(32, 64), (32,), (10, 32), (10,)]
    """
    instance_of(Federation)("federation", federation)
    if not isinstance(hidden, Sequence):
        raise ConfigError(f"hidden: need a list of widths, got {hidden!r}")
    name = own_name(name, federation.task)
    builder = MODELS.find(name, "model.name")
    if input_norm is not None and name not in ("linear", "logistic"):
        raise ConfigError(f"model.input_norm: for linear models only, and {name!r} is none")
    with drawing_from(seed):
        model = freeze(builder(federation, Options(tuple(hidden), input_norm)), frozen)
        return model if adapter_rank is None else adapt(model, adapter_rank)
