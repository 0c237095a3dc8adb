"""Which model a table gets where nobody has chosen one: from public facts and the user's keys."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.data.public_facts import PublicFacts
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import with_table_model
from fedveil.planning.recipe import Recipe


def chosen(clients: int, **values: Any) -> Recipe:
    given = {"data.file": "t.csv", "data.label": "y", "data.client_column": "who"}
    given |= {name.replace("__", "."): value for name, value in values.items()}
    facts = PublicFacts(tuple(f"c{i}" for i in range(12)), clients, lambda unit: 20_000)
    return with_table_model(recipes.parse({}, (), given), set(given), clients, facts)


@pytest.mark.parametrize("more", [{}, {"privacy__epsilon": 1.0}, {"seed": 3}, {"data__task": "x"}])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_rows_and_persons_get_few_gradients_on_bins(unit: str, more: dict[str, Any]) -> None:
    found = chosen(5, privacy__unit=unit, **more)
    assert (found.training.method, found.training.batch_rate) == ("dp-sgd", 1.0)
    assert found.data.bins is not None


@pytest.mark.parametrize(
    "more",
    [
        {"training__method": "dp-sgd"},
        {"training__rounds": 8},
        {"privacy__clip_norm": 1.0},
        {"model__hidden": [8], "model__name": "mlp"},
        {"training__class_weights": {"a": 2.0}},
    ],
)
def test_whoever_has_a_training_in_mind_gets_it(more: dict[str, Any]) -> None:
    found = chosen(5, privacy__unit="record", **more)
    assert found.training.method == "dp-sgd"
    assert found.data.bins is None


def test_clients_get_moments_if_there_are_thousands() -> None:
    assert chosen(100, privacy__unit="client").training.method == "dp-fedavg"
    many = chosen(5000, privacy__unit="client")
    assert (many.training.method, many.privacy.trust) == ("moments", "central")
    hidden = chosen(5000, privacy__unit="client", aggregation__secure="masked")
    assert hidden.privacy.trust == "distributed"


def test_less_budget_means_fewer_bins_and_given_ones_stay() -> None:
    much, little = (chosen(5, privacy__unit="record", privacy__epsilon=e) for e in (8.0, 0.5))
    assert (much.data.bins or 0) > (little.data.bins or 0)
    assert chosen(5, privacy__unit="record", data__bins=7).data.bins == 7
