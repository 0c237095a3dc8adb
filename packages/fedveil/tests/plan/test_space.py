"""Settings and the points that stand for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.pilots import small_recipe

from fedveil.planning import recipe as recipes
from fedveil.privacy.sampling import RoundRobin
from fedveil.tune.space import Space
from fedveil.tune.trials import Candidate, recipe_with_settings

FULL = Candidate(3, 40, 0.2, 1.5, 50, 0.1, 1.0, 0.4, 0.7)
unit = st.floats(0, 1)


def place(space: Space, at: list[float]) -> dict[str, float]:
    """A point of the box by its height along every side."""
    box = space.box.items()
    return {name: low + x * (high - low) for x, (name, (low, high)) in zip(at, box, strict=True)}


def spaces() -> st.SearchStrategy[Space]:
    return st.builds(
        Space,
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
def test_every_point_of_the_box_is_a_legal_candidate(space: Space, at: list[float]) -> None:
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


@given(spaces(), st.lists(unit, min_size=9, max_size=9))
@settings(max_examples=200, deadline=None)
def test_a_candidate_stands_where_it_came_from(space: Space, at: list[float]) -> None:
    """Rounding aside: three digits of rates and clips, whole steps, rounds and doublings."""
    candidate = space.candidate(place(space, at))
    again = space.candidate(space.point(candidate))
    assert again.local_steps == candidate.local_steps
    assert abs(again.rounds - candidate.rounds) <= max(1, 0.01 * candidate.rounds)
    assert again.cohort == candidate.cohort or candidate.cohort in (space.clients, 1)
    for name in ("learning_rate", "clip_norm", "server_learning_rate"):
        assert getattr(again, name) == pytest.approx(getattr(candidate, name), rel=0.02)
    for name in ("smoothing", "penalty", "sparsity"):
        assert getattr(again, name) == pytest.approx(getattr(candidate, name), abs=0.01)


@given(st.integers(20, 3000), st.integers(1, 20), st.integers(50, 2000), st.floats(-4, 0))
@settings(max_examples=200, deadline=None)
def test_rounds_by_turns_waste_no_participation(
    most: int, cohort: int, clients: int, total: float
) -> None:
    """One more round would cost everybody's noise one more participation."""
    base = Candidate(1, most, 0.1, 1.0, cohort)
    fixed = frozenset({"cohort", "local_steps", "stride", "clip_norm"})
    space = Space(base, most, clients, 1.0, True, fixed, by_turns=True)
    rounds = space.candidate({"total": total}).rounds
    sampler = RoundRobin(clients, cohort)
    here, next_one = (sampler.max_participations(r) for r in (rounds, rounds + 1))
    assert next_one > here or most < clients / cohort


def test_a_clip_of_gradients_does_not_grow_with_the_steps() -> None:
    fixed = frozenset({"clip_norm", "total", "cohort"})
    base = Candidate(1, 64, 0.1, 1.0, 10)
    gradients = Space(base, 64, 100, 1.0, True, fixed)
    longer = {"local_steps": 3.0, "stride": 3.0}  # at the same rate
    updates = replace(gradients, clips_gradients=False)
    assert gradients.candidate(longer).clip_norm == 1.0
    assert updates.candidate(longer).clip_norm == 8.0


def test_only_what_a_method_has_is_searched() -> None:
    plain = Space(Candidate(1, 10, 0.1, 1.0), 10, 100, 1.0, False)
    assert tuple(plain.box) == ("local_steps", "total", "stride", "clip_norm")
    assert tuple(Space(FULL, 120, 100, 1.0, False, frozenset({"total"})).box) == (
        *("local_steps", "cohort", "stride", "clip_norm", "server_learning_rate"),
        *("smoothing", "penalty", "sparsity"),
    )


def test_a_candidate_becomes_a_recipe_and_nothing_else_changes() -> None:
    recipe = small_recipe(
        training__method="bounded-sparse", training__sampling="poisson", training__rate=0.5
    )
    changed = recipe_with_settings(recipe, FULL)
    assert (changed.training.local_steps, changed.training.rounds) == (3, 40)
    assert (changed.training.cohort, changed.training.rate) == (50, None)
    assert (changed.training.penalty, changed.training.sparsity) == (0.4, 0.7)
    assert changed.privacy.clip_norm == 1.5
    assert (changed.server.smoothing, changed.server.learning_rate) == (1.0, 0.1)
    assert changed.privacy.epsilon == recipe.privacy.epsilon
    assert changed.data == recipe.data
    assert recipes.parse(recipes.to_table(changed)) == changed


def test_candidates_are_spread_over_the_box() -> None:
    space = Space(Candidate(1, 64, 0.1, 1.0, 40), 64, 400, 1.0, clips_gradients=True)
    found = space.spread(40, seed=0)
    assert len(set(found)) == 40
    assert {c.local_steps for c in found} >= {1, 2, 4}
    rates = [c.learning_rate for c in found]
    assert min(rates) < 0.015 < 0.7 < max(rates)
    assert space.spread(40, seed=0) == found
    assert space.spread(40, seed=1) != found


@given(spaces(), st.lists(unit, min_size=9, max_size=9))
@settings(max_examples=50, deadline=None)
def test_neighbours_are_near_and_legal(space: Space, at: list[float]) -> None:
    here = space.candidate(place(space, at))
    found = space.neighbours(here)
    assert here not in found
    assert len(set(found)) == len(found) > 4
    assert all(other.total_steps <= space.most_steps for other in found)
    origin = space.point(here)
    for other in found:  # an eighth of the box along one side, and what rounding adds
        there = space.point(other)
        sides = space.box.items()
        moves = [abs(there[n] - origin[n]) / (high - low) for n, (low, high) in sides]
        assert sorted(moves)[-3] < 0.35
