"""Snapping to the grid against exact rational norms; protected sums against closed forms."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.grid import (
    choose_granularity,
    protect_sum,
    protect_sum_laplace,
    share,
    snap_conditional,
    snap_rows,
    unsnap,
)


def stream(name: str) -> Stream:
    return Stream(hashlib.sha256(name.encode()).digest())


def is_within(row: npt.NDArray[np.int64], granularity: float, clip: Clip) -> bool:
    total = sum(abs(k) ** clip.order for k in row.tolist())
    return total * Fraction(granularity) ** clip.order <= Fraction(clip.norm) ** clip.order


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(-1e38, 1e38, width=64), min_size=5, max_size=5), min_size=1, max_size=4
    ),
    dtype=st.sampled_from([np.float32, np.float64]),
    bound=st.floats(0.01, 100),
    power=st.integers(-20, 6),
    order=st.sampled_from([1, 2]),
)
def test_snapped_norm_never_exceeds_the_clip(rows, dtype, bound, power, order):
    granularity, clip = 2.0**power, Clip(bound, order)
    values = np.array(rows, dtype=dtype)
    snapped = snap_rows(values, granularity, clip)
    assert snapped.dtype == np.int64
    assert all(is_within(row, granularity, clip) for row in snapped)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("power", [-20, -12, -7, -4, 0, 1])
def test_clipped_vectors_of_every_resolution_stay_inside_and_keep_their_direction(power, order):
    """Vectors on the sphere, where rounding pushes half of them out."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(30, 400)).astype(np.float32) * 50
    clip = Clip(1.0 if order == 2 else 20.0, order)
    granularity = 2.0**power
    snapped = snap_rows(rows, granularity, clip)
    assert all(is_within(row, granularity, clip) for row in snapped)
    if power <= -12:
        norms = np.linalg.norm(unsnap(snapped, granularity), ord=order, axis=1)
        assert np.all(norms >= clip.norm * (1 - 12 * granularity * math.sqrt(400) / clip.norm))
        ideal = rows / np.linalg.norm(rows.astype(float), ord=order, axis=1)[:, None] * clip.norm
        assert np.abs(unsnap(snapped, granularity) - ideal).max() <= 2 * granularity


def test_vectors_already_on_the_grid_and_inside_are_kept():
    rows = np.array([[1.0, 0.0, 0.0], [0.5, -0.25, 0.125], [0.6, -0.8, 0.0]])
    np.testing.assert_array_equal(snap_rows(rows[:2], 0.125, Clip(1.0)), [[8, 0, 0], [4, -2, 1]])
    votes = snap_rows(np.eye(4, dtype=np.float32), 2.0**-20, Clip(1.0))
    np.testing.assert_array_equal(votes, np.eye(4) * 2**20)


def test_rows_that_are_not_finite_become_zero():
    rows = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [0.5, 0.5]])
    snapped = snap_rows(rows, 0.25, Clip(1.0))
    assert isinstance(snapped, torch.Tensor)
    assert snapped.dtype == torch.int64
    assert snapped.tolist() == [[0, 0], [0, 0], [2, 2]]


def test_stochastic_rounding_is_unbiased():
    """Mean of 40000 roundings within five standard errors for each value (false alarm 4e-6)."""
    values = np.array([0.1, -0.1, 0.5, 1.75, -2.3, 3.0])
    count = 40_000
    wide = DiscreteGaussianSum(100.0, 1.0, 1.0, 1, len(values), 0.5)  # its bound is never met
    snapped = snap_conditional(np.tile(values, (count, 1)), wide, stream("mean"))
    error = snapped.mean(axis=0) - values
    fraction = values - np.floor(values)
    assert np.all(np.abs(error) <= 5 * np.sqrt(fraction * (1 - fraction) / count) + 1e-12)
    assert np.all(np.abs(snapped - values) < 1)


def test_a_row_that_keeps_rounding_outwards_is_cut_towards_zero():
    """With everything rounded up, 10.9 becomes 11 again and again, beyond the bound."""
    clip = Clip(109.0 + 1e-9)
    rows = np.full((1, 100), 10.9)
    with patch.object(np, "rint", np.ceil):
        snapped = snap_rows(rows, 1.0, clip)
    assert is_within(snapped[0], 1.0, clip)
    assert snapped.tolist() == [[10] * 100]


@pytest.mark.parametrize("beta", [None, 0.0, math.exp(-0.5), 0.9])
def test_conditional_rounding_meets_the_accounted_bound(beta):
    mechanism = DiscreteGaussianSum(
        clip_norm=1.0,
        granularity=2.0**-6,
        share_std=0.1,
        shares=100,
        dimension=1024,
        rounding_beta=beta,
    )
    rows = np.random.default_rng(2).normal(size=(60, 1024)).astype(np.float32)
    snapped = snap_conditional(rows, mechanism, stream(f"conditional {beta}"))
    radius = Fraction(mechanism.grid_sensitivity()[0])
    for row in snapped:
        assert sum(k * k for k in row.tolist()) <= radius**2
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    if beta is not None:
        assert np.all(np.abs(snapped - unit * 64) <= 1 + 1e-4)
    else:
        assert all(is_within(row, 2.0**-6, Clip(1.0)) for row in snapped)


def test_conditional_rounding_really_rejects():
    """With beta near 1 the bound is tight enough that plain stochastic rounding breaks it."""
    mechanism = DiscreteGaussianSum(1.0, 2.0**-4, 0.5, 10, 256, rounding_beta=0.999)
    rows = np.random.default_rng(4).normal(size=(400, 256))
    plain_limit = mechanism.grid_sensitivity()[0] ** 2
    unit = rows / np.linalg.norm(rows, axis=1)[:, None] * 16
    up = np.random.default_rng(0).random(unit.shape) < unit - np.floor(unit)
    unconditioned = ((np.floor(unit) + up) ** 2).sum(axis=1)
    assert (unconditioned > plain_limit).any()
    snapped = snap_conditional(rows, mechanism, stream("rejects"))
    assert ((snapped**2).sum(axis=1) <= plain_limit).all()


@settings(max_examples=300, deadline=None)
@given(
    clip_norm=st.floats(1e-6, 1e6),
    multiplier=st.floats(1e-3, 1e3),
    dimension=st.integers(1, 10**8),
    contributions=st.integers(1, 10**6),
    order=st.sampled_from([1, 2]),
)
def test_the_chosen_grid_is_fine_and_fits_64_bits(
    clip_norm, multiplier, dimension, contributions, order
):
    std = clip_norm * multiplier
    g = choose_granularity(clip_norm, std, dimension, contributions, order=order)
    assert math.frexp(g)[0] == 0.5
    assert contributions * clip_norm / g + 50 * std / g < 2**63
    assert 0.25 <= std / g <= 2**46
    snap_rows(np.zeros((1, 1)), g, Clip(clip_norm, order))
    if order == 2 and multiplier > 0.1 and contributions <= 1000:
        assert (contributions + 1) * g * g / 12 <= 1e-8 * std * std
        if dimension <= 10**7:
            assert dimension * g * g / 12 <= 4e-6 * clip_norm**2
    if order == 1 and multiplier <= 10 and contributions <= 1000 and dimension <= 10**6:
        assert dimension * g / 4 <= 1e-6 * clip_norm  # what rounding adds in L1 on average


def test_impossible_grids_are_refused():
    for bad in (0.0, 0.3, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="granularity"):
            snap_rows(np.zeros((1, 1)), bad, Clip(1.0))
        with pytest.raises(ConfigError, match="granularity"):
            protect_sum(np.zeros(1, np.int64), 1.0, bad, stream("x"))
    with pytest.raises(ConfigError, match="granularity"):
        snap_rows(np.zeros((1, 1)), 2.0**-40, Clip(1.0))
    with pytest.raises(ConfigError, match="noise_std"):
        choose_granularity(1.0, 0.0, 10, 10)
    with pytest.raises(ConfigError, match="noise_std"):
        choose_granularity(1.0, 1e-12, 10, 10)
    with pytest.raises(ConfigError, match="dimension"):
        choose_granularity(1.0, 1.0, 0, 10)
    with pytest.raises(ConfigError, match="int64"):
        protect_sum(np.zeros(3), 1.0, 1.0, stream("x"))
    with pytest.raises(ConfigError, match="coarser"):
        protect_sum(np.array([2**62 + 1]), 1.0, 1.0, stream("x"))


def test_protected_sum_is_the_sum_plus_gaussian_noise():
    """Kolmogorov-Smirnov on 100000 coordinates, false alarm 1e-6."""
    total = np.arange(100_000, dtype=np.int64)
    granularity = 2.0**-12
    noisy = protect_sum(total, 0.7, granularity, stream("sum"))
    noise = unsnap(noisy - total, granularity)
    assert stats.kstest(noise / 0.7, "norm").pvalue > 1e-6
    laplace = unsnap(protect_sum_laplace(total, 0.7, granularity, stream("l")) - total, granularity)
    assert stats.kstest(laplace / 0.7, "laplace").pvalue > 1e-6
    matrix = protect_sum(total.reshape(100, 1000), 0.7, granularity, stream("sum"))
    np.testing.assert_array_equal(matrix.ravel(), noisy)


def test_shares_add_up_to_the_planned_noise():
    """Variance of a sum of 50 shares within five standard errors (false alarm 6e-7)."""
    shares = sum(share(20_000, 0.5, 2.0**-4, stream(f"share {i}")) for i in range(50))
    variance = float(np.var(unsnap(np.asarray(shares), 2.0**-4)))
    assert abs(variance / (50 * 0.25) - 1) < 5 * math.sqrt(2 / 20_000)


@pytest.mark.parametrize("edge", [2**62, -(2**62)])
def test_a_sum_beyond_the_integers_is_refused_at_the_very_edge(edge):
    beyond = edge + (1 if edge > 0 else -1)
    for add in (protect_sum, protect_sum_laplace):
        for total in ([edge], [0, edge], [edge, -edge]):
            noisy = add(np.array(total), 2.0, 1.0, Stream(bytes(32)))
            assert np.abs(noisy - np.array(total)).max() < 100
        for total in ([beyond], [0, beyond, 5], [beyond, -beyond]):
            with pytest.raises(ConfigError, match="exceeds"):
                add(np.array(total), 2.0, 1.0, Stream(bytes(32)))
    with pytest.raises(ConfigError, match="int64"):
        protect_sum(np.zeros(3, np.int32), 2.0, 1.0, Stream(bytes(32)))
    assert len(protect_sum(np.zeros(0, np.int64), 2.0, 1.0, Stream(bytes(32)))) == 0
