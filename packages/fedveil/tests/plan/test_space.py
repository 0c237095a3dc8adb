"""Settings and the points that stand for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.plan.searches import BOWL, small_recipe, trials_of

from fedveil.planning import recipe as recipes
from fedveil.planning.recipe import Recipe
from fedveil.privacy.sampling import RoundRobin
from fedveil.tune.space import Point, RecipeSpace, space_of
from fedveil.tune.trials import Candidate, Trial, recipe_with_settings

FULL = Candidate(3, 40, 0.2, 1.5, 50, 0.1, 1.0, 0.4, 0.7)
unit = st.floats(0, 1)


def place(space: RecipeSpace, at: list[float]) -> dict[str, float]:
    """A point of the box by its height along every side."""
    box = space.box.items()
    return {name: low + x * (high - low) for x, (name, (low, high)) in zip(at, box, strict=True)}


def spaces() -> st.SearchStrategy[RecipeSpace]:
    return st.builds(
        RecipeSpace,
        st.just(small_recipe()),
        st.just(FULL),
        st.integers(120, 5000),
        st.integers(50, 2000),
        st.floats(0.01, 100),
        st.booleans(),
        st.just(frozenset()),
        st.booleans(),
    )


@given(spaces(), st.lists(unit, min_size=9, max_size=9))
@settings(max_examples=200, deadline=None)
def test_every_point_of_the_box_is_a_legal_candidate(space: RecipeSpace, at: list[float]) -> None:
    candidate = space.candidate(place(space, at))
    assert 1 <= candidate.local_steps <= space.most_steps
    assert candidate.rounds >= 1
    assert candidate.total_steps <= space.most_steps
    assert 1 <= candidate.cohort <= space.clients
    assert candidate.learning_rate > 0
    assert candidate.clip_norm > 0
    assert 0 < candidate.smoothing <= 4
    assert 0 <= candidate.penalty <= 0.8
    assert 0 <= candidate.sparsity <= 0.9


METHODS = {
    "bounded-sparse": {},
    "laplacian-smoothing": {"training__sampling": "poisson", "training__rate": 0.5},
    "client-noise": {"privacy__epsilon": 30.0},
    "gradient-noise": {"training__batch_size": 4},
    "dp-sgd": {"training__local_steps": "none", "training__batch_size": 4},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_of_every_corner_of_a_methods_box_can_be_planned(method: str) -> None:
    values = {"training__method": method, **METHODS[method]}
    trials = trials_of(small_recipe(**values))
    space = space_of(trials, 1 if method == "dp-sgd" else 2)
    for corner in product((0.0, 1.0), repeat=len(space.box)):
        candidate = space.candidate(place(space, list(corner)))
        assert trials.plan(Trial(candidate, 8.0, 0.25, 0)).noise is not None


@given(st.integers(20, 3000), st.integers(1, 20), st.integers(50, 2000), st.floats(-4, 0))
@settings(max_examples=200, deadline=None)
def test_rounds_by_turns_waste_no_participation(
    most: int, cohort: int, clients: int, total: float
) -> None:
    """One more round would cost everybody's noise one more participation."""
    base = Candidate(1, most, 0.1, 1.0, cohort)
    fixed = frozenset({"cohort", "local_steps", "stride", "clip_norm"})
    space = RecipeSpace(small_recipe(), base, most, clients, 1.0, True, fixed, by_turns=True)
    assume({"total": total} != space.start)  # the recipe's own rounds stay
    rounds = space.candidate({"total": total}).rounds
    sampler = RoundRobin(clients, cohort)
    here, next_one = (sampler.max_participations(r) for r in (rounds, rounds + 1))
    assert next_one > here or most < clients / cohort


def test_a_clip_of_gradients_does_not_grow_with_the_steps() -> None:
    fixed = frozenset({"clip_norm", "total", "cohort"})
    base = Candidate(1, 64, 0.1, 1.0, 10)
    gradients = RecipeSpace(small_recipe(), base, 64, 100, 1.0, True, fixed)
    longer = {"local_steps": 3.0, "stride": 3.0}  # at the same rate
    updates = replace(gradients, clips_gradients=False)
    assert gradients.candidate(longer).clip_norm == 1.0
    assert updates.candidate(longer).clip_norm == 8.0


@given(spaces(), st.lists(unit, min_size=9, max_size=9), st.sampled_from([1, -1, 0.5, -0.5]))
@settings(max_examples=100, deadline=None)
def test_a_small_step_changes_one_thing(space: RecipeSpace, at: list[float], steps: float) -> None:
    here = place(space, at)
    for name, (low, high) in space.box.items():
        there = space.moved(here, name, steps)
        if there is None:  # the box ends first
            continue
        assert {n for n in here if here[n] != there[n]} == {name}
        assert low <= there[name] <= high
        assert (there[name] - here[name]) * steps > 0
        assert space.candidate(there) != space.candidate(here)


SERVER = replace(BOWL, base=Candidate(2, 8, 0.5, 1.0))


def recipe(*more: str) -> Recipe:
    return recipes.with_defaults(recipes.parse({}, ["privacy.clip_norm=1", *more], {"seed": 1}))


def server_changes(*more: str) -> list[Point]:
    space = replace(SERVER, recipe=recipe(*more))
    return list(space.server_changes(space.start))


def test_momentum_a_falling_rate_and_a_tracked_clip_are_tried() -> None:
    def tried(*more: str) -> set[tuple[object, ...]]:
        names = ("server_momentum", "server_schedule", "clip_quantile")
        return {tuple(point.get(name) for name in names) for point in server_changes(*more)}

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


def test_all_rounds_lead_as_far_as_before() -> None:
    """An update that lasts moves the weights by rate / (1 - momentum) a round, by half of it on
    average under a linear schedule."""
    for point in server_changes("server.learning_rate=0.8"):
        candidate = SERVER.candidate(point)
        server = recipe_with_settings(recipe("server.learning_rate=0.8"), candidate).server
        half = 0.5 if server.schedule == "linear" else 1.0
        assert half * server.learning_rate / (1 - server.momentum) == pytest.approx(0.8)
        longer = SERVER.moved(point, "local_steps", 1)  # what was taken is kept
        assert longer is not None
        moved = SERVER.candidate(longer)
        assert moved.server_momentum == candidate.server_momentum
        assert moved.server_learning_rate == candidate.server_learning_rate
