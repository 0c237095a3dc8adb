"""Fu et al.: the printed formulas, the corrected ones, and the examples that tell them apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil_lab.reproduction.claims import Claim, fu, uploads
from fedveil_lab.theorems import bounds

REPLACE, ZERO_OUT = Adjacency.REPLACE, Adjacency.ZERO_OUT
near = pytest.approx


def test_participations_are_the_busiest_clients_count_in_a_simulated_round_robin() -> None:
    for clients, cohort, rounds in [
        (5000, 500, 100),
        (7, 3, 5),
        (16, 10, 20),
        (3, 3, 4),
        (9, 1, 2),
    ]:
        turns = np.bincount(np.arange(cohort * rounds) % clients, minlength=clients)
        assert uploads.participations(clients=clients, cohort=cohort, rounds=rounds) == turns.max()
        mean = fu.paper_fu_participations(clients=clients, cohort=cohort, rounds=rounds)
        assert mean.value == near(turns.mean())


def test_laplace_noise_at_the_papers_sensitivity_costs_twice_under_replacement() -> None:
    """Golden number 13, checked against the worst log-likelihood ratio of the density itself."""
    xi = uploads.upload_sensitivity(1.0, [0.1], ZERO_OUT)
    scale = uploads.laplace_scale(1.0, 10, xi)
    assert scale == near(10 * xi)
    twice = uploads.upload_sensitivity(1.0, [0.1], REPLACE)
    assert scale == near(uploads.laplace_scale(2.0, 10, twice))
    seen = np.linspace(-5, 5, 2001)  # ten uploads; gradients +clip and -clip, learning rate 0.1
    worst = np.max(np.abs(np.abs(seen - 0.1) - np.abs(seen + 0.1)) / scale)
    assert 10 * worst == near(2.0, rel=1e-9)


def test_paper_laplace_scale_is_half_of_what_replacement_needs() -> None:
    claimed = fu.paper_fu_laplace_scale(
        epsilon=1, participations=10, learning_rate=0.1, local_steps=4, gradient_sensitivity=150
    )
    honest = uploads.laplace_scale(1, 10, uploads.upload_sensitivity(150, [0.1] * 4, REPLACE))
    assert honest == near(2 * claimed.value)
    assert not claimed.certified


def test_decaying_rates_need_less_noise_than_the_largest_rate_times_steps() -> None:
    rates = [0.1 / (k + 1) for k in range(8)]
    assert uploads.upload_sensitivity(3.0, rates, ZERO_OUT) < 3.0 * 8 * max(rates)


def test_trajectories_that_diverge_break_the_same_parameter_sensitivity() -> None:
    """Losses -clip*|theta|: a gap of one record's step becomes the whole gradient at step 2."""
    clip, rate, records = 1.0, 0.1, 80

    def run(target: float) -> float:
        theta = 0.0
        for _ in range(2):
            own = -clip * np.sign(theta)
            theta -= rate * ((records - 1) * own + target * clip) / records
        return theta

    # At the start point the others' gradient is 0; afterwards all push away from it.
    apart = abs(run(1.0) - run(-1.0))
    claimed = 2 * (2 * rate * clip / records)  # eta*E*xi at E = 2
    assert apart / claimed == near((records + 1) / 2)  # 40.5 at the Lending Club's 80 records
    assert apart <= uploads.record_sensitivity(clip, [rate] * 2, records)


@given(
    rates=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=6),
    smoothness=st.floats(0.01, 5.0),
    records=st.integers(1, 50),
    seed=st.integers(0, 2**32 - 1),
)
def test_record_sensitivity_bounds_two_quadratic_runs(
    rates: list[float], smoothness: float, records: int, seed: int
) -> None:
    """Linear gradients lam*theta + c, clipped per example, are lam-smooth; one c is replaced."""
    draw = np.random.default_rng(seed)
    offsets = draw.normal(size=(records, 3)) * 2
    other = offsets.copy()
    other[0] = draw.normal(size=3) * 2

    def run(shift: np.ndarray) -> np.ndarray:
        theta = np.zeros(3)
        for rate in rates:
            gradient = smoothness * theta + shift
            norms = np.linalg.norm(gradient, axis=1, keepdims=True)
            theta = theta - rate * (gradient / np.maximum(1, norms)).mean(axis=0)
        return theta

    apart = float(np.linalg.norm(run(offsets) - run(other)))
    bound = uploads.record_sensitivity(1.0, rates, records, smoothness=smoothness)
    assert apart <= bound * (1 + 1e-9)
    if max(rates) <= 2 / smoothness:
        tight = uploads.record_sensitivity(
            1.0, rates, records, smoothness=smoothness, nonexpansive=True
        )
        assert apart <= tight * (1 + 1e-9)
        assert tight == near(min(1, 1 / records) * 2 * sum(rates))


def test_record_sensitivity_without_a_smoothness_falls_back_to_the_whole_gradient() -> None:
    assert uploads.record_sensitivity(3, [0.1, 0.1], 80) == near(2 * 3 * 0.2)
    assert uploads.record_sensitivity(3, [0.1], 80) == near(2 * 3 * 0.1 / 80)
    with pytest.raises(ConfigError, match="non-expansive only up to"):
        uploads.record_sensitivity(3, [0.6], 80, smoothness=4, nonexpansive=True)
    with pytest.raises(ConfigError, match="smoothness"):
        uploads.record_sensitivity(3, [0.6], 80, nonexpansive=True)


def test_gaussian_std_composes_back_to_the_budget_over_rounds_of_different_rates() -> None:
    eps, delta, turns = 10.0, 1e-4, 7
    sensitivities = [
        uploads.upload_sensitivity(3, [0.1 / (t + 1)] * 5, REPLACE) for t in range(turns)
    ]
    stds = [uploads.gaussian_std(eps, delta, turns, s) for s in sensitivities]
    mu = math.sqrt(sum((s / std) ** 2 for s, std in zip(sensitivities, stds, strict=True)))
    assert gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta) == near(eps, rel=1e-6)


@pytest.mark.parametrize(
    ("eps", "c2", "same", "replace"),
    [
        (10, 1.500, (17.02, 10.79, 6.96), (45.43, 27.46, 17.02)),
        (20, 1.776, (45.43, 27.46, 17.02), (135.0, 77.25, 45.43)),
        (30, 1.993, (84.77, 49.62, 29.85), (268.0, 148.8, 84.77)),
    ],
)
def test_theorem_2_table(eps: float, c2: float, same: tuple, replace: tuple) -> None:
    assert uploads.smallest_c2(eps, 1e-4) == near(c2, rel=5e-3)
    for constant, a, b in zip((1, math.sqrt(2), 2), same, replace, strict=True):
        assert uploads.epsilon_behind_c2(eps, 1e-4, constant, ZERO_OUT) == near(a, rel=5e-3)
        assert uploads.epsilon_behind_c2(eps, 1e-4, constant, REPLACE) == near(b, rel=5e-3)


def test_theorem_2_noise_with_the_smallest_c2_is_the_exact_noise() -> None:
    claimed = fu.paper_fu_gaussian_std(
        epsilon=10,
        delta=1e-4,
        participations=9,
        learning_rate=0.1,
        local_steps=5,
        gradient_bound=3,
        c2=uploads.smallest_c2(10, 1e-4),
    )
    assert claimed.value == near(uploads.gaussian_std(10, 1e-4, 9, 0.1 * 5 * 3))
    back = fu.paper_fu_gaussian_epsilon(
        noise_multiplier=claimed.value / 1.5,
        participations=9,
        delta=1e-4,
        c2=uploads.smallest_c2(10, 1e-4),
    )
    assert back.value == near(10)


def test_noise_constants_golden() -> None:
    """Golden numbers 20 and 21."""
    lending = {"dimension": 11, "clients": 5000, "cohort": 500, "epsilon": 1.0}
    assert bounds.noise_constant_laplace(**lending, gradient_sensitivity=300) == near(158.4)
    paper = fu.paper_fu_noise_constant_laplace(**lending, gradient_sensitivity=150)
    assert paper.value == near(39.6)
    femnist = {"dimension": 214_590, "clients": 3500, "epsilon": 10.0, "delta": 1e-4}
    honest = bounds.noise_constant_gaussian(**femnist, gradient_sensitivity=6)
    assert honest == near(1829.92, rel=1e-4)
    # The paper's variance is doubled, its sensitivity halved: 2/4 of the truth at the true c2.
    printed = fu.paper_fu_noise_constant_gaussian(
        **femnist, gradient_bound=3, c2=uploads.smallest_c2(10, 1e-4)
    )
    assert printed.value == near(honest / 2)


def test_noise_variances_against_drawn_noise() -> None:
    """4000 draws of a 50-dimensional averaged noise: 5 sigma is 2.5 %, false alarm below 1e-6."""
    draw = np.random.default_rng(20)
    sizes = [10, 20, 30, 40]
    weights = np.array(sizes) / sum(sizes)
    clients, dimension, rounds, upload = 4, 50, 6, 0.7
    lap = draw.laplace(scale=rounds * upload / 2.0, size=(4000, clients, dimension))
    seen = np.square(np.einsum("c,tcd->td", weights, lap)).sum(axis=1).mean()
    printed = fu.paper_fu_noise_variance_laplace(
        dimension=dimension,
        sizes=sizes,
        cohort=4,
        rounds=rounds,
        epsilon=2.0,
        upload_sensitivity=upload,
    )
    assert seen == near(printed.value, rel=0.025)
    ratio = math.sqrt(rounds * math.log(1e4)) / 2.0
    gauss = draw.normal(scale=ratio * upload, size=(4000, clients, dimension))
    seen = np.square(np.einsum("c,tcd->td", weights, gauss)).sum(axis=1).mean()
    doubled = fu.paper_fu_noise_variance_gaussian(
        dimension=dimension,
        sizes=sizes,
        rounds=rounds,
        epsilon=2.0,
        delta=1e-4,
        upload_sensitivity=upload,
        c2=1.0,
    )
    assert seen == near(doubled.value / 2, rel=0.025)


def test_size_imbalance_is_one_for_equal_clients_and_grows() -> None:
    assert fu.size_imbalance([80] * 50) == near(1.0)
    assert fu.size_imbalance([1, 3]) == near(2 * 10 / 16)
    assert fu.size_imbalance(np.array([1, 3])) == near(1.25)


def test_every_claim_says_what_it_is_and_is_never_certified() -> None:
    claim = fu.paper_fu_local_steps(720, 2)
    assert claim.value == near(720 ** (2 / 3))
    assert claim.to_dict() == {
        "paper": "Fu et al.",
        "statement": "Theorems 4 and 5",
        "quantity": "local_steps",
        "value": claim.value,
        "inputs": {"total_steps": 720, "growth": 2},
        "certified": False,
        "verdict": claim.verdict,
    }
    assert "false" in fu.paper_fu_local_steps(720, 0.5).verdict
    assert "does not depend on E" in fu.paper_fu_local_steps(720, 1).verdict
    with pytest.raises(TypeError):
        Claim("a", "b", "c", 1.0, (), "d", certified=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_bad_numbers_are_refused_by_name(bad: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        uploads.laplace_scale(bad, 1, 1.0)
    with pytest.raises(ConfigError, match="clip_norm"):
        uploads.upload_sensitivity(bad, [0.1], REPLACE)
    with pytest.raises(ConfigError, match="learning_rate"):
        uploads.upload_sensitivity(1.0, [0.1, bad], REPLACE)
    with pytest.raises(ConfigError, match="delta"):
        uploads.gaussian_std(1.0, bad, 1, 1.0)


def test_add_remove_has_no_meaning_for_a_local_upload() -> None:
    with pytest.raises(ConfigError, match="add-remove"):
        uploads.upload_sensitivity(1.0, [0.1], Adjacency.ADD_REMOVE)
    with pytest.raises(ConfigError, match="local step"):
        uploads.upload_sensitivity(1.0, [], REPLACE)
    with pytest.raises(ConfigError, match="cohort"):
        uploads.participations(clients=3, cohort=4, rounds=1)
    with pytest.raises(ConfigError, match="imbalance"):
        bounds.noise_constant_laplace(
            dimension=1,
            clients=2,
            cohort=1,
            epsilon=1,
            gradient_sensitivity=1,
            imbalance=0.5,
        )


def test_the_weights_of_a_cohort_add_up_to_one_for_equal_clients_only() -> None:
    equal, unequal = [80] * 10, [10] * 9 + [710]
    assert fu.paper_fu_largest_weight(sizes=equal, cohort=5).value * 5 == pytest.approx(1.0)
    # One large client alone weighs more than the whole cohort should.
    assert fu.paper_fu_largest_weight(sizes=unequal, cohort=5).value > 1
