"""What a local rule may say, up to the very edges, and the rates that its schedules give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

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


NOT_POSITIVE, NEGATIVE = (0.0, -TINY, -1.0, math.inf, math.nan), (-TINY, math.inf, math.nan)
RATES = {"learning_rate": LearningRate, "decay": partial(LearningRate, 0.1, Schedule.INVERSE)}
EDGES = [  # what names a value, how it is set, what is refused, and what is not
    *((name, make, NOT_POSITIVE, TINY) for name, make in RATES.items()),
    ("norm", GradientClip, NOT_POSITIVE, TINY),
    ("order", partial(GradientClip, 1.0), (0, 3), 1),
    ("steps", lambda steps: replace(RULE, steps=steps), (0, None), 1),
    ("epochs", lambda epochs: replace(RULE, steps=None, epochs=epochs), (0,), 1),
    ("epochs", lambda epochs: replace(RULE, epochs=epochs), (1,), None),
    ("batch_size", lambda size: replace(RULE, batch_size=size), (0,), 1),
    ("momentum", lambda one: replace(RULE, momentum=one), (*NEGATIVE, 1.0), math.nextafter(1, 0)),
    ("projection_radius", lambda r: replace(RULE, projection_radius=r), (0.0, -1.0, math.nan), 1),
    *(
        (name, lambda value, name=name: replace(RULE, **{name: value}), NEGATIVE, 0.0)
        for name in ("weight_decay", "penalty", "penalty_radius", "gradient_noise")
    ),
]


@pytest.mark.parametrize(("name", "make", "refused", "taken"), EDGES)
def test_values_are_taken_up_to_their_edges(
    name: str, make: Callable[[Any], object], refused: tuple[Any, ...], taken: Any
) -> None:
    for bad in refused:
        with pytest.raises(ConfigError, match=name):
            make(bad)
    make(taken)


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
