"""The search for local steps and rounds: golden numbers, brute force, shape of Fu's tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.errors import ConfigError
from fedveil_lab.theorems.bounds import (
    ChengScore,
    FuBound,
    HuScore,
    Score,
)
from fedveil_lab.theorems.iterations import (
    Iterations,
    advise,
    best,
    divisors,
    score_of,
)

near = pytest.approx


def base(noise_constant: float, growth: float, **changes: object) -> FuBound:
    """Setting B of the golden numbers."""
    given = {
        "strong_convexity": 1.0,
        "smoothness": 4.0,
        "gradient_bound": 1.0,
        "heterogeneity": 0.1,
        "initial_distance": 1.0,
        "clients": 5000,
        "cohort": 5000,
        "noise_constant": noise_constant,
        "growth": growth,
    }
    return FuBound(**{**given, **changes})  # type: ignore[arg-type]


def best_local_steps(score: Score, total_steps: int) -> Iterations:
    return best(score, total_steps=total_steps)


def theorem_3(k: int, E: int, Tg: int, bound: FuBound) -> float:
    """The theorem, term by term in plain Python, from its statement."""
    mu, lam, G = bound.strong_convexity, bound.smoothness, bound.gradient_bound
    N, b = bound.clients, bound.cohort
    gamma = max(8 * lam / mu, E)
    omega0 = 6 * lam * bound.heterogeneity + 8 * (E - 1) ** 2 * G**2
    if b < N:
        omega0 += 4 * E**2 * G**2 * (N - b) / (N - 1) / b
    omega1 = bound.noise_constant * E**2 * Tg**bound.growth
    first = (4 / mu**2 * omega0 + gamma * bound.initial_distance) / (k + gamma)
    return first + 4 / mu**2 * (k // E) / (k + gamma - 1) ** 2 * omega1


def test_bound_golden() -> None:
    """Golden numbers 15 and 16."""
    assert score_of(base(1e-4, 2), 4, 30).bound == near(2.1759997, rel=1e-7)
    other = FuBound(0.5, 2, 3, 0.2, 4, 100, 10, 1e-3, 1)
    assert score_of(other, 1, 100).bound == near(1.6666237, rel=1e-7)


@pytest.mark.parametrize(
    ("total", "steps", "bound"), [(120, 2, 1.99993), (720, 8, 5.44936), (5040, 24, 11.64335)]
)
def test_best_local_steps_golden(total: int, steps: int, bound: float) -> None:
    """Golden number 17."""
    found = best_local_steps(base(1e-2, 2), total)
    assert (found.local_steps, found.rounds) == (steps, total // steps)
    assert found.bound == near(bound, rel=1e-5)


def test_best_rounds_golden() -> None:
    """Golden number 19."""
    for constant, total, bound in ((1e-4, 295, 0.22384), (1e-2, 21, 0.92190)):
        found = best(base(constant, 2), local_steps=1, max_steps=10_000)
        assert (found.total_steps, found.bound) == (total, near(bound, rel=1e-4))


@given(
    mu=st.floats(0.01, 3),
    ratio=st.floats(1, 50),
    gradient=st.floats(0.1, 10),
    gamma=st.just(0.0) | st.floats(1e-6, 5),
    distance=st.floats(0.01, 100),
    noise=st.just(0.0) | st.floats(1e-6, 10),
    growth=st.just(0.0) | st.floats(1e-6, 2),
    clients=st.integers(1, 500),
    data=st.data(),
)
def test_vectorised_bound_is_the_theorem(
    mu: float,
    ratio: float,
    gradient: float,
    gamma: float,
    distance: float,
    noise: float,
    growth: float,
    clients: int,
    data: st.DataObject,
) -> None:
    cohort = data.draw(st.integers(1, clients))
    bound = FuBound(mu, mu * ratio, gradient, gamma, distance, clients, cohort, noise, growth)
    steps, rounds = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 300))
    k = data.draw(st.integers(1, steps * rounds))
    expected = theorem_3(k, steps, rounds, bound)
    got = bound.after(np.float64(k), np.float64(steps), np.float64(rounds))
    assert float(got) == near(expected, rel=1e-9)
    total = steps * rounds
    least = min(
        theorem_3(total, e, total // e, bound) for e in range(1, total + 1) if total % e == 0
    )
    assert best_local_steps(bound, total).bound == near(least, rel=1e-9)


def test_the_bound_dominates_simulated_training() -> None:
    """Two-client quadratics with Gaussian noise of exactly the bound's variance: 400 runs below it.

    The mean of 400 squared distances lies below a bound that is loose by a factor of several.
    """
    rng = np.random.default_rng(3)
    steps, rounds, runs, noise_constant = 3, 20, 400, 0.02
    centres = np.array([-0.5, 0.5])
    bound = base(noise_constant, 1.0, smoothness=1.0, gradient_bound=4.0, heterogeneity=0.125,
                 initial_distance=4.0, clients=2, cohort=2)  # fmt: skip
    theta = np.full(runs, 2.0)
    k = 0
    for _ in range(rounds):
        local = np.repeat(theta[:, None], 2, axis=1)
        for _ in range(steps):
            rate = 2 / (k + 8)
            local = local - rate * (local - centres)
            k += 1
        std = rate * math.sqrt(noise_constant * steps**2 * rounds)
        theta = local.mean(axis=1) + std * rng.normal(size=runs)
    assert np.mean(theta**2) < score_of(bound, steps, rounds).bound


def test_joint_best_against_all_pairs() -> None:
    for score in (base(1e-2, 2), base(3, 1), base(0.5, 1.5, cohort=50), base(0, 2)):
        pairs = [(e, r) for e in range(1, 301) for r in range(1, 300 // e + 1)]
        values = score(
            np.array([float(e) for e, _ in pairs]), np.array([float(r) for _, r in pairs])
        )
        found = best(score, max_steps=300)
        assert found.bound == near(values.min(), rel=1e-12)
        assert found.total_steps <= 300


@given(st.integers(1, 20_000))
def test_divisors_by_trial(number: int) -> None:
    assert divisors(number).tolist() == [d for d in range(1, number + 1) if number % d == 0]


def test_hu_bound_golden_and_its_refutation() -> None:
    """Golden number 25b; and with different clients the truth can lie above: a heuristic."""
    hu = HuScore(1, 0.01, 1, 1, 1, 10, 10, 5, 10, 10, 1, 1e-5)
    four_steps = np.array([0.1]), np.array([4.0]), np.array([250.0])
    assert hu.with_variance(*four_steps)[0] == near(0.202025, rel=1e-9)
    # Two quadratics (x -+ 1)^2/2, one drawn per round, eta = 0.1, one step, no noise.
    rng = np.random.default_rng(0)
    x, total, burn, runs = np.zeros(2000), 0.0, 200, 0
    for step in range(1200):
        x = x - 0.1 * (x - rng.choice([-1.0, 1.0], size=2000))
        if step >= burn:
            total += float(np.mean(x**2))
            runs += 1
    assert total / runs == near(0.0526, rel=0.02)  # 2e6 correlated draws: about 0.4 % std
    alike = HuScore(1, 0.1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1e-5)
    assert alike.with_variance(np.zeros(1), np.ones(1), np.array([1e9]))[0] < 1e-7


def hu(**changes: object) -> HuScore:
    given = {
        "initial_gap": 1.0,
        "learning_rate": 0.01,
        "smoothness": 1.0,
        "gradient_variance": 1.0,
        "gradient_bound": 1.0,
        "batch_size": 244,
        "records": 2440,
        "dimension": 100,
        "clients": 16,
        "cohort": 10,
        "epsilon": 10.0,
        "delta": 1e-4,
    }
    return HuScore(**{**given, **changes})  # type: ignore[arg-type]


def test_hu_noise_is_what_is_proved_and_not_what_is_claimed() -> None:
    """e = 1, r = 10: exact accounting without the division asks for 2.74 times the claimed std."""
    score = hu()
    std = math.sqrt(float(score.noise_variance(np.float64(10), np.float64(20))))
    assert std / 0.0048068 == near(2.74 * math.sqrt(13 / 12.5), rel=5e-3)  # 13 whole turns
    shared = math.sqrt(float(hu(honest_shares=10).noise_variance(np.float64(10), np.float64(20))))
    assert std / shared == near(math.sqrt(10))
    assert best_local_steps(score, 200).local_steps > 1  # fewer rounds use a record less often
    assert "heuristic" in score.heuristic


def test_cheng_score_terms() -> None:
    score = ChengScore(0.03, 1.0, 10**6, 3400, 136, 4.0, 1e-5)
    noise = 0.03 * 30 * 1000 * 10**6 * math.log(1e5) / (3400 * 4) ** 2
    plain = 1 / (0.03 * 30 * 1000) + (0.03 * 30) ** 2 + 0.03 / 136
    assert score_of(score, 30, 1000).bound == near(plain + noise)
    assert best_local_steps(score, 1000).local_steps == 1
    assert "heuristic" in score.heuristic


def test_advice_weighs_the_rule_at_the_same_total_and_warns() -> None:
    advice = advise(base(1e-2, 2), total_steps=720)
    assert advice.chosen == advice.best
    assert advice.rule_of_thumb is not None
    rule = advice.rule_of_thumb
    assert (rule.local_steps, rule.rounds, rule.bound) == (80, 9, near(250.0, rel=1e-3))
    (warning,) = advice.warnings
    assert "nothing is proved to be learnt" in warning
    assert advise(base(1e-6, 2), total_steps=720).warnings == ()
    assert any("raise max_steps" in w for w in advise(base(0, 2), max_steps=50).warnings)
    given = advise(base(1e-2, 2), total_steps=720, local_steps=6)
    assert given.chosen.local_steps == 6
    assert given.best.local_steps == 8
    assert advise(base(1e-4, 2), local_steps=1).chosen.rounds == 295


_POSITIVE = ("strong_convexity", "smoothness", "gradient_bound", "initial_distance")
_OR_ZERO = ("heterogeneity", "noise_constant", "growth")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *((field, bad) for field in _POSITIVE for bad in (0, -1, math.nan, math.inf)),
        *((field, bad) for field in _OR_ZERO for bad in (-1, math.nan, math.inf)),
        ("strong_convexity", 5.0),  # above the smoothness
        ("growth", 2.5),
        ("cohort", 5001),
    ],
)
def test_impossible_constants_are_refused_by_name(field: str, bad: float) -> None:
    given = {"noise_constant": 1e-2, "growth": 2.0}
    with pytest.raises(ConfigError, match=field):
        base(**{**given, field: bad})
    if field in _OR_ZERO:
        base(**{**given, field: 0.0})


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"total_steps": 720, "local_steps": 7}, "local_steps"),
        ({"total_steps": 720, "max_steps": 100}, "max_steps"),
        ({"local_steps": 7, "max_steps": 6}, "max_steps"),
        ({"max_steps": 10**7}, "max_steps"),
        ({"max_steps": 10**12}, "max_steps"),
        ({"total_steps": 10**15}, "total_steps"),
    ],
)
def test_searches_that_cannot_be_are_refused_by_name(given: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        advise(base(1, 2), **given)
