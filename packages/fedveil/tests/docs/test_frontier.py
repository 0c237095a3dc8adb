"""What the pages and pictures say of the best recipes is what their runs found."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import frontier_search
from benchmarks.frontier import RESULTS, best_recipes, current, epsilon_of, jobs, kept, name_of
from benchmarks.frontier_proxies import PROXIES
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
)
from benchmarks.frontier_tables import (
    PAGE,
    every_run,
    page_with_tables,
)
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


class Stored(Trials):
    """A search's trials as they were kept; any other is a mistake."""

    def found(self, epsilon: float, chosen: Settings) -> dict[str, list[float]]:
        known: dict[str, list[float]] = SEARCHED[self._name]["trials"][key_of(epsilon, chosen)]
        return known


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_ends_where_its_trials_lead(name: str) -> None:
    ends = {f"{epsilon:g}": chosen for epsilon, chosen in ends_of(name, Stored(name))}
    assert ends == SEARCHED[name]["chosen"]


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
