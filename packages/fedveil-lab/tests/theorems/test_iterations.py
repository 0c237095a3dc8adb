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
    Numbers,
    Score,
    noise_constant_gaussian,
    noise_constant_laplace,
)
from fedveil_lab.theorems.iterations import (
    Iterations,
    advise,
    best,
    divisors,
    every_divisor,
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


def best_rounds(score: Score, local_steps: int, max_steps: int) -> Iterations:
    return best(score, local_steps=local_steps, max_steps=max_steps)


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


def test_one_local_step_is_best_where_noise_grows_no_faster_than_rounds() -> None:
    """Golden number 18; for z < 1 the paper's Theorem 4 says T^(z/(z+1)), and is wrong."""
    assert best_local_steps(base(1, 1), 720).local_steps == 1
    assert best_local_steps(base(1, 1), 720).bound == near(3.73191, rel=1e-5)
    half = best_local_steps(base(1, 0.5), 720)
    assert half.local_steps == 1
    assert half.bound == near(0.19234, rel=1e-4)
    claimed = advise(base(1, 0.5), total_steps=720).rule_of_thumb
    assert claimed is not None
    assert claimed.local_steps == 9
    assert claimed.bound > 10 * half.bound


def test_best_rounds_golden() -> None:
    """Golden number 19."""
    found = best_rounds(base(1e-4, 2), 1, 10_000)
    assert (found.total_steps, found.bound) == (295, near(0.22384, rel=1e-4))
    found = best_rounds(base(1e-2, 2), 1, 10_000)
    assert (found.total_steps, found.bound) == (21, near(0.92190, rel=1e-4))


def test_the_literal_rule_can_be_terrible() -> None:
    advice = advise(base(1e-2, 2), total_steps=720)
    rule, mended = advice.rule_of_thumb, advice.asymptotic
    assert rule is not None
    assert mended is not None
    assert (rule.local_steps, rule.bound) == (80, near(250.0, rel=1e-3))
    assert mended.bound < 1.05 * advice.best.bound


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


def test_joint_best_sees_many_local_steps_too() -> None:
    """A made-up score with its minimum far on the side of long rounds."""

    class Far:
        name, heuristic = "far", "made up"

        def __call__(self, local_steps: Numbers, rounds: Numbers) -> Numbers:
            return np.abs(local_steps - 77) + np.abs(rounds - 3) + 1.0

    assert best(Far(), max_steps=300) == Iterations(77, 3, 1.0)


def test_searches_of_many_choices_are_exact() -> None:
    score = base(1e-9, 2)
    found = best_rounds(score, 1, 3_000_000)
    rounds = np.arange(1, 3_000_001, dtype=np.float64)
    values = score(np.ones_like(rounds), rounds)
    assert found.rounds == int(np.argmin(values)) + 1
    assert best_local_steps(score, 963_761_198_400).local_steps >= 1  # 6720 divisors


@given(st.integers(1, 20_000))
def test_divisors_by_trial(number: int) -> None:
    assert divisors(number).tolist() == [d for d in range(1, number + 1) if number % d == 0]


def test_whole_participations_never_cost_less_and_agree_where_they_divide() -> None:
    plain = base(1.0, 2, clients=100, cohort=30)
    whole = base(1.0, 2, clients=100, cohort=30, whole_participations=True)
    for rounds in range(1, 41):
        a, b = score_of(plain, 2, rounds).bound, score_of(whole, 2, rounds).bound
        assert b >= a * (1 - 1e-12)
        if rounds * 30 % 100 == 0:
            assert b == near(a)
    quiet = score_of(base(0.0, 2, clients=100, cohort=30), 2, 1).bound
    paid, told = score_of(whole, 2, 1).bound - quiet, score_of(plain, 2, 1).bound - quiet
    assert paid == near((100 / 30) ** 2 * told)  # one round is one whole participation


def test_shape_of_fus_tables() -> None:
    """A smaller budget asks for more local steps (Tables III, IV), fewer rounds (Table II)."""
    best_steps, best_totals = [], []
    for epsilon in (1.0, 3.0, 5.0, 100.0):
        constant = noise_constant_laplace(
            dimension=11, clients=5000, cohort=500, epsilon=epsilon, gradient_sensitivity=2.0
        )
        score = base(constant, 2, cohort=500)
        best_steps.append(best_local_steps(score, 120).local_steps)
        best_totals.append(best_rounds(score, 1, 1000).total_steps)
    assert best_steps == sorted(best_steps, reverse=True)
    assert best_steps[0] > best_steps[-1]
    assert best_totals == sorted(best_totals)
    assert best_totals[0] < best_totals[-1] / 5


def test_gaussian_noise_settles_instead_of_diverging() -> None:
    """Fu's case study: for z = 1 and fixed E the bound tends to a constant, for z = 2 it grows."""
    constant = noise_constant_gaussian(
        dimension=1000, clients=3500, epsilon=10, delta=1e-4, gradient_sensitivity=0.2
    )
    gauss, laplace = base(constant, 1), base(constant, 2)
    assert score_of(gauss, 5, 10**6).bound == near(score_of(gauss, 5, 10**7).bound, rel=1e-2)
    assert score_of(laplace, 5, 10**7).bound > 9 * score_of(laplace, 5, 10**6).bound


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


def test_hu_fixed_point_with_different_curvatures() -> None:
    """tau = 3, curvatures 1 and 0.1, eta = 0.05, everybody: the gradient does not vanish."""
    x = 0.0
    for _ in range(20_000):
        ends = []
        for curvature, centre in ((1.0, 1.0), (0.1, -1.0)):
            y = x
            for _ in range(3):
                y -= 0.05 * curvature * (y - centre)
            ends.append(y)
        x = sum(ends) / 2
    gradient = 0.5 * (1.0 * (x - 1) + 0.1 * (x + 1))
    assert gradient**2 == near(1.769e-5, rel=5e-3)


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


def test_hu_score_does_not_apply_beyond_its_learning_rate() -> None:
    assert math.isinf(score_of(hu(learning_rate=0.3), 1, 10).bound)
    with pytest.raises(ConfigError, match="learning rate"):
        best_local_steps(hu(learning_rate=0.3), 100)


def test_cheng_score_terms() -> None:
    score = ChengScore(0.03, 1.0, 10**6, 3400, 136, 4.0, 1e-5)
    noise = 0.03 * 30 * 1000 * 10**6 * math.log(1e5) / (3400 * 4) ** 2
    plain = 1 / (0.03 * 30 * 1000) + (0.03 * 30) ** 2 + 0.03 / 136
    assert score_of(score, 30, 1000).bound == near(plain + noise)
    assert best_local_steps(score, 1000).local_steps == 1
    assert "heuristic" in score.heuristic


def test_advice_weighs_every_rule_at_the_same_total() -> None:
    advice = advise(base(1e-2, 2), total_steps=720)
    assert advice.chosen == advice.best
    assert advice.rule_of_thumb is not None
    assert {c.total_steps for c in (advice.chosen, advice.rule_of_thumb, advice.one_step)} == {720}
    assert advice.sentence.startswith("8 local steps in each of 90 rounds (720 steps)")
    given = advise(base(1e-2, 2), total_steps=720, local_steps=6)
    assert given.chosen.local_steps == 6
    assert given.best.local_steps == 8
    assert advise(base(1e-4, 2), local_steps=1).chosen.rounds == 295
    assert advise(base(1e-4, 2), max_steps=1000).chosen == best(base(1e-4, 2), max_steps=1000)


def test_a_hopeless_noise_is_said_to_be_so() -> None:
    (warning,) = advise(base(1e-2, 2), total_steps=720).warnings
    assert "nothing is proved to be learnt" in warning
    assert advise(base(1e-6, 2), total_steps=720).warnings == ()


def test_the_largest_total_tried_is_flagged() -> None:
    assert any("raise max_steps" in w for w in advise(base(0, 2), max_steps=50).warnings)


def test_every_divisor_is_listed_once_in_order() -> None:
    steps = [choice.local_steps for choice in every_divisor(base(1, 1), 36)]
    assert steps == [1, 2, 3, 4, 6, 9, 12, 18, 36]


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
