"""Clipping against exact arithmetic: norms are recomputed with rational numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil.privacy.clipping import Clip, clip_factors, clip_rows, surely_inside

FLOATS = [np.float32, np.float64]


def exact_power_norm(vector: npt.NDArray[Any], order: int) -> Fraction:
    """The exact sum of |x|^order, over the distinct values so that long vectors stay cheap."""
    values, counts = np.unique(np.abs(vector), return_counts=True)
    total = Fraction(0)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        total += count * Fraction(value) ** order
    return total


def is_within(vector: npt.NDArray[Any], clip: Clip) -> bool:
    return exact_power_norm(vector, clip.order) <= Fraction(clip.norm) ** clip.order


@cache
def adversarial_vectors() -> dict[str, npt.NDArray[np.float64]]:
    rng = np.random.default_rng(5)
    few = rng.normal(size=1000).round(2)  # few distinct values: exact norms stay cheap
    return {
        "one": np.array([1.0]),
        "minus huge": np.array([-3.4e38]),
        "subnormals": np.full(1000, 1e-45),
        "one subnormal": np.array([1.4e-45]),
        "1e38s": np.full(1_000_000, 1e38),
        "one large, many small": np.concatenate([[1e38], np.full(999_999, 1e-38)]),
        "one unit, many tiny": np.concatenate([[1.0], np.full(999_999, 1e-7)]),
        "a million equal": np.full(1_000_000, 0.3),
        "ordinary": few,
        "mixed scales": few * 10.0 ** rng.integers(-40, 38, size=1000),
        "largest": np.full(3, np.finfo(np.float32).max, dtype=np.float64),
    }


@dataclass(frozen=True)
class Alone:
    """One vector, clipped as a row of its own."""

    values: Any
    factor: float
    finite: bool


def clip_vector(vector: Any, clip: Clip) -> Alone:
    given = vector[None]
    rows = clip_rows(given, clip)
    values = vector if rows.values is given else rows.values[0]
    return Alone(values, float(rows.factors[0]), bool(rows.finite[0]))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bound", [1e-44, 1e-30, 0.1, 1.0, 3.0, 1e30])
@pytest.mark.parametrize("name", list(adversarial_vectors()))
def test_exact_norm_never_exceeds_the_bound(name, bound, dtype, order):
    clip = Clip(bound, order)
    vector = adversarial_vectors()[name].astype(dtype)
    clipped = clip_vector(vector, clip)
    assert clipped.finite
    assert clipped.values.dtype == dtype
    assert is_within(clipped.values, clip)
    inside = is_within(vector, clip)
    assert inside or not surely_inside(vector[None], clip)
    if inside:
        assert clipped.values is vector
    elif bound > 1e-40:  # above the smallest floats, nearly the whole bound is used
        steps = np.finfo(dtype).smallest_subnormal * len(vector)
        used = float(exact_power_norm(clipped.values, order)) ** (1 / order)
        assert used >= bound * (1 - 1e-6) - steps


@settings(max_examples=300, deadline=None)
@given(
    vector=st.sampled_from(FLOATS).flatmap(
        lambda dtype: npst.arrays(
            dtype,
            st.integers(0, 12),
            elements=st.floats(
                width=32 if dtype is np.float32 else 64, allow_nan=False, allow_infinity=False
            ),
        )
    ),
    bound=st.floats(1e-300, 1e300),
    order=st.sampled_from([1, 2]),
)
def test_any_vector_and_bound(vector, bound, order):
    clip = Clip(bound, order)
    before = vector.copy()
    clipped = clip_vector(vector, clip)
    assert is_within(clipped.values, clip)
    np.testing.assert_array_equal(vector, before)
    assert is_within(vector, clip) or not surely_inside(vector[None], clip)
    if is_within(vector, clip):
        assert clipped.values.tobytes() == vector.tobytes()
        assert clipped.factor == 1.0
    else:
        assert 0.0 <= clipped.factor < 1.0
    again = clip_vector(clipped.values, clip)
    assert again.values.tobytes() == clipped.values.tobytes()


@pytest.mark.parametrize("order", [1, 2])
def test_clipped_rows_are_known_to_be_inside_and_rows_that_are_not_finite_are_not(
    order: int,
) -> None:
    clip, rows = Clip(0.5, order), np.random.default_rng(2).normal(size=(40, 3000))
    clipped = clip_rows(rows.astype(np.float32), clip).values
    assert surely_inside(clipped, clip)
    for bad in (np.nan, np.inf):
        clipped[7, 5] = bad
        for bound in (0.5, 1e160):
            assert not surely_inside(clipped, Clip(bound, order))


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=6),
    dtype=st.sampled_from(FLOATS),
    order=st.sampled_from([1, 2]),
    nudge=st.sampled_from([-1, 0, 1]),
)
def test_vectors_within_one_rounding_of_the_bound_are_decided_exactly(values, dtype, order, nudge):
    """The bound is the norm itself, or a neighbouring double: no float sum could tell."""
    vector = np.array(values, dtype=dtype)
    power = exact_power_norm(vector, order)
    bound = float(power) if order == 1 else math.sqrt(power)
    bound = {-1: math.nextafter(bound, 0), 0: bound, 1: math.nextafter(bound, math.inf)}[nudge]
    if not bound > 1e-40:
        return
    clip = Clip(bound, order)
    clipped = clip_vector(vector, clip)
    assert (clipped.values is vector) == is_within(vector, clip)
    assert is_within(clipped.values, clip)


def test_pythagorean_vectors_on_the_sphere_are_returned_unchanged():
    for dtype in FLOATS:
        vector = np.array([3.0, -4.0, 0.0], dtype=dtype)
        assert clip_vector(vector, Clip(5.0)).values is vector
        assert clip_vector(vector, Clip(7.0, 1)).values is vector
    equal = np.full(1 << 20, 2.0**-10, dtype=np.float32)
    assert clip_vector(equal, Clip(1.0)).values is equal


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_contributes_exactly_zero(bad, dtype, order):
    rows = np.ones((4, 5), dtype=dtype)
    rows[2, 3] = bad
    rows[3] *= 100
    clipped = clip_rows(rows, Clip(2.0, order))
    assert clipped.finite.tolist() == [True, True, False, True]
    assert clipped.rejected == 1
    assert not clipped.values[2].any()
    assert clipped.factors[2] == 0.0
    assert np.isfinite(clipped.values).all()
    assert all(is_within(row, Clip(2.0, order)) for row in clipped.values)
    vector = clip_vector(rows[2], Clip(2.0, order))
    assert not vector.finite
    assert vector.values.tolist() == [0.0] * 5
    assert math.isnan(rows[2, 3]) or math.isinf(rows[2, 3])


def test_squared_norms_that_overflow_are_handled():
    vector = np.full(7, 1e38, dtype=np.float32)
    np.testing.assert_allclose(clip_vector(vector, Clip(1.0)).values, 7**-0.5, rtol=1e-6)
    wide = np.array([1e308, 1e308, 1.0])
    np.testing.assert_allclose(clip_vector(wide, Clip(2.0)).values[:2], 2**0.5, rtol=1e-9)
    tiny = np.array([3e-300, 4e-300])
    np.testing.assert_allclose(clip_vector(tiny, Clip(1e-300)).values, [6e-301, 8e-301], rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_among_subnormals_does_not_lengthen(dtype, order):
    """Three least steps, scaled by 0.6, round up to two: a sixth longer than allowed."""
    step = float(np.finfo(dtype).smallest_subnormal)
    vector = np.full(1000, 3 * step, dtype=dtype)
    bound = step * (1800 if order == 1 else math.floor(1.8 * math.sqrt(1000)))
    assert is_within(clip_vector(vector, Clip(bound, order)).values, Clip(bound, order))


def test_in_place_clips_the_given_memory():
    for array in (np.full((3, 4), 9.0, np.float32), torch.full((3, 4), 9.0)):
        array[1] = math.nan
        clipped = clip_rows(array, Clip(1.0), in_place=True)
        assert clipped.values is array
        assert float(array[0, 0]) == pytest.approx(0.5)
        assert float(abs(array[1]).sum()) == 0.0


@settings(max_examples=200, deadline=None)
@given(
    norms=st.lists(st.floats(0, 2.0**127, width=32), min_size=1, max_size=20),
    bound=st.floats(1e-20, 1e20),
    error=st.sampled_from([0.0, 1e-6, 0.01]),
)
def test_factors_from_norms_bring_every_norm_inside(norms, bound, error):
    given_norms = np.array(norms, dtype=np.float32)
    factors = clip_factors(given_norms, Clip(bound), relative_error=error)
    for norm, factor in zip(given_norms.tolist(), factors.tolist(), strict=True):
        worst = Fraction(norm) * (1 + Fraction(error))
        assert Fraction(factor) * worst <= Fraction(bound)
        if worst <= Fraction(bound) * Fraction(1 - 1e-9):
            assert factor == 1.0
        elif bound / float(worst) > 1e-30:
            assert factor * float(worst) >= bound * (1 - 1e-6)


def test_factors_of_norms_that_are_no_numbers_are_zero():
    norms = torch.tensor([1.0, math.nan, math.inf, -1.0, 0.0, 4.0])
    factors = clip_factors(norms, Clip(2.0))
    assert isinstance(factors, torch.Tensor)
    assert factors[:5].tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert float(factors[5]) == pytest.approx(0.5)


def test_a_clip_reports_its_own_sensitivity():
    """Attained: one unit at +C beside its absence, its zeroing, or its replacement by -C."""
    clip = Clip(3.0)
    unit = clip_vector(np.array([50.0, 0.0]), clip).values
    other = clip_vector(np.array([-50.0, 0.0]), clip).values
    moved = {
        Adjacency.ADD_REMOVE: np.linalg.norm(unit),
        Adjacency.ZERO_OUT: np.linalg.norm(unit - 0.0),
        Adjacency.REPLACE: np.linalg.norm(unit - other),
    }
    for adjacency, distance in moved.items():
        assert distance <= clip.sensitivity(adjacency)
        assert distance == pytest.approx(clip.sensitivity(adjacency))


def test_bad_arguments_are_named():
    for norm in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="clip_norm"):
            Clip(norm)
    with pytest.raises(ConfigError, match="order"):
        Clip(1.0, 3)
    with pytest.raises(ConfigError, match="rows"):
        clip_rows(np.array([[1, 2]]), Clip(1.0))
    with pytest.raises(ConfigError, match="rows"):
        clip_rows(torch.ones(1, 3, dtype=torch.bfloat16), Clip(1.0))
    with pytest.raises(ConfigError, match="dimension"):
        clip_rows(np.ones(2), Clip(1.0))
    with pytest.raises(ConfigError, match="rows"):
        clip_rows([[1.0]], Clip(1.0))
