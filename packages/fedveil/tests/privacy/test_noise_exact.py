"""The exact integer samplers against closed-form probabilities, brute force and a slow reference.

Statistical tests use fixed keys. Each rejects at p < 1e-6, so with about 60 of them a fresh set of
keys would raise a false alarm less than once in ten thousand times.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.privacy.noise_reference import discrete_gaussian_reference

from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.integers import discrete_gaussian, rounded_gaussian, rounded_laplace
from fedveil.privacy.noise.slabs import (
    MARGIN,
    Curve,
    LazyUniform,
    SlabSampler,
    exp_bounds,
    lay_out,
)

FALSE_ALARM = 1e-6

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


def key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def discrete_gaussian_cdf(edges: Reals, std: float) -> Reals:
    """P(K < edge), by summing the whole probability mass."""
    support = np.arange(-math.ceil(40 * std) - 2, math.ceil(40 * std) + 3)
    mass = np.exp(-(support.astype(float) ** 2) / (2 * std * std))
    below = np.concatenate([[0.0], np.cumsum(mass / mass.sum())])
    return below[np.searchsorted(support, edges)]


def smooth_gaussian_cdf(edges: Reals, std: float) -> Reals:
    """P(K < edge) for a rounded Gaussian; within 1e-15 also for a discrete one of std >= 2."""
    return stats.norm.cdf((edges - 0.5) / std)


def discrete_laplace_cdf(edges: Reals, scale: float) -> Reals:
    """P(K < edge), closed form of the two geometric sums."""
    ratio = math.exp(-1.0 / scale)
    weight = 1.0 / (1.0 + ratio)
    left = weight * np.exp((np.minimum(edges, 1) - 1) / scale)
    right = 1.0 - weight * np.exp(-np.maximum(edges, 1) / scale)
    return np.where(edges <= 0, left, right)


def smooth_laplace_cdf(edges: Reals, scale: float) -> Reals:
    """P(K < edge) for a rounded Laplace."""
    return stats.laplace.cdf((edges - 0.5) / scale)


def assert_distributed(draws: Integers, cdf: Callable[[Reals], Reals], spread: float) -> None:
    """Chi-square over up to 200 bins with an expected count of at least 20 each."""
    reach = 8 * spread + 2
    edges = np.unique(np.rint(np.linspace(-reach, reach, 200)))
    below = np.concatenate([[0.0], cdf(edges), [1.0]])
    expected = np.diff(below) * len(draws)
    observed = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(edges) + 1)
    groups = _pool(expected, 20.0)
    expected, observed = np.bincount(groups, expected), np.bincount(groups, observed)
    assert len(expected) >= 2
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert stats.chi2.sf(statistic, len(expected) - 1) > FALSE_ALARM


def _pool(expected: Reals, least: float) -> Integers:
    """Group neighbouring bins, from both ends inwards, until each expects `least`."""
    groups = np.empty(len(expected), dtype=np.int64)
    group, total = 0, 0.0
    for index, count in enumerate(expected):
        groups[index] = group
        total += count
        if total >= least and expected[index + 1 :].sum() >= least:
            group, total = group + 1, 0.0
    return groups


FAST = [
    pytest.param(discrete_gaussian, discrete_gaussian_cdf, id="discrete-gaussian"),
    pytest.param(rounded_gaussian, smooth_gaussian_cdf, id="rounded-gaussian"),
    pytest.param(rounded_laplace, smooth_laplace_cdf, id="rounded-laplace"),
]
WIDE = [pytest.param(discrete_gaussian, smooth_gaussian_cdf, id="discrete-gaussian"), *FAST[1:]]
CURVES = [(True, False), (True, True), (False, True)]  # a bell?, continuous?


def test_only_the_rounded_laplace_is_covered_by_the_continuous_curve():
    """Hockey-stick divergence between a variable and its shift by one unit of sensitivity (5 grid
    units), at half the pure epsilon: rounding stays below the continuous value, discreteness
    does not. So composed Laplace releases may be accounted by the continuous curve only if what
    is drawn is rounded."""
    scale, shift = 4.0, 5
    epsilon = shift / scale / 2
    support = np.arange(-400, 401).astype(float)

    def divergence(cdf):
        mass = cdf(support + 1, scale) - cdf(support, scale)
        moved = cdf(support + 1 - shift, scale) - cdf(support - shift, scale)
        return float(np.maximum(mass - math.exp(epsilon) * moved, 0.0).sum())

    continuous = 1.0 - math.exp((epsilon - shift / scale) / 2)
    assert divergence(smooth_laplace_cdf) <= continuous
    assert divergence(discrete_laplace_cdf) > continuous


@given(
    st.integers(0, 2**90),
    st.integers(1, 2**90),
    st.sampled_from([8, 64, 128, 300]),
)
def test_bounds_on_the_exponential_enclose_it_closely(n, d, bits):
    low, high = exp_bounds(n, d, bits)
    with mpmath.workprec(bits + 200):
        truth = mpmath.exp(-mpmath.mpf(n) / d) * mpmath.mpf(2) ** bits
        assert low <= truth <= high
    assert high - low <= 2


@pytest.mark.parametrize("spread", [0.3, 0.7, 1.0, 5.5, 64.0, 127.9, 128.0, 1000.3])
@pytest.mark.parametrize(("draw", "cdf"), FAST)
def test_frequencies_follow_the_probability_mass(draw, cdf, spread):
    draws = draw(Stream(key(f"mass {spread}")), 1_000_000, spread)
    assert_distributed(draws, lambda edges: cdf(edges, spread), spread)


@pytest.mark.parametrize("spread", [2.0**17 + 0.25, 2.0**30 - 1, 2.0**45])
@pytest.mark.parametrize(("draw", "cdf"), WIDE)
def test_wide_noise_has_the_right_shape_and_uniform_low_bits(draw, cdf, spread):
    draws = draw(Stream(key(f"wide {spread}")), 1_000_000, spread)
    assert_distributed(draws, lambda edges: cdf(edges, spread), spread)
    counts = np.bincount(draws & 1023, minlength=1024)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reach", [1, 3, None])
@pytest.mark.parametrize("margin", [MARGIN, 1e9], ids=["floats", "integers"])
@pytest.mark.parametrize(
    ("bell", "continuous", "cdf"),
    [
        pytest.param(True, False, discrete_gaussian_cdf, id="discrete-gaussian"),
        pytest.param(True, True, smooth_gaussian_cdf, id="rounded-gaussian"),
        pytest.param(False, True, smooth_laplace_cdf, id="rounded-laplace"),
    ],
)
@pytest.mark.parametrize("spread", [0.4, 3.3, 150.0])
def test_every_path_has_the_same_distribution(bell, continuous, cdf, spread, margin, reach):
    """A small table makes the tested slabs common, `margin=1e9` sends all of them through the
    integer path, and a short reach sends a good part of the draws through the tails."""
    layout = lay_out(
        Curve(Fraction(spread), bell),
        continuous=continuous,
        reach=None if reach is None else reach * Fraction(spread),
    )
    entry_bits = max(6, (10 * layout.cells).bit_length())
    sampler = SlabSampler(layout, entry_bits=entry_bits, margin=margin)
    draws = sampler.draw(
        Stream(key(f"paths {spread} {margin} {reach}")), 6_000 if reach else 20_000
    )
    assert_distributed(draws, lambda edges: cdf(edges, spread), spread)


@pytest.mark.parametrize("spread", [0.3, 64.0, 129.0, 2.0**30])
@pytest.mark.parametrize(("bell", "continuous"), CURVES)
def test_table_accepts_outright_only_what_lies_under_the_curve(bell, continuous, spread):
    """With `test_every_path...` this is the exactness proof: slabs that skip the test are under
    the curve everywhere, and the slabs of a cell reach at least as high as the curve."""
    layout = lay_out(Curve(Fraction(spread), bell), continuous=continuous)
    sampler = SlabSampler(layout)
    assert len(sampler._lookup) == 2**16
    decided = sampler._lookup != np.iinfo(np.int64).min
    rows = 2 * layout.cells
    slabs = np.bincount(sampler._row, minlength=rows + 2)
    skipping = np.bincount(sampler._row, decided, minlength=rows + 2).astype(int)
    assert skipping[rows:].sum() == 0
    with mpmath.workprec(200):

        def height(x):
            wide = mpmath.mpf(spread)
            return sampler.height * mpmath.exp(-((x / wide) ** 2) / 2 if bell else -abs(x) / wide)

        half = mpmath.mpf(1) / 2 if continuous else 0
        size = mpmath.mpf(2) ** layout.shift
        span = size if continuous else size - 1
        for row in range(0, rows, 7):
            low = (row - layout.cells) * size - half
            ends = [height(low), height(low + span)]
            top = sampler.height if low <= 0 <= low + span else max(ends)
            assert skipping[row] <= min(ends)
            assert slabs[row] >= top
    inside = sampler._row < rows
    starts = (np.arange(rows) - layout.cells) * 2.0**layout.shift
    expected = np.floor(starts)[sampler._row[inside & decided]].astype(np.int64)
    np.testing.assert_array_equal(sampler._lookup[inside & decided], expected)


@pytest.mark.parametrize("spread", [0.25, 0.3, 64.0, 129.0, 1000.3, 2.0**30, 2.0**46])
@pytest.mark.parametrize(("bell", "continuous"), CURVES)
def test_heights_in_double_precision_keep_the_proved_error(bell, continuous, spread):
    """Error at most 2^-45 (height + 1), at the ends and at random places of every tenth cell."""
    layout = lay_out(Curve(Fraction(spread), bell), continuous=continuous)
    sampler = SlabSampler(layout)
    rng = np.random.default_rng(0)
    size = 2.0**layout.shift
    rows = np.repeat(np.arange(0, 2 * layout.cells, 10), 4)
    along = rng.random(len(rows)) * size
    along[::4], along[1::4] = 0.0, size * (1 - 2.0**-48)
    if not continuous:
        along = np.floor(along)
    heights = sampler._heights(rows, along)
    with mpmath.workprec(200):
        for row, place, height in zip(rows.tolist(), along.tolist(), heights.tolist(), strict=True):
            x = (row - layout.cells) * mpmath.mpf(2) ** layout.shift + mpmath.mpf(place)
            x = (x - mpmath.mpf(1) / 2 if continuous else x) / mpmath.mpf(spread)
            truth = sampler.height * mpmath.exp(-(x**2) / 2 if bell else -abs(x))
            assert abs(height - truth) <= mpmath.mpf(2) ** -45 * (truth + 1)


class Scripted(Stream):
    """A stream whose words are given; asking for more than there are is an error."""

    def __init__(self, words: list[int]) -> None:
        self.left = list(words)

    def fill(self, out: npt.NDArray[np.uint8]) -> None:
        view = out.view(np.uint64)
        for index in range(len(view)):
            view[index] = self.left.pop(0)


def sampler_of(*, continuous: bool) -> SlabSampler:
    """A bell 64 wide and, at its top, 400 slabs high."""
    sampler = SlabSampler(lay_out(Curve(Fraction(64), True), continuous=continuous))
    sampler.height = 400
    return sampler


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_an_ambiguous_draw_is_decided_by_as_many_bits_as_it_takes(beyond):
    """The trial agrees with the true threshold in its first 128 bits; only the third word tells."""
    sampler = sampler_of(continuous=False)
    height, slab = 400, 398
    with mpmath.workprec(400):
        threshold = height * mpmath.exp(-(mpmath.mpf(5) ** 2) / (2 * 64**2)) - slab
        assert 0 < threshold < 1
        digits = int(mpmath.floor(threshold * mpmath.mpf(2) ** 192))
    digits += beyond
    stream = Scripted([digits >> 64 & (2**64 - 1), digits & (2**64 - 1), 0])
    trial = LazyUniform(stream, digits >> 128, 64)
    kept = sampler.under_cell(5, slab, LazyUniform(stream, 0, 48), trial)
    if beyond:
        assert kept == (beyond < 0)
        assert trial.bits == 192
    else:
        assert kept  # the fourth word is zero: below the threshold's digits
        assert trial.bits == 256


def test_a_real_place_takes_digits_until_the_height_is_known():
    sampler, height = sampler_of(continuous=True), 400
    with mpmath.workprec(400):
        x = mpmath.mpf(5) - mpmath.mpf(1) / 2 + mpmath.mpf(1) / 3
        threshold = height * mpmath.exp(-(x**2) / (2 * 64**2))
        slab = int(mpmath.floor(threshold))
        digits = int(mpmath.floor((threshold - slab) * mpmath.mpf(2) ** 128))
    third = int("01" * 64, 2)
    for change, expected in ((-(2**40), True), (2**40, False)):
        trial_digits = digits + change
        stream = Scripted([trial_digits & (2**64 - 1), third & (2**64 - 1)])
        trial = LazyUniform(stream, trial_digits >> 64, 64)
        kept = sampler.under_cell(5, slab, LazyUniform(stream, third >> 64, 64), trial)
        assert kept is expected
        assert not stream.left


@pytest.mark.parametrize(("next_place", "expected"), [(1, True), (2**64 - 1, False)])
def test_a_trial_between_the_heights_at_the_ends_of_a_place_is_left_open(next_place, expected):
    """Nothing is known of the place yet, and the curve crosses the trial along the cell."""
    sampler, height = sampler_of(continuous=True), 400
    ends = [height * math.exp(-(x**2) / (2 * 64**2)) for x in (29.5, 30.5)]
    slab = int(ends[0])
    assert slab + 0.25 > ends[1]
    assert slab + 0.25 < ends[0]
    stream = Scripted([0, next_place])
    place, trial = LazyUniform(stream), LazyUniform(stream, 1 << 62, 64)
    assert sampler.under_cell(30, slab, place, trial) is expected
    assert place.bits == 64


def test_a_tail_block_of_any_number_can_be_drawn():
    """63 zero bits and more: block 70 on the negative side, at the place the next word says."""
    sampler = SlabSampler(lay_out(Curve(Fraction(4), False), continuous=False))
    sampler.height, layout = 10**6, sampler.layout
    stream = Scripted([1 << 63, 1 << 56, 5 << 61])
    value = sampler.draw_tail(0, LazyUniform(stream, 0, 64), stream)
    block = 63 + 7
    assert layout.tail_shift == 2
    assert value == -layout.cells - 1 - block * 4 - (5 >> 1)


@pytest.mark.parametrize(("draw", "cdf"), FAST)
def test_tail_frequencies_match_exact_probabilities(draw, cdf):
    """Counts beyond 3, 4, 5 spreads within the Poisson 1e-6 band."""
    count, spread = 5_000_000, 9.7
    draws = np.abs(draw(Stream(key("tails")), count, spread))
    for multiple in (3, 4, 5):
        limit = math.ceil(multiple * spread)
        mean = 2 * float(cdf(np.array([-limit + 1.0]), spread)[0]) * count
        seen = int((draws >= limit).sum())
        assert stats.poisson.cdf(seen, mean) > FALSE_ALARM / 2
        assert stats.poisson.sf(seen - 1, mean) > FALSE_ALARM / 2


@pytest.mark.parametrize("spread", [0.6, 4.5])
def test_fast_sampler_agrees_with_the_integer_reference(spread):
    stream = Stream(key(f"reference {spread}"))
    slow_draws = np.array(
        [discrete_gaussian_reference(stream, Fraction(spread)) for _ in range(8_000)]
    )
    assert_distributed(slow_draws, lambda edges: discrete_gaussian_cdf(edges, spread), spread)
    fast_draws = discrete_gaussian(stream, 8_000, spread)
    values = np.clip(np.concatenate([slow_draws, fast_draws]), -2 * spread, 2 * spread)
    table = np.array(
        [[np.sum(part == value) for value in np.unique(values)] for part in np.split(values, 2)]
    )
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("draw", "cdf"), FAST)
def test_coordinates_are_independent(draw, cdf):
    """Contingency tables of neighbours, of neighbours a block apart, and of two streams."""
    size = 400_000
    draws = draw(Stream(key("one")), size, 150.0)
    other = draw(Stream(key("two")), size, 150.0)
    bins = np.array([-150, -60, 0, 60, 150])
    for left, right in (
        (draws[:-1], draws[1:]),
        (draws[: -(1 << 15)], draws[1 << 15 :]),
        (draws, other),
        (np.abs(draws[:-1]), draws[1:]),
    ):
        table = np.zeros((6, 6))
        np.add.at(table, (np.searchsorted(bins, left), np.searchsorted(bins, right)), 1)
        table = table[table.sum(1) > 0]
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_a_key_fixes_every_value():
    """Known answers: only integer and IEEE basic operations are used, so any machine agrees."""
    draws = discrete_gaussian(Stream(bytes(32)), 100_000, 64.0)
    again = discrete_gaussian(Stream(bytes(32)), 100_000, 64.0)
    np.testing.assert_array_equal(draws, again)
    assert not np.array_equal(draws, discrete_gaussian(Stream(key("x")), 100_000, 64.0))
    known = {
        discrete_gaussian: [106, 84, 626, 126, -568, 627],
        rounded_gaussian: [106, 84, 626, 126, -568, 627],
        rounded_laplace: [98, 76, 666, 118, -568, 667],
    }
    for draw, values in known.items():
        assert draw(Stream(bytes(32)), 1000, 1000.0)[[0, 1, 2, 3, 998, 999]].tolist() == values


@pytest.mark.parametrize(
    ("draw", "least"),
    [(discrete_gaussian, 2.0**-16), (rounded_gaussian, 0.25), (rounded_laplace, 0.25)],
)
def test_noise_is_drawn_up_to_its_very_edges(draw, least):
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="need"):
            draw(Stream(bytes(32)), 1, bad)
    for edge, beyond in ((least, 0.0), (2.0**46, math.inf)):
        assert len(draw(Stream(bytes(32)), 3, edge)) == 3
        with pytest.raises(ConfigError, match="need"):
            draw(Stream(bytes(32)), 3, math.nextafter(edge, beyond))
