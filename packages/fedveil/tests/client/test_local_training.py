"""What a local rule may say, up to the very edges, and the rates that its schedules give."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedveil.core.errors import ConfigError
from fedveil.training.client.local_training import (
    GradientClip,
    LearningRate,
    LocalTraining,
    Schedule,
)

RULE = LocalTraining(LearningRate(0.1), steps=1)
TINY = math.ulp(0.0)


@pytest.mark.parametrize("bad", [0.0, -TINY, -1.0, math.inf, math.nan])
def test_rates_decays_and_clips_are_positive_and_finite(bad: float) -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        LearningRate(bad)
    with pytest.raises(ConfigError, match="decay"):
        LearningRate(0.1, Schedule.INVERSE, bad)
    with pytest.raises(ConfigError, match="norm must be positive"):
        GradientClip(bad)
    assert LearningRate(TINY, Schedule.INVERSE, TINY).rate == GradientClip(TINY).norm


@pytest.mark.parametrize("order", [0, 3])
def test_gradients_are_clipped_in_l1_or_l2(order: int) -> None:
    with pytest.raises(ConfigError, match="order must be 1 or 2"):
        GradientClip(1.0, order)
    assert [GradientClip(1.0, one).order for one in (1, 2)] == [1, 2]


def test_exactly_one_of_steps_and_epochs_is_set() -> None:
    for steps, epochs in ((None, None), (1, 1)):
        with pytest.raises(ConfigError, match="exactly one"):
            LocalTraining(LearningRate(0.1), steps=steps, epochs=epochs)
    for name in ("steps", "epochs", "batch_size"):
        lone = {"steps": None} if name == "epochs" else {}
        with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
            replace(RULE, **lone, **{name: 0})
        assert getattr(replace(RULE, **lone, **{name: 1}), name) == 1


@pytest.mark.parametrize(
    "name", ["momentum", "weight_decay", "penalty", "penalty_radius", "gradient_noise"]
)
def test_strengths_are_zero_or_positive(name: str) -> None:
    for bad in (-TINY, math.inf, math.nan):
        with pytest.raises(ConfigError, match=f"{name} must be zero or positive"):
            replace(RULE, **{name: bad})
    assert getattr(replace(RULE, **{name: 0.0}), name) == 0.0


def test_momentum_is_below_one_and_a_projection_has_a_radius() -> None:
    with pytest.raises(ConfigError, match="below 1"):
        replace(RULE, momentum=1.0)
    assert replace(RULE, momentum=math.nextafter(1, 0)).momentum < 1
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="projection_radius"):
            replace(RULE, projection_radius=bad)
    assert replace(RULE, projection_radius=TINY).projection_radius == TINY


@pytest.mark.parametrize("field", ["momentum", "penalty", "gradient_noise", "projection_radius"])
def test_whatever_leaves_plain_descent_is_not_plain(field: str) -> None:
    assert replace(RULE, weight_decay=0.1).plain
    assert not replace(RULE, **{field: 0.5}).plain
    assert not replace(RULE, gradient_clip=GradientClip(1.0)).plain


def test_schedules_follow_their_formulas() -> None:
    """In the third round of three steps each, with decay 4; a cosine ends after four rounds."""
    wanted = {
        Schedule.CONSTANT: [0.5] * 3,
        Schedule.INVERSE: [0.5 / (1 + 6 / 4), 0.5 / (1 + 7 / 4), 0.5 / (1 + 8 / 4)],
        Schedule.INVERSE_SQRT: [0.5 / 1.5**0.5] * 3,
        Schedule.EXPONENTIAL: [0.5 * math.e**-0.5] * 3,
        Schedule.COSINE: [0.25] * 3,
    }
    assert set(wanted) == set(Schedule)
    for schedule, rates in wanted.items():
        assert LearningRate(0.5, schedule, 4.0).of_round(2, 3) == pytest.approx(rates, rel=1e-12)
    ended = LearningRate(0.5, Schedule.COSINE, 4.0)
    assert ended.of_round(4, 1) == ended.of_round(9, 1) == [0.0]
