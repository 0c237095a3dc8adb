"""Fu et al.: the printed formulas, and the examples that tell them from what holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims import Claim, fu

near = pytest.approx


def test_laplace_noise_at_the_papers_sensitivity_costs_twice_under_replacement() -> None:
    """Golden number 13, checked against the worst log-likelihood ratio of the density itself."""
    participations, scale = 10, 10 * 0.1 * 1.0  # T_l * Xi / epsilon, with Xi = eta * clip
    claim = fu.paper_fu_laplace_epsilon(noise_multiplier=scale / 0.1, participations=participations)
    assert claim.value == near(1.0)
    seen = np.linspace(-5, 5, 2001)  # gradients +clip and -clip, learning rate 0.1
    worst = np.max(np.abs(np.abs(seen - 0.1) - np.abs(seen + 0.1)) / scale)
    assert participations * worst == near(2.0, rel=1e-9)


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
    claimed = 2 * (2 * rate * clip / records)  # eta*E*xi at E = 2
    assert abs(run(1.0) - run(-1.0)) / claimed == near((records + 1) / 2)


@pytest.mark.parametrize(
    ("eps", "c2", "same", "replace"),
    [
        (10, 1.500, (17.02, 10.79, 6.96), (45.43, 27.46, 17.02)),
        (20, 1.776, (45.43, 27.46, 17.02), (135.0, 77.25, 45.43)),
        (30, 1.993, (84.77, 49.62, 29.85), (268.0, 148.8, 84.77)),
    ],
)
def test_theorem_2_table(eps: float, c2: float, same: tuple, replace: tuple) -> None:
    """What the noise that is claimed to be worth eps is worth, by the constant and the factor."""

    def behind(constant: float, factor: int) -> float:
        ratio = constant * math.sqrt(math.log(1e4)) / eps
        claim = fu.paper_fu_gaussian_epsilon(
            noise_multiplier=ratio, participations=1, delta=1e-4, c2=constant
        )
        assert claim.value == near(eps)
        return float(gaussian_mechanism.get_epsilon_gaussian(ratio / factor, 1e-4))

    assert behind(c2, 1) == near(eps, rel=5e-3)  # the smallest valid constant
    for constant, a, b in zip((1, math.sqrt(2), 2), same, replace, strict=True):
        assert (behind(constant, 1), behind(constant, 2)) == (near(a, rel=5e-3), near(b, rel=5e-3))


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
@pytest.mark.parametrize("name", ["noise_multiplier", "participations", "delta"])
def test_bad_numbers_are_refused_by_name(name: str, bad: float) -> None:
    given = {"noise_multiplier": 1.0, "participations": 1.0, "delta": 1e-4, "c2": 1.0}
    with pytest.raises(ConfigError, match=name):
        fu.paper_fu_gaussian_epsilon(**{**given, name: bad})


def test_the_weights_of_a_cohort_add_up_to_one_for_equal_clients_only() -> None:
    equal, unequal = [80] * 10, [10] * 9 + [710]
    assert fu.paper_fu_largest_weight(sizes=equal, cohort=5).value * 5 == near(1.0)
    # One large client alone weighs more than the whole cohort should.
    assert fu.paper_fu_largest_weight(sizes=unequal, cohort=5).value > 1
