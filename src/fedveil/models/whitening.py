"""Features whose channels are uncorrelated, as far as drawings made by a formula can tell.

Noise is alike in all directions, and features are not: a few channels rise and fall together and
hold most of their length, while what tells classes apart is in the small rest. Scaling every
direction to about equal spread lets a model find the rest in fewer and shorter steps. The spread is
measured on drawings (`fedveil.models.drawings`), so that no data have a part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedveil.core.errors import ConfigError
from fedveil.models.drawings import DRAWINGS

_COUNT = 300  # drawings that are looked at
_SEED = 1968
_RIDGE = 0.1  # of the mean is added to each direction's: those that hold nothing stay small
_FLOOR = 1e-6  # length below which nothing is blown up


ImageMap = Callable[[Tensor], Tensor]  # an image [h, w, ...] to features [h', w', channels]


def check_drawings(name: str) -> None:
    if name not in DRAWINGS:
        raise ConfigError(f"model.whiten: unknown {name!r}; there is {' or '.join(DRAWINGS)}")


def whitened(features: ImageMap, drawings: str, example: Tensor) -> Tensor:
    """The example's features with channels turned and scaled; their length is 1."""
    found = features(example) @ _turn(features, drawings, tuple(example.shape))
    length: Tensor = torch.linalg.vector_norm(found)
    return found / length.clamp(min=_FLOOR)


@lru_cache(maxsize=8)
def _turn(features: ImageMap, drawings: str, shape: tuple[int, ...]) -> Tensor:
    """The inverse root of the channels' second moments on drawings, `[channels, channels]`."""
    draw = np.random.default_rng(_SEED)
    with one_thread():
        seen = [features(_drawn(drawings, draw, shape)) for _ in range(_COUNT)]
        channels = torch.stack(seen).double().flatten(0, -2)
        values, axes = torch.linalg.eigh(channels.T @ channels / len(channels))
        scales = (values.clamp(min=0) + _RIDGE * values.mean()).rsqrt()
        turn: Tensor = (axes * scales) @ axes.T
    return turn.float()


def _drawn(drawings: str, draw: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """A drawing as a model would see it: of as many colours as the data's images."""
    image = torch.from_numpy(DRAWINGS[drawings](draw, *shape[:2]))
    image = image if image.ndim == 3 else image[..., None].expand(*shape[:2], 3)
    if len(shape) == 2:
        return image.mean(dim=2)
    return image if shape[2] == 3 else image.mean(dim=2, keepdim=True).expand(shape)


@contextmanager
def one_thread() -> Iterator[None]:
    """How many threads share a sum must not show in its last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
