"""Federations from what other libraries hold: a data set for each client, pictures in folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.core.errors import ConfigError
from fedveil.data.columns import MISSING_CLASS, code_of, number_of
from fedveil.data.declared import CLASSES, SHAPE, TASK
from fedveil.data.examples import Scaling, Task, task_of
from fedveil.data.federation import PICTURES_NOTE, Federation

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_HALF = np.array(127.5, np.float32)
_PIXELS = Scaling(_HALF, np.float32(1) / _HALF)  # to numbers from -1 to 1

_TEXTS = "texts"

Array = npt.NDArray[Any]


def from_datasets(
    datasets: Mapping[str, Any] | Sequence[Any],
    *,
    keys: tuple[str, str] | None = None,
    shape: Sequence[int] | None = None,
    dtype: npt.DTypeLike = np.float32,
    task: Task | str | None = None,
    classes: int | None = None,
    class_names: tuple[str, ...] = (),
    **settings: Any,
) -> Federation:
    """Make a federation from one data set for each client, by name or in their order.

    What is declared decides how items are read, each by itself: an item that does not fit (another
    shape, a word among numbers, a class that is none) keeps its place and contributes nothing, and
    a client without items is still a client. What is not declared is taken from the data sets, and
    stands in `Federation.unprotected`: then nothing is certified.

    Args:
        datasets: Anything with a length and items, as of torch or Hugging Face. An item is a pair
            (input, target), or a mapping of which `keys` names these two. Inputs are arrays,
            tensors or pictures.
        keys: Names of input and target in an item that is a mapping.
        shape: The shape of one input.
        dtype: How inputs are stored: float32, or uint8, which takes a quarter of the memory.
        task: What to predict; with `classes` or `class_names` it is classification.
        classes: How many classes or labels there are.
        class_names: The names of the classes, if targets are names.
        **settings: Further ones of `Federation.from_arrays`.

    Returns:
        The federation; clients stand in sorted order of their names.

    >>> ward = [([0.1, 0.2], 0), ([0.9, 0.8], 1), ([0.7, 0.9], 1), ([0.2, 0.1], 0)]
    >>> wards = {"north": ward, "south": ward}
    >>> fv.from_datasets(wards, classes=2, shape=(2,), test_fraction=0.25).clients
    2
    """
    given = datasets if isinstance(datasets, Mapping) else dict(enumerate(datasets))
    if not given:
        raise ConfigError("datasets: there are none; give one for each client")
    named = classes is not None or bool(class_names)
    if task is None and named:
        task = Task.CLASSIFICATION
    if task not in (None, *Task):
        raise ConfigError(f"task={task!r}: must be one of {', '.join(Task)}")
    if np.dtype(dtype) not in (np.float32, np.uint8):
        raise ConfigError(f"dtype={np.dtype(dtype)}: must be float32 or uint8")
    strict = shape is None or task is None
    items = {name: _items(name, one, keys, strict) for name, one in given.items()}
    unprotected = []
    if shape is None:
        shape = _agreed(items, lambda x, y: np.shape(x), "inputs of shape")
        unprotected.append(SHAPE)
    kinds = {_kind(y) for own in items.values() for _, y in own if y is not None}
    texts = not named and kinds == {_TEXTS}  # names that nobody has declared
    if task is None:
        _agreed(items, lambda x, y: _kind(y), "targets that are")
        task = task_of(None, _stacked([y for own in items.values() for _, y in own]))
        unprotected.append(TASK)
    if task in (Task.CLASSIFICATION, Task.MULTI_LABEL) and not named:
        unprotected.append(CLASSES)
    width = len(class_names) or classes or 0
    if not width:
        sizes = (np.size(y) for own in items.values() for _, y in own if y is not None)
        width = max(sizes, default=0)
    codes = {name: code for code, name in enumerate(class_names)}
    stored = np.int64 if task == Task.SEQUENCE else np.dtype(dtype)
    inputs, targets, owners = [], [], []
    for name, own in items.items():
        x_column = np.zeros((max(1, len(own)), *shape), stored)
        y_column = _no_targets(len(x_column), str(task), tuple(shape), width, texts=texts)
        for place, (x, y) in enumerate(own):
            if x is not None and y is not None and _fits(x, x_column[place]):
                with suppress(TypeError, ValueError):
                    y_column[place] = _target(y, str(task), None if texts else codes)
        inputs.append(x_column)
        targets.append(y_column)
        owners += [name] * len(x_column)
    made = Federation.from_arrays(
        np.concatenate(inputs),
        np.concatenate(targets),
        np.array(owners),
        task=task,
        classes=classes,
        class_names=class_names,
        **settings,
    )
    return replace(made, unprotected=tuple(dict.fromkeys((*unprotected, *made.unprotected))))


def _no_targets(count: int, task: str, shape: tuple[int, ...], width: int, *, texts: bool) -> Array:
    """A column without any targets; text if they are names that nobody declared."""
    if task == Task.REGRESSION:
        return np.full(count, np.nan)
    if task == Task.SEQUENCE:
        return np.full((count, *shape), MISSING_CLASS)
    if task == Task.MULTI_LABEL:
        return np.full((count, width), MISSING_CLASS)
    return np.full(count, None if texts else MISSING_CLASS, object if texts else np.int64)


def _target(target: Array, task: str, codes: Mapping[str, int] | None) -> Any:
    """One target as it is stored; classes without `codes` are names."""
    if task == Task.REGRESSION:
        return number_of(_entry(target))
    if task in (Task.SEQUENCE, Task.MULTI_LABEL):
        return [code_of(entry) for entry in target.tolist()]
    return _entry(target) if codes is None else code_of(_entry(target), codes)


def _entry(target: Array) -> Any:
    """What an array of one entry holds."""
    return target.item() if target.size == 1 else None


def _fits(x: Array, into: Array) -> bool:
    """Write an input of the right shape, and say whether all of it can be written as it is."""
    if x.shape != into.shape:
        return False
    if x.dtype.kind not in "fiub":
        x = np.array([number_of(entry) for entry in x.ravel().tolist()]).reshape(x.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        into[...] = x
    whole = np.issubdtype(into.dtype, np.integer)
    good = (into == x).all() if whole else np.isfinite(into).all()
    if not good:
        into[...] = 0
    return bool(good)


def _items(
    name: object, dataset: Any, keys: tuple[str, str] | None, strict: bool
) -> list[tuple[Array | None, Array | None]]:
    """Take inputs and targets out of a data set. An item that cannot be taken is refused if
    `strict`, where nothing is certified anyway, and else is none."""
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:  # torch's TensorDataset
        return list(zip(*(list(_array(tensor)) for tensor in tensors), strict=True))
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(f"data set {name!r}: a {type(dataset).__name__} has no items by number")
    pairs: list[tuple[Array | None, Array | None]] = []
    for place in range(len(dataset)):
        try:
            x, y = _pair(name, dataset[place], keys)
            pairs.append((_array(x), _array(y)))
        except Exception:  # whatever somebody's data set may raise
            if strict:
                raise
            pairs.append((None, None))
    return pairs


def _agreed(items: Mapping[Any, Any], of: Callable[[Array, Array], Any], what: str) -> Any:
    """Return what all items have in common, where nobody declared it."""
    found = [
        (name, of(x, y))
        for name, own in items.items()
        for x, y in own
        if x is not None and y is not None
    ]
    if not found:
        raise ConfigError("datasets: no client has any items")
    first, usual = found[0]
    for name, value in found:
        if value != usual:
            raise ConfigError(
                f"data set {name!r}: {what} {_listed(value)}, and those of {first!r} have "
                f"{_listed(usual)}. Declare shape, task and classes."
            )
    return usual


def _listed(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _stacked(targets: Sequence[Array | None]) -> Array:
    try:
        return np.stack([one for one in targets if one is not None])
    except ValueError:
        raise ConfigError("datasets: targets differ in shape; declare task and classes") from None


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
    return kinds.get(targets.dtype.kind, _TEXTS)


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
    """Make a federation from pictures in folders CLIENT/CLASS/.

    A picture that cannot be read, or whose class is none of those declared, keeps its place and
    contributes nothing; a client without pictures is still a client.

    Args:
        folder: Holds a folder for each client.
        size: Height, width and, if not 3, the number of colours (1: grey) to which every picture is
            brought, each by itself. Left out, all must have the size of the first one that can be
            read, and nothing is certified.
        classes: The names of the classes. Left out, they are taken from the folders, and nothing is
            certified.
        **settings: Further ones of `Federation.from_arrays`.

    Returns:
        The federation; pixels are scaled to numbers from -1 to 1.
    """
    folder = Path(folder)
    files = pictures_of(folder)
    if not files:
        raise ConfigError(f"{folder}: holds no pictures in folders CLIENT/CLASS/")
    height, width, colours = _size(folder, size, files)
    owners = [file.parent.parent.name for file in files]
    absent = sorted({one.name for one in folder.iterdir() if _is_client(one)} - set(owners))
    count = len(files) + len(absent)
    inputs = np.zeros((count, colours, height, width), np.uint8)
    labels = np.full(count, None, object)
    for place, file in enumerate(files):
        pixels = _pixels(file, height, width, colours, resize=bool(size))
        if pixels is not None:
            inputs[place], labels[place] = pixels, file.parent.name
    made = Federation.from_arrays(
        inputs,
        labels,
        np.array([*owners, *absent]),
        class_names=tuple(classes),
        classes=len(classes) or None,
        scaling=_PIXELS,
        name=folder.absolute().name,
        **{"task": Task.CLASSIFICATION, **settings},
    )
    made = replace(made, notes=(*made.notes, PICTURES_NOTE))
    return made if size else replace(made, unprotected=(SHAPE, *made.unprotected))


def pictures_of(folder: Path) -> list[Path]:
    """Return the pictures in folders CLIENT/CLASS/, sorted by client and file name.

    The class comes last: a picture that gets another label must not move the others.
    """
    found = (file for file in folder.glob("*/*/*") if file.suffix.lower() in _PICTURES)
    return sorted(found, key=lambda file: (file.parts[-3], file.name, file.parts[-2]))


def _is_client(folder: Path) -> bool:
    return folder.is_dir() and folder.name[0] != "."


def _opened(file: Path) -> Any:
    """A picture, or None if it cannot be read as one."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError('pictures need Pillow: pip install "fedveil[data]"') from None
    with suppress(Exception):  # readers of many formats raise many kinds of errors
        return Image.open(file)
    return None


def _size(folder: Path, size: Sequence[int], files: Sequence[Path]) -> tuple[int, int, int]:
    if not size:
        first = next((one for one in map(_opened, files) if one is not None), None)
        if first is None:
            raise ConfigError(f"{folder}: no picture can be read; give a size for all")
        width, height = first.size
        return height, width, 3
    if len(size) not in (2, 3) or min(size) < 1 or (len(size) == 3 and size[2] not in (1, 3)):
        raise ConfigError(f"{folder}: a size is [height, width] or [height, width, 1 or 3]")
    return size[0], size[1], 3 if len(size) == 2 else size[2]


def _pixels(file: Path, height: int, width: int, colours: int, *, resize: bool) -> Array | None:
    """A picture `[colours, height, width]`; None if it cannot be read."""
    picture = _opened(file)
    if picture is None:
        return None
    with picture:
        if not resize and picture.size != (width, height):
            raise ConfigError(
                f"{file}: has {picture.height} x {picture.width} pixels, the first picture "
                f"{height} x {width}; give a size for all, as data.image_size=[{height},{width}]"
            )
        with suppress(Exception):
            converted = picture.convert("RGB" if colours == 3 else "L").resize((width, height))
            return np.asarray(converted).reshape(height, width, colours).transpose(2, 0, 1)
    return None
