"""BLUR, LUS, rotation and the modular grid: the papers' numbers and the laws of each part."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedveil as fv
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.grid import snap_conditional
from fedveil.privacy.noise.integers import discrete_gaussian
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyVectors, proportional
from fedveil.training.client.rotation import Rotation, hadamard
from fedveil.training.client.update_pipeline import sparsify
from fedveil.training.engines.local_sgd import local_updates
from fedveil.training.engines.records import Batch
from fedveil.training.models.flat import Layout, Slot


class FixedGradients:
    """A client whose k-th gradient is a given number, whatever its weights."""

    def __init__(self, values: list[float]) -> None:
        self.steps, self.active = np.array([len(values)]), [1] * len(values)
        self._values = values

    def __len__(self) -> int:
        return 1

    def batch(self, step: int) -> Batch:
        return torch.tensor([[float(self._values[step])]]), torch.zeros(1, 1), None

    def __call__(
        self, weights: Tensor, batch: Batch, clip: fv.GradientClip | None, denominator: float
    ) -> tuple[Tensor, Tensor]:
        return batch[0].clone(), torch.zeros(1)


def blur(gradients: list[float], rate: float, penalty: float, radius: float) -> float:
    rule = fv.LocalTraining(
        fv.LearningRate(rate), steps=len(gradients), penalty=penalty, penalty_radius=radius
    )
    client = FixedGradients(gradients)
    moved, _ = local_updates(torch.zeros(1), client, rule, [rate] * len(gradients), client, ())
    return float(moved)


@pytest.mark.parametrize(
    ("radius", "displacement", "lemma"), [(1.0, 0.56, 0.908), (0.5, 0.3512, 0.9344)]
)
def test_blur_on_golden_numbers(radius, displacement, lemma):
    found = blur([-6, -6, 3, 3, -2], 0.1, 2.0, radius)
    assert found == pytest.approx(displacement, abs=1e-6)
    assert found != pytest.approx(lemma, abs=0.1)  # what the paper's Lemma 2 says


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0.01, 3), st.floats(0.05, 2))
def test_blur_discounts_gradients_by_later_steps_outside_the_ball(gradients, penalty, radius):
    """gamma_q = prod_{j > q} (1 - lambda eta [|w_j - w_t| > S]), with w_j found step by step."""
    rate = 0.1
    outside, moved = [], 0.0
    for gradient in gradients:
        outside.append(abs(moved) > radius)
        moved -= rate * (gradient + penalty * moved * outside[-1])
    closed = 0.0
    for q, gradient in enumerate(gradients):
        gamma = math.prod(1 - penalty * rate * far for far in outside[q + 1 :])
        closed -= rate * gamma * gradient
    assert closed == pytest.approx(moved, abs=1e-9)
    near = any(abs(abs(w) - radius) < 1e-4 for w in _path(gradients, rate, penalty, radius))
    if not near:  # single precision may fall on the other side of the ball's border
        assert blur(gradients, rate, penalty, radius) == pytest.approx(moved, abs=1e-4)


def _path(gradients: list[float], rate: float, penalty: float, radius: float) -> list[float]:
    places, moved = [], 0.0
    for gradient in gradients:
        moved -= rate * (gradient + penalty * moved * (abs(moved) > radius))
        places.append(moved)
    return places


TWO_TENSORS = Layout((Slot("weight", (2, 3), 0), Slot("bias", (4,), 6)))


def test_lus_keeps_the_largest_of_each_tensor():
    update = torch.tensor([[1.0, -2, 3, -4, 5, -6, 10, 20, 30, 40]])
    gradient = torch.tensor([[9.0, 1, 1, 1, 1, 1, 4, 3, 1, 0.1]])
    # Tensor 1: |g u| = 9 2 3 4 5 6, keep the 3 largest; tensor 2: 40 60 30 4, keep 2.
    sparsify(update, gradient, TWO_TENSORS, 0.5)
    assert update.tolist() == [[1, 0, 0, 0, 5, -6, 10, 20, 0, 0]]


@given(st.floats(0, 0.99), st.integers(0, 2**32 - 1))
def test_lus_keeps_at_least_s_and_never_lengthens(sparsity, seed):
    draw = np.random.default_rng(seed)
    update = torch.from_numpy(draw.normal(size=(3, 10)))
    before = update.clone()
    sparsify(update, torch.from_numpy(draw.normal(size=(3, 10))), TWO_TENSORS, sparsity)
    for part in (slice(0, 6), slice(6, 10)):
        size = part.stop - part.start
        assert ((update[:, part] != 0).sum(dim=1) == size - math.floor(sparsity * size)).all()
    kept = update != 0
    assert torch.equal(update[kept], before[kept])


@pytest.mark.parametrize("levels", range(12))
def test_the_fast_hadamard_transform_is_the_matrix(levels):
    width = 1 << levels
    rows = torch.from_numpy(np.random.default_rng(levels).normal(size=(3, width)))
    expected = rows.numpy() @ scipy.linalg.hadamard(width).T
    np.testing.assert_allclose(hadamard(rows).numpy(), expected, atol=1e-9)


@given(st.integers(1, 70), st.integers(0, 5))
def test_a_rotation_keeps_lengths_and_can_be_undone(size, round_number):
    rows = torch.from_numpy(np.random.default_rng(size).normal(size=(2, size)))
    rotated = Rotation(3).forward(rows, round_number)
    assert rotated.shape[1] == 1 << (size - 1).bit_length()
    torch.testing.assert_close(rotated.norm(dim=1), rows.norm(dim=1))
    back = Rotation(3).backward(rotated.sum(dim=0), round_number, size)
    torch.testing.assert_close(back, rows.sum(dim=0))


def test_a_rotation_spreads_a_spike_and_changes_every_round():
    spike = torch.zeros(1, 1024)
    spike[0, 17] = 1
    torch.testing.assert_close(Rotation().forward(spike, 0).abs(), torch.full((1, 1024), 1 / 32))
    flat = torch.ones(1, 1024) / 32
    spread = Rotation().forward(flat, 0)
    assert spread.abs().max() < 6 / 32  # without signs, all of it would be in one coordinate
    assert not torch.equal(spread, Rotation().forward(flat, 1))


@given(st.integers(2, 64), st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9))
def test_centring_is_reduction_modulo_a_power_of_two(bits, values):
    centred = ModularGrid(1.0, bits).centre(np.array(values, dtype=np.int64))
    for value, found in zip(values, centred.tolist(), strict=True):
        assert (value - found) % 2**bits == 0
        assert -(2 ** (bits - 1)) <= found < 2 ** (bits - 1)


def simulated_wraps(summands: NoisyVectors, granularity: float, bits: int, trials: int) -> int:
    """How many of `trials` sums of worst-case clients leave the modulus in some coordinate.

    The worst case: all clients send the same vector of full length (here a different one in every
    trial), rotated by that trial's signs.
    """
    draw = np.random.default_rng(bits)
    mechanism = fv.DiscreteGaussianSum(
        summands.clip_norm, granularity, summands.share_std, summands.count, summands.width
    )
    wraps = 0
    for trial in range(trials):
        vector = draw.normal(size=summands.width)
        vector *= summands.clip_norm / np.linalg.norm(vector)
        rotated = Rotation(trial).forward(
            torch.from_numpy(vector)[None].repeat(summands.count, 1), 0
        )
        stream = Stream(trial.to_bytes(32, "little"))
        total = snap_conditional(rotated.numpy(), mechanism, stream).sum(axis=0)
        for _ in range(summands.count):
            total += discrete_gaussian(stream, summands.width, summands.share_std / granularity)
        wraps += bool(np.any((total < -(2 ** (bits - 1))) | (total >= 2 ** (bits - 1))))
    return wraps


@pytest.mark.parametrize("likely", [0.2, 1e-2])
def test_sums_wrap_no_more_often_than_stated(likely):
    """False-alarm rate below 1e-6 if the stated probability were exact; it is an upper bound."""
    summands = NoisyVectors(count=8, clip_norm=1.0, share_std=0.3, width=64)
    granularity = summands.rotated_granularity(likely, None)
    bits = summands.rotated_bits(granularity, likely)
    trials = 300
    allowed = likely * trials + 5 * math.sqrt(likely * trials) + 3
    assert simulated_wraps(summands, granularity, bits, trials) <= allowed
    # Two bits fewer are too few: the statement is not empty.
    assert simulated_wraps(summands, granularity, bits - 2, 60) > 30


def test_rounding_lengthens_a_rotated_update_by_about_a_percent_at_most():
    for width in (2**6, 2**10, 2**20):
        summands = NoisyVectors(count=100, clip_norm=0.7, share_std=0.1, width=width)
        grid = summands.rotated_granularity(1e-6, None)
        assert summands.share_std / grid >= 2
        reach = fv.DiscreteGaussianSum(0.7, grid, 0.1, 100, width).grid_sensitivity()[0] * grid
        assert 0.7 < reach < 0.7 * 1.012


@given(st.floats(1e-3, 1e3))
def test_another_clips_grid_is_never_coarser_beside_it(norm):
    other = proportional(2.0**-9, 0.3, norm)
    assert math.frexp(other)[0] == 0.5
    assert other / norm * (1 + 1e-12) > 0.5 * 2.0**-9 / 0.3
    assert other / norm <= 2.0**-9 / 0.3 * (1 + 1e-12)
