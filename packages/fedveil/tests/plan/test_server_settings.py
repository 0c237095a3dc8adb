"""What a pilot tries of the server: one thing at a time, and as far a way as before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedveil.planning import recipe as recipes
from fedveil.planning.recipe import Recipe
from fedveil.tune.server_settings import server_changes
from fedveil.tune.space import Space
from fedveil.tune.trials import Candidate, recipe_with_settings

BASE = Candidate(2, 8, 0.5, 1.0)


def recipe(*more: str) -> Recipe:
    return recipes.with_defaults(recipes.parse({}, ["privacy.clip_norm=1", *more], {"seed": 1}))


def tried(
    *more: str, candidate: Candidate = BASE
) -> set[tuple[float | None, str | None, float | None]]:
    found = server_changes(recipe(*more), candidate)
    return {(one.server_momentum, one.server_schedule, one.clip_quantile) for one in found}


def test_momentum_a_falling_rate_and_a_tracked_clip_are_tried() -> None:
    momenta = {(0.5, None, None), (0.9, None, None)}
    falling, clips = {(None, "linear", None)}, {(None, None, 0.2), (None, None, 0.5)}
    assert tried() == momenta | falling | clips
    assert tried("server.momentum=0.7") == falling | clips
    assert tried("server.schedule=cosine") == momenta | clips
    assert tried("server.optimizer=adam") == clips
    assert tried("privacy.clip_quantile=0.5") == momenta | falling
    # Noise that cancels needs one clip, and is fitted to the momentum that there is.
    assert tried("privacy.correlated=optimised", "training.cohort=10") == falling
    assert tried("training.method=dp-sgd", "training.batch_size=8") == momenta | falling


def test_what_was_taken_is_kept_and_not_tried_again() -> None:
    taken = replace(BASE, server_momentum=0.5, server_learning_rate=0.5)
    assert tried(candidate=taken) == {(0.5, "linear", None), (0.5, None, 0.2), (0.5, None, 0.5)}
    space = Space(
        BASE, 16, 100, 1.0, False, server_changes=lambda one: server_changes(recipe(), one)
    )
    for other in space.neighbours(taken):
        assert other.server_momentum == 0.5
        assert other.server_learning_rate in (0.5, 1.0)


@pytest.mark.parametrize("change", list(server_changes(recipe("server.learning_rate=0.8"), BASE)))
def test_all_rounds_lead_as_far_as_before(change: Candidate) -> None:
    """An update that lasts moves the weights by rate / (1 - momentum) a round, by half of it on
    average under a linear schedule."""
    server = recipe_with_settings(recipe("server.learning_rate=0.8"), change).server
    half = 0.5 if server.schedule == "linear" else 1.0
    assert half * server.learning_rate / (1 - server.momentum) == pytest.approx(0.8)


def test_a_tracked_clip_does_not_rise() -> None:
    chosen = recipe_with_settings(recipe(), replace(BASE, clip_norm=0.7, clip_quantile=0.2)).privacy
    assert (chosen.clip_norm, chosen.clip_quantile, chosen.clip_highest) == (0.7, 0.2, 0.7)
