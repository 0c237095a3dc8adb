"""Likeness to patches against sums over all places, and what must not matter to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedveil.training.models import patches
from fedveil.training.models.patches import PATCH, Likeness, PatchFeatures
from fedveil.training.models.whitening import drawn

COUNT = 5


def standard(image: np.ndarray) -> np.ndarray:
    return (image - image.mean()) / image.std()


def patch(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """One patch of a standardised image `[h, w, colours]`, with its own mean and deviation."""
    own = image[down : down + PATCH, right : right + PATCH]
    return ((own - own.mean()) / math.sqrt(own.var() + patches._CONTRAST)).ravel()


def whitener(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean patch of drawings, the matrix that whitens, and unit patches in whitened space."""
    cut = []
    for what in range(patches._DRAWN):
        picture = drawn("leaves", patches._FIRST + what, 0, shape).double().numpy()
        picture = standard(picture.reshape(shape))
        most = [shape[0] - PATCH + 1, shape[1] - PATCH + 1]
        places = np.random.default_rng([patches._SEED, what]).integers(0, most, (patches._CUT, 2))
        cut += [patch(picture, *place) for place in places]
    middle = np.mean(cut, axis=0)
    _, lengths, axes = np.linalg.svd(cut - middle, full_matrices=False)
    spread = lengths**2 / len(cut)
    whiten = axes.T @ np.diag(1 / np.sqrt(spread + patches._SMALL)) @ axes
    white = (cut - middle) @ whiten
    norms = np.linalg.norm(white, axis=1)
    strong = np.flatnonzero(norms > np.quantile(norms, patches._FAINT))
    chosen = strong[np.random.default_rng(patches._SEED).permutation(len(strong))[:COUNT]]
    return middle, whiten, white[chosen] / norms[chosen, None]


def thirds(places: int) -> list[range]:
    """Neighbours share a place where it takes that to have as many in each."""
    return [range(i * places // 3, -(-(i + 1) * places // 3)) for i in range(3)]


def by_hand(image: np.ndarray, mirror: bool) -> np.ndarray:
    middle, whiten, units = whitener(image.shape)
    total = np.zeros((2 * COUNT, 3, 3))
    seen = [image, image[:, ::-1]] if mirror else [image]
    high, wide = image.shape[0] - PATCH + 1, image.shape[1] - PATCH + 1
    for one in map(standard, seen):
        for i, rows in enumerate(thirds(high)):
            for j, columns in enumerate(thirds(wide)):
                for down in rows:
                    for right in columns:
                        found = units @ whiten @ (patch(one, down, right) - middle)
                        both = np.concatenate([found, -found]) - patches._LEAST
                        share = len(seen) * len(rows) * len(columns)
                        total[:, i, j] += both.clip(min=0) / share
    return total


@pytest.mark.parametrize(("shape", "mirror"), [((9, 8, 3), False), ((8, 10, 1), True)])
def test_likeness_is_a_mean_over_the_places_of_a_ninth(shape, mirror) -> None:
    image = np.random.default_rng(1).random(shape)
    found = Likeness(COUNT, mirror, "leaves")(torch.from_numpy(image).float())
    # Single precision, products of about a hundred numbers scaled up by the whitening, twice.
    assert np.abs(found.double().numpy() - by_hand(image, mirror)).max() < 1e-4


def test_mirror_images_are_alike_if_asked_for() -> None:
    image = torch.rand(8, 10, 3, generator=torch.Generator().manual_seed(1))
    for mirror in (True, False):
        features = PatchFeatures(COUNT, mirror=mirror)
        assert torch.allclose(features(image), features(image.flip(1)), atol=1e-6) is mirror


def test_light_and_contrast_of_an_image_do_not_matter() -> None:
    features, image = PatchFeatures(COUNT), torch.rand(9, 9, generator=torch.Generator())
    assert torch.allclose(features(image), features(3 * image + 7), atol=1e-4)
    assert math.isclose(float(features(image).norm()), 1, rel_tol=1e-5)
    assert bool(features(torch.zeros(9, 9)).isfinite().all())
