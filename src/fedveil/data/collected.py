"""Federations from what other libraries hold: a data set for each client, pictures in folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.core.errors import ConfigError
from fedveil.data.examples import Scaling
from fedveil.data.federation import Federation

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_HALF = np.array(127.5, np.float32)
_PIXELS = Scaling(_HALF, np.float32(1) / _HALF)  # to numbers from -1 to 1

Array = npt.NDArray[Any]


def from_datasets(
    datasets: Mapping[str, Any] | Sequence[Any],
    *,
    keys: tuple[str, str] | None = None,
    **settings: Any,
) -> Federation:
    """A federation from one data set for each client, by name or in their order.

    A data set is anything with a length and items, as of torch or Hugging Face. An item is a pair
    (input, target), or a mapping of which `keys` names these two. Inputs are arrays, tensors or
    pictures of one shape. `settings` are those of `Federation.from_arrays`.

    >>> ward = [([0.1, 0.2], 0), ([0.9, 0.8], 1), ([0.7, 0.9], 1), ([0.2, 0.1], 0)]
    >>> fv.from_datasets({"north": ward, "south": ward}, classes=2, test_fraction=0.25).clients
    2
    """
    given = datasets if isinstance(datasets, Mapping) else dict(enumerate(datasets))
    if not given:
        raise ConfigError("datasets: there are none; give one for each client")
    parts = {name: _columns(name, one, keys) for name, one in given.items()}
    shapes = {name: inputs.shape[1:] for name, (inputs, _) in parts.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ConfigError(
                f"data set {name!r}: inputs of shape {list(shape)}, and those of {first!r} have "
                f"{list(shapes[first])}"
            )
    kinds = {name: _kind(targets) for name, (_, targets) in parts.items()}
    for name, kind in kinds.items():
        if kind != kinds[first]:
            raise ConfigError(
                f"data set {name!r}: its targets are {kind}, and those of {first!r} "
                f"{kinds[first]}; convert them to one type"
            )
    inputs, targets = (np.concatenate(columns) for columns in zip(*parts.values(), strict=True))
    owners = np.repeat(np.array(list(parts)), [len(y) for _, y in parts.values()])
    return Federation.from_arrays(inputs, targets, owners, **settings)


def _columns(name: object, dataset: Any, keys: tuple[str, str] | None) -> tuple[Array, Array]:
    """Inputs and targets of one client."""
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:  # torch's TensorDataset
        inputs, targets = (_array(tensor) for tensor in tensors)
    else:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ConfigError(
                f"data set {name!r}: a {type(dataset).__name__} has no items by number"
            )
        items = [_pair(name, dataset[place], keys) for place in range(len(dataset))]
        if not items:
            raise ConfigError(f"data set {name!r}: is empty; leave its client out")
        arrays = [[_array(one) for one in part] for part in zip(*items, strict=True)]
        if len(kinds := dict.fromkeys(map(_kind, arrays[1]))) > 1:
            raise ConfigError(
                f"data set {name!r}: its targets mix {' and '.join(kinds)}; convert them to one "
                "type"
            )
        try:
            inputs, targets = map(np.stack, arrays)
        except ValueError:
            raise ConfigError(f"data set {name!r}: its items differ in shape") from None
    if not len(inputs):
        raise ConfigError(f"data set {name!r}: is empty; leave its client out")
    return inputs, targets


def _pair(name: object, item: Any, keys: tuple[str, str] | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        known = ", ".join(map(repr, item))
        if keys is None:
            raise ConfigError(
                f"data set {name!r}: say keys=(input, target); its items have {known}"
            )
        if lacking := [key for key in keys if key not in item]:
            raise ConfigError(f"data set {name!r}: no {lacking[0]!r} among {known}")
        return item[keys[0]], item[keys[1]]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise ConfigError(f"data set {name!r}: its items must be pairs (input, target)")


def _kind(targets: Array) -> str:
    """Of targets: NumPy would let one of another kind decide for all clients, as 1.0 among numbers
    of classes, which makes them quantities."""
    kinds = {"b": "truths", "i": "whole numbers", "u": "whole numbers", "f": "fractions"}
    return kinds.get(targets.dtype.kind, "texts")


def _array(value: Any) -> Array:
    """A tensor, picture, number or text as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.to_dense() if value.layout is not torch.strided else value
        value = value.float() if value.dtype is torch.bfloat16 else value  # NumPy knows no such
    return np.asarray(value)


def from_images(
    folder: Path | str,
    *,
    size: Sequence[int] = (),
    classes: Sequence[str] = (),
    **settings: Any,
) -> Federation:
    """A federation from pictures in folders CLIENT/CLASS/.

    `size` is height, width and, if not 3, the number of colours (1: grey) to which every picture is
    brought, each by itself; left out, all must have the size of the first. `classes` declares the
    names of the classes, which are otherwise taken from the folders.
    """
    folder = Path(folder)
    files = pictures_of(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no pictures in folders CLIENT/CLASS/")
    height, width, colours = _size(folder, size, files[0])
    inputs = np.empty((len(files), colours, height, width), np.uint8)
    for place, file in enumerate(files):
        inputs[place] = _pixels(file, height, width, colours, resize=bool(size))
    labels = np.array([file.parent.name for file in files])
    if classes and not set(labels) <= set(classes):
        strange = min(set(labels.tolist()) - set(classes))
        raise ConfigError(f"{folder}: class {strange!r} is none of the classes that were declared")
    return Federation.from_arrays(
        inputs,
        labels,
        np.array([file.parent.parent.name for file in files]),
        class_names=tuple(classes),
        classes=len(classes) or None,
        scaling=_PIXELS,
        name=folder.absolute().name,
        **settings,
    )


def pictures_of(folder: Path) -> list[Path]:
    """The pictures in folders CLIENT/CLASS/, sorted."""
    return sorted(file for file in folder.glob("*/*/*") if file.suffix.lower() in _PICTURES)


def _opened(file: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError('pictures need Pillow: pip install "fedveil[data]"') from None
    try:
        return Image.open(file)
    except OSError:
        raise ConfigError(f"{file}: cannot be read as a picture") from None


def _size(folder: Path, size: Sequence[int], first: Path) -> tuple[int, int, int]:
    if not size:
        width, height = _opened(first).size
        return height, width, 3
    if len(size) not in (2, 3) or min(size) < 1 or (len(size) == 3 and size[2] not in (1, 3)):
        raise ConfigError(f"{folder}: a size is [height, width] or [height, width, 1 or 3]")
    return size[0], size[1], 3 if len(size) == 2 else size[2]


def _pixels(file: Path, height: int, width: int, colours: int, *, resize: bool) -> Array:
    """A picture `[colours, height, width]`."""
    with _opened(file) as picture:
        if not resize and picture.size != (width, height):
            raise ConfigError(
                f"{file}: has {picture.height} x {picture.width} pixels, the first picture "
                f"{height} x {width}; give a size for all, as data.image_size=[{height},{width}]"
            )
        try:
            pixels = np.asarray(
                picture.convert("RGB" if colours == 3 else "L").resize((width, height))
            )
        except OSError:
            raise ConfigError(f"{file}: damaged picture") from None
    return pixels.reshape(height, width, colours).transpose(2, 0, 1)
