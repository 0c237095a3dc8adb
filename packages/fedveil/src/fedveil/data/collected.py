"""Federations from other libraries' data sets, one for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.core.errors import ConfigError
from fedveil.data.columns import MISSING_CLASS, number_of
from fedveil.data.declared import SHAPE
from fedveil.data.examples import Task
from fedveil.data.federation import Federation

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
        shape: The shape of one input; None: that of the first one.
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
    if task is None and (classes is not None or class_names):
        task = Task.CLASSIFICATION
    if np.dtype(dtype) not in (np.float32, np.uint8):
        raise ConfigError(f"dtype={np.dtype(dtype)}: must be float32 or uint8")
    strict = shape is None or task is None
    items = {name: _items(name, one, keys, strict) for name, one in given.items()}
    unprotected: tuple[str, ...] = ()
    if shape is None:
        first = next((x for own in items.values() for x, _ in own if x is not None), None)
        if first is None:
            raise ConfigError("datasets: no client has any items; give some, or declare the shape")
        shape, unprotected = first.shape, (SHAPE,)
    tokens = task == Task.SEQUENCE
    no_target = np.full(shape, MISSING_CLASS).tolist() if tokens else None
    inputs, owners, targets = list[Array](), list[Any](), list[Any]()
    for name, own in items.items():
        column = np.zeros((max(1, len(own)), *shape), np.int64 if tokens else dtype)
        fits = [x is not None and _fits(x, column[place]) for place, (x, _) in enumerate(own)]
        for fit, (_, y) in zip(fits, own, strict=True):
            whole = y is not None and (not tokens or y.shape == tuple(shape))
            targets.append(_plain(y) if fit and whole else no_target)
        targets += [no_target] * (len(column) - len(own))
        inputs.append(column)
        owners += [name] * len(column)
    found = Federation.from_arrays(
        np.concatenate(inputs) if inputs else np.zeros((0, *shape)),
        targets,
        np.array(owners),
        task=task,
        classes=classes,
        class_names=class_names,
        **settings,
    )
    return replace(found, unprotected=(*unprotected, *found.unprotected))


def _plain(target: Array | None) -> Any:
    """A target as a number, a name, or a list of them."""
    if target is None:
        return None
    return target.item() if target.size == 1 else target.tolist()


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
            item = dataset[place]
            x, y = (item[key] for key in keys) if keys is not None else item
            pairs.append((_array(x), _array(y)))
        except Exception as error:  # whatever somebody's data set may raise
            if strict:
                raise ConfigError(
                    f"data set {name!r}: its items must be pairs (input, target), or mappings of "
                    f"which keys=(input, target) names two ({type(error).__name__}: {error})"
                ) from None
            pairs.append((None, None))
    return pairs


def _array(value: Any) -> Array:
    """A tensor, picture, number or text as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.to_dense() if value.layout is not torch.strided else value
        value = value.float() if value.dtype is torch.bfloat16 else value  # NumPy knows no such
    return np.asarray(value)
