"""Whitened features against the same statistics by singular values, in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.models import whitening
from fedveil.models.drawings import leaves, strokes
from fedveil.models.features import ScatteringFeatures, named_features

MAP = ScatteringFeatures(scales=1, angles=4)


def scattered(image: np.ndarray) -> np.ndarray:
    """Channels `[places, channels]` of one image."""
    return MAP(torch.from_numpy(image)).flatten(0, -2).double().numpy()


def inverse_root(channels: np.ndarray, ridge: float) -> np.ndarray:
    """By singular values of the channels themselves: no product of them is formed."""
    _, lengths, axes = np.linalg.svd(channels / np.sqrt(len(channels)), full_matrices=False)
    moments = lengths**2
    return axes.T @ np.diag(1 / np.sqrt(moments + ridge * moments.mean())) @ axes


@pytest.mark.parametrize(("drawings", "shape"), [(strokes, (12, 9)), (leaves, (8, 10, 3))])
def test_channels_are_turned_by_the_inverse_root_of_their_moments(drawings, shape):
    draw = np.random.default_rng(whitening._SEED)
    drawn = [drawings(draw, *shape[:2]) for _ in range(whitening._COUNT)]
    turn = inverse_root(np.concatenate([scattered(one) for one in drawn]), whitening._RIDGE)
    image = np.random.default_rng(1).random(shape).astype(np.float32)
    expected = scattered(image) @ turn
    found = replace(MAP, whiten=drawings.__name__)(torch.from_numpy(image)).flatten(0, -2).numpy()
    assert np.abs(found - expected / np.linalg.norm(expected)).max() < 1e-4


@pytest.mark.parametrize("drawings", [strokes, leaves])
def test_new_drawings_have_channels_of_about_equal_spread(drawings):
    draw = np.random.default_rng(2)
    new = [torch.from_numpy(drawings(draw, 8, 8)) for _ in range(40)]

    def evenness(features: ScatteringFeatures) -> float:
        """Between 0 and 1: the effective number of directions, as a share of all."""
        channels = torch.cat([features(one).flatten(0, -2) for one in new]).double()
        moments = torch.linalg.eigvalsh(channels.T @ channels)
        return float(moments.sum() ** 2 / moments.square().sum() / len(moments))

    white = replace(MAP, whiten=drawings.__name__)
    assert evenness(white) > 1.5 * evenness(MAP)


def test_an_empty_image_has_finite_features():
    found = replace(MAP, whiten="strokes")(torch.zeros(8, 8))
    assert bool(found.isfinite().all())


def test_unknown_drawings_and_whitening_without_features_are_refused():
    with pytest.raises(ConfigError, match="there is strokes or leaves"):
        named_features("scattering", whiten="clouds")
    with pytest.raises(ConfigError, match=r"model.whiten: goes with model.features"):
        named_features(None, whiten="strokes")
