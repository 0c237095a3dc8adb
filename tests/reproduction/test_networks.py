"""Noise of the pages that train networks: what the papers' formulas give, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.server.smoothing import smooth
from reproduction.case import Certified, Claimed, Without
from reproduction.experiment import Scale
from reproduction.pages import fu_femnist, hu_readings, liang_control, liang_networks
from reproduction.pages.liang_tasks import shakespeare, svhn

LOCAL = (1, 2, 4, 8, 12, 24)


def total(kind: str, local: int) -> float:
    """Variance of all noise of a run of 120 steps on the mean of b, in units of a step's bound."""
    rounds = 120 // local
    noise = fu_femnist.noise_of(kind, 10, 3500, 350, rounds, local)
    assert isinstance(noise, Claimed)
    return rounds * (noise.noise_multiplier * local) ** 2 / 350


def test_gaussian_noise_of_theorem_2_is_the_same_for_every_number_of_local_steps() -> None:
    """T_g rounds of E^2 T_l ln(1/delta) / (b epsilon^2), T_l = b T_g / N: T^2 ln(1/delta) / N."""
    wanted = 120**2 * 9.210340 / (3500 * 10**2)
    for local in LOCAL:
        assert total(fu_femnist.PAPER, local) == pytest.approx(wanted, rel=1e-6)


def test_noise_of_one_step_falls_with_the_square_of_local_steps() -> None:
    for local in LOCAL:
        ratio = total(fu_femnist.ONE_STEP, 1) / total(fu_femnist.ONE_STEP, local)
        assert ratio == pytest.approx(local**2, rel=1e-9)


def test_fu_without_noise_and_with_proved_noise() -> None:
    assert fu_femnist.noise_of("paper", fu_femnist.NO_NOISE, 3500, 350, 120, 1) == Without()
    assert fu_femnist.noise_of("certified", 20, 3500, 350, 120, 1) == Certified(20.0, 1e-4)


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize(("z", "printed"), [(1.0, 5.07), (1.5, 2.56)])
def test_svhn_runs_at_the_papers_noise_and_epsilon_at_both_scales(
    scale: Scale, z: float, printed: float
) -> None:
    noise = liang_networks.noise_of(svhn(scale), "poisson", z, "paper")
    assert noise == Claimed(printed, 2000**-1.1, z)


def test_a_smaller_cohort_gets_the_same_noise_on_its_average_and_owns_up_to_the_epsilon() -> None:
    quick, full = shakespeare(Scale.QUICK), shakespeare(Scale.FULL)
    small = liang_networks.noise_of(quick, "poisson", 1.0, "paper")
    large = liang_networks.noise_of(full, "poisson", 1.0, "paper")
    assert isinstance(small, Claimed)
    assert isinstance(large, Claimed)
    assert (large.epsilon, full.cohort) == (14.04, 195)
    averages = [noise.noise_multiplier / task.cohort for noise, task in
                ((small, quick), (large, full))]  # fmt: skip
    assert averages[0] == pytest.approx(averages[1])
    assert small.epsilon > 2 * large.epsilon


def test_noise_on_the_model_is_noise_on_the_gradient_over_the_learning_rate() -> None:
    by_label = {case.labels: case.noise for case in hu_readings.raw_cases(Scale.FULL)}
    for rate in hu_readings.RATES:
        model, gradient = (
            by_label[(("learning rate", rate), ("noise", f"0.001 on the {place}"))]
            for place in ("model", "gradient")
        )
        assert isinstance(model, Claimed)
        assert isinstance(gradient, Claimed)
        # A std of 0.001 on the mean of 32 gradients, each at most 2 long.
        assert gradient.noise_multiplier == pytest.approx(0.001 * 32 / 2)
        assert model.noise_multiplier * rate == pytest.approx(gradient.noise_multiplier)


@pytest.mark.parametrize("strength", liang_control.LEFT)
def test_a_shorter_step_leaves_as_much_noise_as_smoothing_does(strength: int) -> None:
    """On 200,000 draws with a fixed seed; the deviation of the ratio is below 0.3 %."""
    noise = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    left = smooth(noise, float(strength)).std() / noise.std()
    assert left == pytest.approx(liang_control.LEFT[strength], rel=0.01)
    if strength == 1:
        assert left == pytest.approx(liang_networks.SHORT_STEP, rel=0.01)
