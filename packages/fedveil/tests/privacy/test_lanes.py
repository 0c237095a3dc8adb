"""No row knows its neighbours: the same bits alone, in crowds, at any place and stride."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from fedveil.privacy.clipping import Clip, clip_factors, clip_rows, row_norms
from fedveil.privacy.elementwise import tree_sum
from fedveil.privacy.noise.grid import snap_rows
from fedveil.training.client.rotation import Rotation
from fedveil.training.engines.isolated_arithmetic import exp_below, softmax

NASTY = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, 1e-45, -0.0, 1e19], np.float32)


def crowd(row: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, int]:
    """The row among others, somewhere in memory, with any stride; and its place."""
    count = int(draw.integers(1, 40))
    place, width = int(draw.integers(count)), len(row)
    memory = np.zeros((count, width + int(draw.integers(0, 9)) + 64), row.dtype)
    begin = int(draw.integers(0, 32))
    rows = memory[:, begin : begin + width]
    rows[...] = draw.normal(size=rows.shape) * 10.0 ** draw.integers(-30, 30)
    hit = draw.random(rows.shape) < draw.choice([0.0, 0.2])
    rows[hit] = draw.choice(NASTY, int(hit.sum()))
    rows[place] = row
    return rows, place


def rows(draw: np.random.Generator, kind: type) -> np.ndarray:
    width = int(draw.choice([1, 2, 3, 7, 11, 64, 100, 257, 5000]))
    scale = 10.0 ** draw.integers(-25, 25)
    return (draw.normal(size=width) * scale).astype(kind)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_norms_clips_and_grids_of_a_row_are_its_own(kind, order):
    draw = np.random.default_rng(order)
    for _ in range(150):
        row = rows(draw, kind)
        clip = Clip(float(np.abs(row).sum() * draw.choice([0.3, 1.0, 3.0])) + 1e-30, order)
        grid = 2.0 ** np.floor(np.log2(clip.norm / 2.0**20))
        many, place = crowd(row, draw)
        alone = row[None].copy()
        assert row_norms(many, order)[place] == row_norms(alone, order)[0]
        one, all_ = clip_rows(alone, clip), clip_rows(many.copy(), clip)
        assert one.values[0].tobytes() == all_.values[place].tobytes()
        assert one.factors[0] == all_.factors[place]
        assert one.norms[0] == all_.norms[place]
        assert np.array_equal(snap_rows(alone, grid, clip)[0], snap_rows(many, grid, clip)[place])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_factors_of_an_example_are_its_own(kind):
    draw = np.random.default_rng(3)
    for _ in range(200):
        norms = np.abs(crowd(rows(draw, kind), draw)[0].reshape(-1)).copy()
        clip = Clip(float(10.0 ** draw.integers(-8, 8)))
        with np.errstate(all="ignore"):
            together = clip_factors(norms, clip, relative_error=1e-6)
            place = int(draw.integers(len(norms)))
            alone = clip_factors(norms[place : place + 1], clip, relative_error=1e-6)
        assert together[place].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 100, 1001])
def test_a_tree_sum_is_off_by_few_roundings(count):
    terms = np.random.default_rng(count).normal(size=count)
    exact = float(sum(map(Fraction, terms.tolist())))
    roundings = max(1, (count - 1).bit_length())
    assert abs(tree_sum(terms.copy()) - exact) <= roundings * 2.0**-53 * np.abs(terms).sum()


def test_softmax_of_a_column_is_its_own_and_right():
    draw = np.random.default_rng(5)
    for _ in range(60):
        classes, many = int(draw.integers(2, 12)), int(draw.integers(1, 70))
        scores = (draw.normal(size=(classes, many)) * draw.choice([1, 30, 200])).astype(np.float32)
        place = int(draw.integers(many))
        if many > 1:
            scores[:, (place + 1) % many] = draw.choice(NASTY, classes)
        together, _ = softmax(torch.tensor(scores))
        alone, _ = softmax(torch.tensor(scores[:, place : place + 1].copy()))
        assert together[:, place].numpy().tobytes() == alone[:, 0].numpy().tobytes()
        wanted = torch.softmax(torch.tensor(scores[:, place]).double(), 0)
        torch.testing.assert_close(alone[:, 0].double(), wanted, rtol=1e-5, atol=1e-37)


def test_the_exponential_is_off_by_two_units_in_the_last_place():
    x = -np.abs(np.random.default_rng(6).normal(size=200_000).astype(np.float32) * 25)
    x = np.concatenate([x, np.float32([0.0, -0.0, -87.0, -1e-38])])
    x = x[x >= -87]
    found = exp_below(x).astype(np.float64)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(found / wanted - 1).max() <= 2 * 2.0**-23
    edge = exp_below(np.float32([-88.0, -np.inf, np.nan]))
    assert edge[:2].tolist() == [0.0, 0.0]
    assert np.isnan(edge[2])


@pytest.mark.parametrize("size", [3, 11, 64, 100, 900])
def test_a_rotated_row_is_its_own(size):
    draw, rotation = np.random.default_rng(size), Rotation(1)
    for _ in range(20):
        row = draw.normal(size=size).astype(np.float32)
        many, place = crowd(row, draw)
        together = rotation.forward(torch.tensor(many), 2)
        alone = rotation.forward(torch.tensor(row)[None], 2)
        assert together[place].numpy().tobytes() == alone[0].numpy().tobytes()
