"""Random patches as filters (Coates, Lee and Ng 2011): features of photographs that nobody trains.

How much is there, in each ninth of an image, that looks like each of some hundred small patches,
or like their negatives? The patches are cut at random from drawings that a formula makes
(`models.drawings`), and all patches are whitened by these drawings' statistics: no data
have a part in it. What comes out is turned and scaled by drawings again (`whitening`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d

from fedveil.core.arguments import check_fields, flag, whole
from fedveil.core.errors import ConfigError
from fedveil.core.public_networks import one_thread
from fedveil.training.models.whitening import DIRECTIONS, check_drawings, drawn, whitened

PATCH = 6  # pixels on each side
_GRID = 3  # places on each side of an image that are told apart
_CONTRAST = 0.1  # of an image's variance is added to a patch's: flat ones are not blown up
_SMALL = 0.1  # of a patch's variance is added to each direction's when patches are whitened
_LEAST = 0.25  # likeness that counts
_FIRST, _DRAWN, _CUT = 10_000, 200, 100  # drawings: the first one, how many, patches of each
_FAINT = 0.0  # share of patches that are too faint to be filters
_SEED = 2011
_FLOOR = 1e-5  # deviation below which nothing is blown up


@dataclass(frozen=True)
class PatchFeatures:
    """Likeness of an image `[h, w]` or `[h, w, colours]` to patches, `[directions]` of length 1."""

    patches: int = 256
    mirror: bool = False  # whether an image and its mirror image have the same features
    whiten: str = "leaves"  # the drawings
    directions: int = DIRECTIONS  # at most
    data_independent = True  # the drawings are formulas

    def __post_init__(self) -> None:
        check_drawings(self.whiten, self.directions)
        check_fields(self, mirror=flag)
        if whole("model.patches", self.patches) < 1:
            raise ConfigError(f"model.patches: must be at least 1, got {self.patches}")

    def __call__(self, example: Tensor) -> Tensor:
        if example.ndim not in (2, 3) or min(example.shape[:2]) < PATCH + _GRID - 1:
            raise ConfigError(
                f"model.features: patches need images of {PATCH + _GRID - 1} x {PATCH + _GRID - 1} "
                f"pixels or more, not inputs of shape {[*example.shape]}"
            )
        likeness = Likeness(self.patches, self.mirror, self.whiten)
        return whitened(likeness, self.whiten, self.directions, example)


@dataclass(frozen=True)
class Likeness:
    """Values before whitening: `[2 * patches, 3, 3]` means over ninths of an image."""

    patches: int
    mirror: bool
    drawings: str

    def __call__(self, example: Tensor) -> Tensor:
        image = example[None] if example.ndim == 2 else example.permute(2, 0, 1)
        filters, sums, middle = _filters(self.patches, self.drawings, tuple(example.shape))
        image = image - image.mean()
        image = (image / image.square().mean().sqrt().clamp(min=_FLOOR))[None].contiguous()
        if self.mirror:
            image = torch.cat([image, image.flip(3)])
        mean = avg_pool2d(image.mean(dim=1, keepdim=True), PATCH, 1)
        square = avg_pool2d(image.square().mean(dim=1, keepdim=True), PATCH, 1)
        scale = ((square - mean.square()).clamp(min=0) + _CONTRAST).rsqrt()
        found = (conv2d(image, filters) - mean * sums) * scale - middle
        either = [(found - _LEAST).clamp(min=0), (-found - _LEAST).clamp(min=0)]
        return torch.cat([adaptive_avg_pool2d(one, _GRID) for one in either], dim=1).mean(dim=0)


@lru_cache(maxsize=4)
def _filters(count: int, drawings: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Patches in whitened space, seen from plain patches: `[count, colours, PATCH, PATCH]`, their
    sums `[count, 1, 1]`, and what each finds in the mean patch."""
    with one_thread():
        cut = _cut(drawings, shape)
        middle = cut.mean(dim=0)
        moments = (cut - middle).T @ (cut - middle) / len(cut)
        values, vectors = torch.linalg.eigh(moments)
        whiten = (vectors * (values.clamp(min=0) + _SMALL).rsqrt()) @ vectors.T
        white = (cut - middle) @ whiten
        length = torch.linalg.vector_norm(white, dim=1)
        strong = torch.nonzero(length > length.quantile(_FAINT)).flatten()
        order = torch.from_numpy(np.random.default_rng(_SEED).permutation(len(strong)))
        chosen = strong[order[:count]]
        filters = (white[chosen] / length[chosen, None]) @ whiten
        shown = filters.reshape(len(filters), -1, PATCH, PATCH)
        sums, offsets = filters.sum(dim=1), filters @ middle
    return shown.float(), sums.float()[:, None, None], offsets.float()[:, None, None]


def _cut(drawings: str, shape: tuple[int, ...]) -> Tensor:
    """Random patches `[patches, colours * PATCH * PATCH]` of drawings, normalised as images' are,
    in double precision."""
    found = []
    for what in range(_DRAWN):
        picture = drawn(drawings, _FIRST + what, 0, shape).double()
        picture = picture[..., None] if picture.ndim == 2 else picture
        picture = picture - picture.mean()
        picture = picture / picture.square().mean().sqrt().clamp(min=_FLOOR)
        draw = np.random.default_rng([_SEED, what])
        for down, right in draw.integers(
            0, [shape[0] - PATCH + 1, shape[1] - PATCH + 1], (_CUT, 2)
        ):
            found.append(picture[down : down + PATCH, right : right + PATCH].permute(2, 0, 1))
    cut = torch.stack(found).flatten(1)
    cut = cut - cut.mean(dim=1, keepdim=True)
    return cut / (cut.square().mean(dim=1, keepdim=True) + _CONTRAST).sqrt()
