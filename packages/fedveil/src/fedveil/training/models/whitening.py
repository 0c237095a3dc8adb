"""Features in which what changes a picture but not its meaning is small.

Noise is alike in all directions of the weights, and features are not: most of their length tells
how a letter is bent and how thick the pen is, and little of it which letter it is. Here features
are turned to the directions in which drawings differ most, and each is divided by how much the
same drawing varies in it from one time to the next (what linear discriminant analysis does with
classes). The drawings are made by a formula (`models.drawings`): no data have a part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedveil.core.arguments import count, one_of, optional
from fedveil.core.public_networks import one_thread
from fedveil.training.models.drawings import DRAWINGS

DIRECTIONS = 800  # that are kept, if nothing else is said
_TIMES = 5  # that each picture is drawn
_SHARE = 0.5  # of directions that are kept, for each of these pictures
_SEED = 1968
_RIDGE = 1.0  # of the mean is added to each direction's: those that hardly vary stay small
_FLOOR = 1e-6  # length below which nothing is blown up


ImageMap = Callable[[Tensor], Tensor]  # an image [h, w, ...] to features [h', w', channels]


def check_drawings(name: str, directions: int | None) -> None:
    one_of(DRAWINGS)("model.whiten", name)
    optional(count)("model.directions", directions)


def whitened(features: ImageMap, drawings: str, directions: int, example: Tensor) -> Tensor:
    """The example's features in other directions, `[directions]` or fewer; their length is 1."""
    middle, turn = _turn(features, drawings, directions, tuple(example.shape))
    found = turn @ (features(example).flatten() - middle)
    length: Tensor = torch.linalg.vector_norm(found)
    return found / length.clamp(min=_FLOOR)


@lru_cache(maxsize=8)
def _turn(
    features: ImageMap, drawings: str, directions: int, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The mean `[features]` of drawings, and the map `[directions, features]` of what differs."""
    with one_thread():
        seen = _seen(features, drawings, math.ceil(directions / (_SHARE * _TIMES)), shape)
        pictures = seen.flatten(0, 1)
        middle = pictures.mean(dim=0)
        spread = pictures - middle
        # The principal directions, from products of pictures: there are fewer than features.
        values, vectors = torch.linalg.eigh(spread @ spread.T)
        kept = slice(-min(directions, int(_SHARE * len(pictures))), None)
        axes = spread.T @ (vectors[:, kept] * values[kept].clamp(min=_FLOOR).rsqrt())
        within = ((seen - seen.mean(dim=1, keepdim=True)) @ axes).flatten(0, 1)
        values, vectors = torch.linalg.eigh(within.T @ within)
        scales = (values.clamp(min=0) + _RIDGE * values.mean()).rsqrt()
        turn = (axes @ (vectors * scales)).T
    return middle.float(), turn.float().contiguous()


def _seen(features: ImageMap, drawings: str, most: int, shape: tuple[int, ...]) -> Tensor:
    """Features `[drawings, times, features]` of pictures, as many as there are features at most."""
    first = features(drawn(drawings, 0, 0, shape)).numel()
    count = min(most, -(-first // _TIMES))
    pairs = ((what, how) for what in range(count) for how in range(_TIMES))
    rows = [features(drawn(drawings, *pair, shape)).flatten() for pair in pairs]
    return torch.stack(rows).double().reshape(count, _TIMES, -1)


def drawn(drawings: str, what: int, how: int, shape: tuple[int, ...]) -> Tensor:
    """A drawing as a model would see it: of as many colours as the data's images."""
    draws = (np.random.default_rng([_SEED, what]), np.random.default_rng([_SEED, what, how + 1]))
    image = torch.from_numpy(DRAWINGS[drawings](*draws, *shape[:2]))
    image = image if image.ndim == 3 else image[..., None].expand(*shape[:2], 3)
    if len(shape) == 2:
        return image.mean(dim=2)
    return image if shape[2] == 3 else image.mean(dim=2, keepdim=True).expand(shape)
