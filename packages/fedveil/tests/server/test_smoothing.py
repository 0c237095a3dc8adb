"""Laplacian smoothing against the Fourier form, golden numbers and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil.core.errors import ConfigError
from fedveil.training.models.flat import Layout, layout_of
from fedveil.training.server.smoothing import (
    AUTO,
    STRENGTHS,
    Order,
    Smoothing,
    best_strength,
    smooth,
    stein_risk,
)


def fourier(vector: np.ndarray, strength: float) -> np.ndarray:
    """Liang, eq. 2, with complex numbers and double precision."""
    d = len(vector)
    ring = np.zeros(d)
    ring[0] -= 2
    ring[1 % d] += 1
    ring[-1 % d] += 1  # for d = 2 both neighbours are one node, for d = 1 the node itself
    return np.fft.ifft(np.fft.fft(vector) / (1 - strength * np.fft.fft(ring))).real


@given(
    st.integers(1, 70) | st.sampled_from([127, 128, 1000, 99_991]),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32 - 1),
)
def test_linear_time_equals_the_fourier_form(length: int, strength: float, seed: int) -> None:
    vector = np.random.default_rng(seed).normal(size=length).astype(np.float32)
    expected = fourier(vector.astype(np.float64), strength)
    # The solve is backward stable in float32: it solves a system whose entries, of at most
    # 1 + 4 s in a row, and whose right side are off by a few roundings. The inverse has norm 1.
    largest = np.abs(vector).max() + (1 + 4 * strength) * np.abs(expected).max()
    assert np.abs(smooth(vector.copy(), strength) - expected).max() <= 2.0**-21 * largest


def test_golden_impulse() -> None:
    impulse = np.zeros(8, dtype=np.float32)
    impulse[0] = 1
    golden = [0.447619, 0.171429, 0.066667, 0.028571, 0.019048, 0.028571, 0.066667, 0.171429]
    np.testing.assert_allclose(smooth(impulse, 1.0), golden, atol=6e-7)


@pytest.mark.parametrize(
    ("strength", "factor"), [(0.5, 0.384900), (1, 0.268328), (2, 0.185185), (3, 0.149342)]
)
def test_golden_variance_factor(strength: float, factor: float) -> None:
    # Noise variance after smoothing is the squared norm of the smoothed impulse, exactly.
    impulse = np.zeros(4001, dtype=np.float32)
    impulse[17] = 1
    assert float(np.square(smooth(impulse, strength)).sum()) == pytest.approx(factor, rel=1e-5)
    assert factor == pytest.approx((1 + 2 * strength) / (1 + 4 * strength) ** 1.5, rel=1e-5)


@given(st.integers(1, 300), st.floats(0.01, 100))
def test_the_mean_is_kept_and_constants_do_not_move(length: int, strength: float) -> None:
    vector = np.random.default_rng(length).normal(size=length).astype(np.float32)
    smoothed = smooth(vector.copy(), strength)
    assert float(smoothed.mean()) == pytest.approx(float(vector.mean()), abs=3e-5)
    constant = np.full(length, 2.5, dtype=np.float32)
    np.testing.assert_allclose(smooth(constant, strength), constant, rtol=1e-4)


def layout() -> Layout:
    return layout_of(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(5, 4)))


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("flat", [False, True], ids=["per tensor", "flat"])
def test_tensors_are_smoothed_in_the_chosen_order(order: Order, flat: bool) -> None:
    shape = layout()
    update = torch.from_numpy(np.random.default_rng(1).normal(size=shape.size)).float()
    before = update.clone()
    axes = {"out": (0,), "in": (1,), "kernel": (2, 3)}
    permutation = [axis for part in str(order).split("-") for axis in axes[part]]
    inverse = np.argsort(permutation)

    parts = {name: value.numpy() for name, value in shape.views(update).items()}
    parts["0.weight"] = parts["0.weight"].transpose(permutation)
    flats = [part.reshape(-1).astype(float) for part in parts.values()]
    if flat:
        joined = fourier(np.concatenate(flats), 1.5)
        flats = np.split(joined, np.cumsum([len(part) for part in flats])[:-1])
    else:
        flats = [fourier(part, 1.5) for part in flats]
    moved = tuple(parts["0.weight"].shape)
    flats[0] = flats[0].reshape(moved).transpose(inverse).reshape(-1)

    smoothed = Smoothing(1.5, flat, order)(update, shape)
    np.testing.assert_allclose(smoothed.numpy(), np.concatenate(flats), atol=2e-6)
    assert torch.equal(update, before)  # the released update itself is not touched


def test_strength_zero_changes_nothing() -> None:
    update = torch.arange(float(layout().size))
    assert torch.equal(Smoothing(0.0)(update, layout()), update)


@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf])
def test_a_bad_strength_is_refused(strength: float) -> None:
    with pytest.raises(ConfigError, match="smoothing"):
        Smoothing(strength)


def bump(length: int) -> np.ndarray:
    """A smooth signal: one slow wave."""
    return np.sin(2 * np.pi * np.arange(length) / length)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", [2, 7, 64])
@pytest.mark.parametrize(("strength", "factor"), [(0.0, 0.4), (1.0, 1.0), (5.0, 0.7)])
def test_steins_estimate_is_the_true_risk_on_average(
    length: int, strength: float, factor: float
) -> None:
    """Over 20,000 draws of Laplace noise, which a linear estimate allows as well as Gaussian noise.

    Six standard errors: one false alarm in 5e8 by the normal law, and the seed is fixed.
    """
    draw, truth, deviation = np.random.default_rng(5), bump(length), 0.8
    released = truth + draw.laplace(scale=deviation / math.sqrt(2), size=(20_000, length))
    differences = []
    for one in released.astype(np.float32):
        error = np.square(factor * smooth(one.copy(), strength) - truth).sum()
        differences.append(stein_risk(one, deviation, strength, factor) - error)
    mean, spread = np.mean(differences), np.std(differences) / math.sqrt(len(differences))
    assert abs(mean) < 6 * spread
    # The test has the power to see a wrong trace: without the noise's share it fails.
    assert 2 * factor * deviation**2 > 6 * spread


def test_the_best_strength_follows_signal_and_noise() -> None:
    draw = np.random.default_rng(6)
    slow, white = 3 * bump(400), draw.standard_normal(400)
    noise = draw.standard_normal(400)
    assert best_strength((slow + white + 0.01 * noise).astype(np.float32), 0.01) == 0.0
    assert best_strength((slow + 3 * noise).astype(np.float32), 3.0) == STRENGTHS[-1]
    assert best_strength((3 * white + noise).astype(np.float32), 1.0) <= 0.1
    assert best_strength(np.zeros(5, dtype=np.float32), 1.0) == 0.0


def test_an_automatic_strength_looks_at_all_rounds_and_keeps_the_released_sum() -> None:
    layout = layout_of(nn.Linear(200, 1, bias=False))
    automatic = Smoothing(AUTO)
    draw, signal = np.random.default_rng(7), 0.2 * bump(200)
    state: dict[str, torch.Tensor] = {}
    total = np.zeros(200, dtype=np.float32)
    for _ in range(30):
        average = (signal + draw.standard_normal(200)).astype(np.float32)
        total += average
        smoothed, state = automatic.step(torch.from_numpy(average), layout, 1.0, state)
        wanted = best_strength(total, math.sqrt(_ + 1))
        np.testing.assert_array_equal(smoothed, smooth(average, wanted) if wanted else average)
    assert sorted(state) == ["smoothing_total", "smoothing_variance"]
    with pytest.raises(ConfigError, match=r"server\.smoothing"):
        automatic.step(torch.from_numpy(total), layout, None, {})


@pytest.mark.parametrize("wrong", ["strong", -1.0, math.inf])
def test_impossible_strengths_are_refused(wrong: float | str) -> None:
    with pytest.raises(ConfigError, match=r"server\.smoothing"):
        Smoothing(wrong)
