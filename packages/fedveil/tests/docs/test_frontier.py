"""What the pages and pictures say of the best recipes is what their runs found."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from benchmarks import frontier_features, frontier_search
from benchmarks.frontier import RESULTS, best_recipes, current, epsilon_of, jobs, kept, name_of
from benchmarks.frontier_proxies import PROXIES, other_writers, writer_numbers
from benchmarks.frontier_search import (
    FOLLOWS,
    LOOKED,
    SEARCHES,
    Settings,
    Trials,
    changed,
    chosen_for,
    ends_of,
    key_of,
    rest_of,
    rewritten,
    searched,
)
from benchmarks.frontier_tables import (
    PAGE,
    every_run,
    page_with_tables,
)
from fedveil.data.sources import find
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import is_protected

FOUND = current()
SEARCHED = frontier_search.kept()
AGAIN = "python -m benchmarks.frontier --draw"


def test_every_recipe_was_run_as_it_is_now() -> None:
    assert set(kept()) == set(FOUND) == {name for name, _ in jobs("")}
    assert all(FOUND[name]["seeds"] for name in FOUND)


def test_pages_have_what_was_found() -> None:
    assert (RESULTS / "frontier.md").read_text() == every_run(FOUND), AGAIN
    assert PAGE.read_text() == page_with_tables(PAGE.read_text(), FOUND), AGAIN


def test_a_result_that_changes_is_noticed() -> None:
    other = {**FOUND, "best/mnist-epsilon-1": FOUND["best/mnist-epsilon-2"]}
    assert every_run(other) != every_run(FOUND)
    assert page_with_tables(PAGE.read_text(), other) != page_with_tables(PAGE.read_text(), FOUND)


class Stored(Trials):
    """A search's trials as they were kept; any other is a mistake."""

    def found(self, epsilon: float, chosen: Settings) -> dict[str, list[float]]:
        known: dict[str, list[float]] = SEARCHED[self._name]["trials"][key_of(epsilon, chosen)]
        return known


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_ends_where_its_trials_lead(name: str) -> None:
    ends = {f"{epsilon:g}": chosen for epsilon, chosen in ends_of(name, Stored(name))}
    assert ends == SEARCHED[name]["chosen"]


@pytest.mark.parametrize("name", SEARCHES)
def test_what_no_search_asked_is_what_it_was(name: str) -> None:
    """Trials of other models, methods or features would be worth nothing."""
    assert SEARCHED[name]["of"]["rest"] == rest_of(name)


@pytest.mark.parametrize("name", [*SEARCHES, *FOLLOWS])
def test_recipes_have_what_was_best_on_other_data(name: str) -> None:
    epsilons = {f"{epsilon_of(one):g}" for one in best_recipes() if name_of(one) == name}
    assert set(chosen_for(name)) >= epsilons
    for epsilon in epsilons:
        table = recipes.read(Path(f"best/{name}-epsilon-{epsilon}"))
        recipe = recipes.parse(table)
        assert recipe == changed(table, chosen_for(name)[epsilon])
        own = [one for one in recipe.privacy.tuned_on if is_protected(recipe.data, one)]
        assert own == ([LOOKED[name]] if name in LOOKED else [])
        # Of CIFAR-10, test images alone, which no client has; of Shakespeare, the alphabet.
        source = PROXIES[FOLLOWS.get(name, name)].source
        assert source != recipe.data.source or source in ("cifar10", "shakespeare")


def test_features_have_the_constants_that_were_found_on_other_pictures() -> None:
    class Kept(frontier_features.Trials):
        def part(self, part: str, chosen: Settings) -> float:
            return float(SEARCHED["features"]["trials"][frontier_features.key_of(part, chosen)])

    search = frontier_features.SEARCH
    found = searched(search, frontier_features.EPSILON, search.begin, Kept())
    assert found == SEARCHED["features"]["chosen"]["2"]
    for key in frontier_features.EVERY:
        module, name = key.split(".")
        assert vars(frontier_features.MODULES[module])[name] == found[key], key


def test_every_best_recipe_has_a_search() -> None:
    assert {name_of(name) for name in best_recipes()} == {*SEARCHES, *FOLLOWS}
    assert set(SEARCHES) == set(PROXIES) == set(SEARCHED) - {"features"}


def test_a_search_ends_at_the_top() -> None:
    class Hill:
        def score(self, epsilon: float, chosen: Settings) -> float:
            rate, clip = chosen["training.learning_rate"], chosen["privacy.clip_norm"]
            return -abs(np.log2(rate / 32)) - abs(np.log2(clip / (4 * epsilon)))

    for epsilon, clip in ((0.5, 2.0), (2.0, 8.0), (8.0, 32.0)):
        found = searched(SEARCHES["digits"], epsilon, SEARCHES["digits"].begin, Hill())
        assert (found["training.learning_rate"], found["privacy.clip_norm"]) == (32.0, clip)


def test_settings_are_written_into_a_recipe_and_nothing_else() -> None:
    text = """# A remark.
[training]
rounds = 30  # few
learning_rate = 8.0

[server]
learning_rate = 3.0
average = "tail"

[privacy]
epsilon = 1.0
"""
    settings = {
        "training.rounds": 60,
        "server.learning_rate": 1.0,
        "privacy.clip_norm": 0.5,
        "privacy.epsilon": 1.0,
    }
    written = rewritten(text, settings)
    assert "# A remark." in written
    assert "rounds = 60  # few" in written
    assert recipes.parse(tomllib.loads(written)) == changed(tomllib.loads(text), settings)
    assert "learning_rate = 1.0" not in written


@pytest.mark.skipif(not os.environ.get("FEDVEIL_DATA"), reason="FEDVEIL_DATA is not set")
def test_writers_who_stand_in_are_other_people() -> None:
    """MNIST and FEMNIST come from the same forms: 33 of FEMNIST's writers are in both."""
    pools = {name: find(name).pool() for name in ("mnist-writers", "femnist")}
    numbers = {name: writer_numbers(pool) for name, pool in pools.items()}
    both = set(numbers["mnist-writers"]) & set(numbers["femnist"])
    assert len(both) == 33
    for name, than in (("mnist-writers", "femnist"), ("femnist", "mnist-writers")):
        chosen = other_writers(pools[name], pools[than])
        assert set(numbers[name]) - set(numbers[name][chosen]) == both
