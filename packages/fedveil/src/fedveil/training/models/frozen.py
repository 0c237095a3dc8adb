"""Models of which only a part is trained: frozen layers, adapters beside them, a start from a file.

What is frozen has no place in the flat vector of weights: it is not trained, not sent, and no
noise is drawn for it. Frozen weights are public; they must come from public data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.func import functional_call

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil.core.files import digest_of

BACKBONE = "backbone"  # stands for all layers but the last


class LowRank(nn.Module):
    """A frozen layer and, beside it, a detour of `rank` channels (LoRA; Hu et al. 2022).

    The way down is random and stays so; the way up is trained, and adds nothing at first. Noise in
    both would be multiplied (FFA-LoRA; Sun et al. 2024).
    """

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down: nn.Module
        self.up: nn.Linear | nn.Conv2d
        if isinstance(layer, nn.Conv2d):
            self.down = nn.Conv2d(
                layer.in_channels,
                rank,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                layer.dilation,  # type: ignore[arg-type]
                bias=False,
                padding_mode=layer.padding_mode,
            )
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            shape = layer.get_parameter("weight").shape
            inputs, outputs = shape if _is_transposed(layer) else reversed(shape)
            self.down = nn.Linear(inputs, rank, bias=False)
            self.up = nn.Linear(rank, outputs, bias=False)
        self.down.requires_grad_(False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


class LowRankAttention(nn.Module):
    """A frozen `nn.MultiheadAttention`, each of whose matrices has a product of `rank` added to it.

    As in `LowRank`, one factor is random and stays so, and the other is trained from zero.
    """

    batch_first = False  # so that no encoder layer goes past `forward` to the frozen matrices

    def __init__(self, layer: nn.MultiheadAttention, rank: int) -> None:
        super().__init__()
        self.layer = layer
        matrices = {name: one for name, one in layer.named_parameters() if one.ndim == 2}
        self.names = tuple(matrices)
        shapes = [tuple(one.shape) for one in matrices.values()]
        self.down = nn.ParameterList(
            torch.randn(rank, width) / math.sqrt(width) for _, width in shapes
        ).requires_grad_(False)
        self.up = nn.ParameterList(torch.zeros(height, rank) for height, _ in shapes)

    def forward(self, *given: Any, **settings: Any) -> Any:
        factors = zip(self.names, self.up, self.down, strict=True)
        own = {name: self.layer.get_parameter(name) + up @ down for name, up, down in factors}
        return functional_call(self.layer, own, given, settings)


def freeze(module: nn.Module, names: Sequence[str]) -> nn.Module:
    """Freeze parameters by their names, in place, one name after the other.

    `*` stands for anything, a layer's name for all that is in it, and "backbone" for all layers but
    the last. What a name behind `!` stands for is trained again: `["*", "!blocks.11", "!head"]`
    trains a head and a last block.
    """
    for name in names:
        pattern = name.removeprefix("!")
        found = list(_named(module, pattern))
        if not found:
            known = ", ".join(name for name, _ in module.named_parameters())
            raise ConfigError(f"model.frozen: nothing is called {pattern!r}; there are {known}")
        for parameter in found:
            parameter.requires_grad_(name != pattern)
    return module


def _named(module: nn.Module, pattern: str) -> Iterator[nn.Parameter]:
    if pattern == BACKBONE:
        *before, _ = (one for one in module.modules() if list(one.parameters(recurse=False)))
        for layer in before:
            yield from layer.parameters(recurse=False)
        return
    for name, parameter in module.named_parameters():
        if fnmatchcase(name, pattern) or name.startswith(f"{pattern}."):
            yield parameter


def adapt(module: nn.Module, rank: int) -> nn.Module:
    """Put an adapter beside every frozen linear, convolutional or attention layer, in place."""
    count("model.adapter_rank", rank)
    if _adaptable(module):
        return _adapter(module, rank)
    places = [
        (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
        if _adaptable(child)
    ]
    if not places:
        raise ConfigError(
            "model.adapter_rank: adapters go beside frozen linear, convolutional and attention "
            "layers, and there is none; see model.frozen"
        )
    for parent, name in places:
        setattr(parent, name, _adapter(getattr(parent, name), rank))
    return module


def _adapter(layer: Any, rank: int) -> nn.Module:
    attention = isinstance(layer, nn.MultiheadAttention)
    return LowRankAttention(layer, rank) if attention else LowRank(layer, rank)


def _adaptable(layer: nn.Module) -> bool:
    # An attention's own output layer is of another type, and comes with the attention.
    known = type(layer) in (nn.Linear, nn.MultiheadAttention) or _is_transposed(layer)
    known |= type(layer) is nn.Conv2d and layer.groups == 1
    return known and not any(parameter.requires_grad for parameter in layer.parameters())


def _is_transposed(layer: nn.Module) -> bool:
    """Whether this is the linear layer of GPT-2, whose weights are `[inputs, outputs]`."""
    kind = type(layer)  # compared by name, as transformers may not be installed
    return (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


_TRAINED_ON = "fedveil_trained_on"  # attributes: copies and parts of a module keep them
_OF_PUBLIC = "fedveil_trained_on_public"


def mark_trained(module: nn.Module, data: str, *, public: bool) -> nn.Module:
    """Note on a module and its layers which data they were trained on.

    Args:
        module: The trained module, changed in place.
        data: The name of the data.
        public: Whether the data were declared to be public.
    """
    for layer in module.modules():
        setattr(layer, _TRAINED_ON, data)
        setattr(layer, _OF_PUBLIC, public)
    return module


def trained_on(module: nn.Module) -> dict[str, bool]:
    """The data that a module, or a layer of it, was trained on by a run before; by their names,
    whether all models of that name were of public data."""
    found: dict[str, bool] = {}
    for layer in module.modules():
        data, public = (getattr(layer, name, None) for name in (_TRAINED_ON, _OF_PUBLIC))
        if isinstance(data, str):
            found[data] = found.get(data, True) and public is True
    return found


@dataclass(frozen=True)
class Start:
    """Where weights come from, in a sentence for a guarantee, and the data that the file names."""

    sentence: str
    data: str | None  # None: it was not written by fedveil
    public: bool  # whether these data were declared to be public


def start_from(module: nn.Module, path: Path | str) -> Start:
    """Load weights by name from a safetensors file, such as a run's model.

    A frozen weight must be in the file. A trained one that is not, or has another shape there (as
    the last layer for other classes has), starts as the model makes it.
    """
    given, data, public = read_weights(Path(path))
    random, new = set(), []
    for name, one in module.named_modules():
        if isinstance(one, (LowRank, LowRankAttention)):
            random |= {f"{name}.down.{own}".lstrip(".") for own, _ in one.down.named_parameters()}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            plain = ".".join(part for part in name.split(".") if part != "layer")  # no adapters
            tensor = given.get(name, given.get(plain))
            if tensor is not None and tensor.shape == parameter.shape:
                parameter.copy_(tensor)
            elif parameter.requires_grad:
                new.append(name)
            elif name not in random:
                raise ConfigError(
                    f"model.start: {Path(path).name} has no weights of shape "
                    f"{list(parameter.shape)} for {name}, which is frozen"
                )
    if len(new) + len(random) == sum(1 for _ in module.parameters()):
        raise ConfigError(f"model.start: {Path(path).name} has nothing that fits the model")
    digest = digest_of(path)[:16]
    made = "of public data" if data is None else f"of {data}"
    fresh = f"; new are {', '.join(new)}" if new else ""
    return Start(
        f"Weights start from {Path(path).name} (SHA-256 {digest}...), made {made}{fresh}.",
        data,
        public,
    )


def read_weights(path: Path) -> tuple[dict[str, Tensor], str | None, bool]:
    """Return the tensors of a safetensors file, the name of the data that a run's model was trained
    on, and whether these were declared to be public."""
    try:
        with safe_open(path, framework="pt") as file:
            said = json.loads((file.metadata() or {}).get("fedveil", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = json.loads(said.get("description", "{}"))
        return tensors, described.get("data"), described.get("public") is True
    except FileNotFoundError:
        raise ConfigError(f"model.start: {path}: no such file") from None
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"model.start: {path.name}: not a safetensors file ({error})") from None
