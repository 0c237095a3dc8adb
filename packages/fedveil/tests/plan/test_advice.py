"""The answer: options that hold what they say, and honest warnings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.plan.searches import small_recipe, tuner_of

from fedveil.planning.assemble import federation_of, plan_of
from fedveil.tune.advice import advise, recipe_of_option
from fedveil.tune.trials import Candidate

BASE = Candidate(2, 8, 1.0, 1.0)
SOME = {"training__sampling": "poisson", "training__rate": 0.5}


@pytest.fixture(scope="module")
def found() -> object:
    return advise(tuner_of(small_recipe(**SOME, training__rounds=24), effort=1_500))


def test_options_and_why(found: object) -> None:
    names = [option.name for option in found.options]
    assert names == ["recommended", "as it stands", "more private", "cheaper"]
    best, own, _, cheap = found.options
    assert [option.epsilon for option in found.options] == [8.0, 8.0, 4.0, 8.0]
    assert own.candidate == replace(BASE, rounds=24, cohort=30)
    assert best.expected.error <= own.expected.error + 0.01
    assert cheap.uploads < best.uploads == best.candidate.cohort * best.candidate.rounds
    assert all(option.reason for option in found.options)
    assert best.expected.fresh
    assert best.expected.runs >= 2
    assert best.expected.accuracy_spread >= 0
    assert found.warnings == ()


def test_the_recommended_settings_learn(found: object) -> None:
    """Made-up logistic clients: about 85 % is the best that the truth itself reaches."""
    assert found.trivial > 0.35
    assert found.recommended.expected.accuracy > 0.72


def test_options_are_recipes_within_their_budget(found: object) -> None:
    recipe = small_recipe(**SOME)
    for option in found.options:
        chosen = recipe_of_option(recipe, option)
        guarantee = plan_of(chosen, federation_of(chosen.data)).guarantee
        assert 0.99 * option.epsilon < guarantee.epsilon <= option.epsilon


def test_what_does_not_learn_is_said_so_with_the_clients_it_takes() -> None:
    recipe = small_recipe(privacy__epsilon=0.03)
    found = advise(tuner_of(recipe, effort=2_000))
    (warning,) = found.warnings
    assert "does not learn" in warning
    needed = int(re.search(r"with about (\d+) clients", warning)[1])
    assert 60 < needed <= 64 * 60
    # With so many clients at this budget there is no such warning.
    more = small_recipe(privacy__epsilon=0.03, data__clients=needed, data__examples_per_client=8)
    search = tuner_of(more)
    candidate = found.recommended.candidate
    outcome = search.expected(replace(candidate, cohort=None))
    assert outcome.error < 0.9 * search.trials.trivial()
