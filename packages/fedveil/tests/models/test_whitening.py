"""Whitened features against the same statistics by singular values, in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedveil.training.models import whitening
from fedveil.training.models.drawings import leaves, strokes
from fedveil.training.models.features import ScatteringFeatures

MAP = ScatteringFeatures(scales=1, angles=4)


def scattered(image: np.ndarray) -> np.ndarray:
    return MAP(torch.from_numpy(image)).flatten().double().numpy()


def pictures(drawings, shape: tuple[int, ...], first: int, count: int, times: int) -> np.ndarray:
    """Images `[count, times, h, w, ...]`: each drawing several times."""
    return np.stack(
        [
            [
                drawings(
                    np.random.default_rng([whitening._SEED, what]),
                    np.random.default_rng([whitening._SEED, what, how + 1]),
                    *shape[:2],
                )
                for how in range(times)
            ]
            for what in range(first, first + count)
        ]
    )


@pytest.mark.parametrize(("drawings", "shape"), [(strokes, (12, 9)), (leaves, (8, 6, 3))])
def test_directions_are_divided_by_how_much_a_drawing_varies_in_them(drawings, shape):
    """Products of features of images: the directions themselves are known up to rotations."""
    images = np.random.default_rng(1).random((6, *shape)).astype(np.float32)
    times, size = whitening._TIMES, len(scattered(images[0]))
    seen = pictures(drawings, shape, 0, -(-size // times), times)
    drawn = np.stack([[scattered(one) for one in again] for again in seen])
    kept = int(whitening._SHARE * drawn.shape[0] * times)
    middle = drawn.mean(axis=(0, 1))
    _, _, axes = np.linalg.svd((drawn - middle).reshape(-1, size), full_matrices=False)
    varied = (drawn - drawn.mean(axis=1, keepdims=True)).reshape(-1, size) @ axes[:kept].T
    _, lengths, within = np.linalg.svd(varied, full_matrices=False)
    scales = 1 / np.sqrt(lengths**2 + whitening._RIDGE * (lengths**2).mean())
    expected = [scales * (within @ axes[:kept] @ (scattered(one) - middle)) for one in images]
    expected = np.stack([one / np.linalg.norm(one) for one in expected])
    white = replace(MAP, whiten=drawings.__name__)
    found = torch.stack([white(torch.from_numpy(one)) for one in images]).double().numpy()
    assert np.abs(found @ found.T - expected @ expected.T).max() < 1e-4


@pytest.mark.parametrize("drawings", [strokes, leaves])
def test_new_drawings_vary_about_alike_in_all_directions(drawings):
    new = torch.from_numpy(pictures(drawings, (8, 8), 1000, 30, 4))

    def evenness(features: ScatteringFeatures) -> float:
        """Between 0 and 1: the effective number of directions, as a share of all."""
        seen = torch.stack([features(one).flatten() for one in new.flatten(0, 1)]).double()
        own = seen.reshape(30, 4, -1)
        moments = torch.linalg.svdvals((own - own.mean(dim=1, keepdim=True)).flatten(0, 1)) ** 2
        return float(moments.sum() ** 2 / moments.square().sum() / len(moments))

    assert evenness(replace(MAP, whiten=drawings.__name__)) > 1.2 * evenness(MAP)


@pytest.mark.parametrize("drawings", [strokes, leaves])
def test_what_is_drawn_does_not_depend_on_how(drawings):
    first, second = (
        drawings(np.random.default_rng(5), np.random.default_rng(how), 28, 28) for how in (1, 2)
    )
    other = drawings(np.random.default_rng(6), np.random.default_rng(1), 28, 28)
    assert 0 < np.abs(first - second).mean() < np.abs(first - other).mean()


def test_an_empty_image_has_finite_features():
    found = replace(MAP, whiten="strokes")(torch.zeros(8, 8))
    assert bool(found.isfinite().all())


def test_fewer_directions_are_the_most_different_ones():
    """As many as asked for, of the same drawings' features; more than there are, all of them."""
    image = torch.rand(8, 8, generator=torch.Generator().manual_seed(2))
    sizes = [
        replace(MAP, whiten="strokes", directions=most)(image).numel() for most in (3, 20, 10**6)
    ]
    assert sizes[:2] == [3, 20]
    assert sizes[2] == replace(MAP, whiten="strokes")(image).numel()
