"""Features from a frozen public network: pre-trained weights that no protected data have entered.

A backbone is a feature map like any other (`models.features`): it sees one example at a time, in
evaluation mode, so batch normalisation uses its stored statistics and couples nobody. What it makes
of the examples is computed once and kept; a model on top of it trains at the speed of a small one.
That the weights come from public data is declared by naming them, and the guarantee says so with
their digest. Nothing is downloaded: weights come from an installed package, a file, or a cache that
the user has filled before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedveil.core.arguments import settle
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.public_networks import called, offline, pretrained, weights_digest
from fedveil.training.models.frozen import read_weights

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation of its colours
_PIXELS = 224
_FLOOR = 1e-6  # length below which a feature vector is not blown up


@dataclass(frozen=True)
class Preprocessing:
    """How a network wants its pictures.

    Attributes:
        pixels: Height and width that a picture is resized to.
        mean: What is subtracted from each colour, for values in [0, 1].
        std: What each colour is divided by.
    """

    pixels: int = _PIXELS
    mean: tuple[float, ...] = _IMAGENET[0]
    std: tuple[float, ...] = _IMAGENET[1]


@dataclass(frozen=True)
class BackboneFeatures:
    """The features that a frozen public network finds in one picture, centred, of length 1.

    Attributes:
        backbone: `timm:NAME`, `torchvision:NAME`, `transformers:PATH`, or
            `package.module:function` or `FILE.py:function`, a function without arguments that
            returns a module.
        backbone_weights: A safetensors or PyTorch file of weights to load into it.
        backbone_head: The network's own classifier, a layer to leave out; None: it has none.
        pixels: Height and width of what the network sees; None: its own.
        digest: SHA-256 of its layers and weights. Computed where it is empty, else compared: a
            model that was trained on one network's features is not used on another's.
    """

    backbone: str
    backbone_weights: str | None = None
    backbone_head: str | None = None
    pixels: int | None = None
    digest: str = ""
    data_independent = True  # by declaration: the user says that the weights are public

    def __post_init__(self) -> None:
        if self.pixels is not None and self.pixels < 1:
            raise ConfigError(f"model.pixels: must be at least 1, got {self.pixels}")
        found = self._loaded()[2]
        if self.digest and self.digest != found:
            raise PrivacyRefusal(
                f"model.backbone: {self.backbone} has SHA-256 {found[:16]}..., and the "
                f"model was trained on features of {self.digest[:16]}...",
                "install the weights that the model was trained with",
            )
        settle(self, digest=found)

    @property
    def statement(self) -> str:
        """The assumption that the guarantee makes about this network, in one sentence."""
        return (
            f"Inputs are made of each example alone by the network {self.backbone} (SHA-256 of its "
            f"weights {self.digest[:16]}...), whose training data are declared to be public."
        )

    @property
    def cache_key(self) -> str:
        """Everything that a picture's features depend on, with code that is read from a file."""
        _, steps, digest = self._loaded()
        place = self.backbone.rpartition(":")[0]
        code = Path(place).read_text(encoding="utf-8") if place.endswith(".py") else self.backbone
        return repr((digest, code, steps, self.pixels))

    def __call__(self, example: Tensor) -> Tensor:
        """Return the features `[width]` of one picture `[h, w]` or `[h, w, colours]`."""
        if example.ndim not in (2, 3):
            raise ConfigError(
                f"model.backbone: it reads images, not inputs of shape {[*example.shape]}"
            )
        found: Tensor = self.as_layer(tuple(example.shape))(example[None])[0]
        return found

    def as_layer(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Return a module from pictures `[n, h, w, ...]` to features `[n, width]`."""
        return _layer(self)

    def _loaded(self) -> tuple[nn.Module, Preprocessing, str]:
        return _load(self.backbone, self.backbone_weights, self.backbone_head)


class _FrozenBackbone(nn.Module):
    """Resize, normalise, run the network, average over places, centre, and scale to length 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, steps: Preprocessing) -> None:
        super().__init__()
        self.network, self.pixels = network, steps.pixels
        self.register_buffer("mean", torch.tensor(steps.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(steps.std).view(1, -1, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        pictures = inputs[:, None] if inputs.ndim == 3 else inputs.permute(0, 3, 1, 2)
        colours = self.mean.shape[1]
        if pictures.shape[1] == 1:  # grey
            pictures = pictures.expand(-1, colours, -1, -1)
        size = (self.pixels, self.pixels)
        if pictures.shape[2:] != size:
            shrinks = self.pixels < max(pictures.shape[2:])
            pictures = interpolate(pictures, size, mode="bilinear", antialias=shrinks)
        features = _flat(self.network((pictures - self.mean) / self.std))
        centred = features - features.mean(dim=1, keepdim=True)
        length: Tensor = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        return centred / length.clamp(min=_FLOOR)


def _flat(outputs: Any) -> Tensor:
    """Return `[n, width]` from what networks return: maps, sequences, or objects with fields."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(outputs, name, None) is not None:
            outputs = getattr(outputs, name)
            break
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"model.backbone: it returns {type(outputs).__name__}. It must return a tensor; "
            "write a function that returns such a module, and name it."
        )
    if outputs.ndim == 4:
        return outputs.mean(dim=(2, 3))
    return outputs.mean(dim=1) if outputs.ndim == 3 else outputs


@lru_cache(maxsize=2)
def _layer(features: BackboneFeatures) -> nn.Module:
    """Return the layer of a feature map; it is asked for once an example, and made once."""
    network, steps, _ = features._loaded()
    pixels = steps.pixels if features.pixels is None else features.pixels
    return _FrozenBackbone(network, replace(steps, pixels=pixels))


@lru_cache(maxsize=2)
def _load(name: str, weights: str | None, head: str | None) -> tuple[nn.Module, Preprocessing, str]:
    """Return the frozen network of a name, its preprocessing, and the digest of its weights."""
    kind, colon, rest = name.partition(":")
    if not colon or not rest:
        raise ConfigError(
            f"model.backbone: {name!r} names no network. Write timm:NAME, torchvision:NAME, "
            "transformers:PATH, package.module:function or FILE.py:function."
        )
    with offline("model.backbone", name):
        if kind == "timm":
            network, steps = _from_timm(rest, pretrained=weights is None)
        else:
            network, steps = _LOADERS.get(kind, _from_function)(rest if kind in _LOADERS else name)
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"model.backbone: {name} gives a {type(network).__name__}. It must be a torch module."
        )
    if weights is not None:
        _fill(network, Path(weights))
    if head is not None:
        if not head or head not in dict(network.named_modules()):  # "" is the network itself
            layers = ", ".join(one for one, _ in network.named_children())
            raise ConfigError(
                f"model.backbone_head: {name} has no layer {head!r}. Its outer layers are {layers}."
            )
        network.set_submodule(head, nn.Identity())
    network.requires_grad_(False).eval()
    return network, steps, weights_digest(network)


def _from_timm(name: str, *, pretrained: bool) -> tuple[nn.Module, Preprocessing]:
    timm = import_module("timm")
    network = timm.create_model(name, pretrained=pretrained, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    steps = Preprocessing(config["input_size"][-1], tuple(config["mean"]), tuple(config["std"]))
    return network, steps


def _from_torchvision(name: str) -> tuple[nn.Module, Preprocessing]:
    models = import_module("torchvision").models
    weights = models.get_model_weights(name).DEFAULT
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    if not cached.exists():
        raise ConfigError(f"model.backbone: there is no {cached.name} in {cached.parent}.")
    network, wanted = models.get_model(name, weights=weights), weights.transforms()
    for place in ("fc", "classifier", "heads", "head"):
        if hasattr(network, place):
            setattr(network, place, nn.Identity())
    return network, Preprocessing(wanted.crop_size[0], tuple(wanted.mean), tuple(wanted.std))


def _from_transformers(path: str) -> tuple[nn.Module, Preprocessing]:
    network = pretrained("model.backbone", path)
    wanted = import_module("transformers").AutoImageProcessor.from_pretrained(
        path, local_files_only=True
    )
    size = wanted.size.get("height") or wanted.size.get("shortest_edge") or _PIXELS
    return network, Preprocessing(int(size), tuple(wanted.image_mean), tuple(wanted.image_std))


def _from_function(name: str) -> tuple[nn.Module, Preprocessing]:
    """Call the function of a module or file; its network may say `pixels`, `mean` and `std`."""
    network = called(name)
    usual = Preprocessing()
    return network, Preprocessing(
        *(getattr(network, key, getattr(usual, key)) for key in ("pixels", "mean", "std"))
    )


_LOADERS: dict[str, Callable[[str], tuple[nn.Module, Preprocessing]]] = {
    "torchvision": _from_torchvision,
    "transformers": _from_transformers,
}


def _fill(network: nn.Module, path: Path) -> None:
    """Load a file of weights; every weight of the network must be in it."""
    try:
        if path.suffix == ".safetensors":
            state, data, public = read_weights(path)
            if data is not None and not public:
                raise ConfigError(
                    f"it is a model of {data}, which nobody has declared to be public"
                )
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        missing = network.load_state_dict(state, strict=False).missing_keys
    except Exception as error:  # a file of another kind, or of other shapes
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model.backbone_weights: {path}: cannot be loaded ({said}).") from None
    if missing:
        raise ConfigError(
            f"model.backbone_weights: {path} has no {missing[0]} ({len(missing)} weights are "
            "missing). Name the file that belongs to model.backbone."
        )
