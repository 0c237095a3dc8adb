"""The tuner ranks local steps and rounds as the measured tables do, from made-up data alone.

Each grid of `results/` with certified noise is ranked by simulation. What was measured for the
tuner's choice must be within a quarter of the best of the grid. Nothing is fitted to these grids:
made-up data have the experiment's clients, records and inputs, and the scale of its values.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.planner_evidence import GRIDS, grids, measured
from benchmarks.predicted import Prediction, predict
from fedveil.data.federation import Examples, Federation, Task
from fedveil.data.partition import SortedSlices
from fedveil.tune.synthetic_proxy import Scales, synthetic_proxy
from fedveil_lab.reproduction.case import Data, at_hand
from fedveil_lab.reproduction.experiment import Scale, table_of
from fedveil_lab.reproduction.pages.fu import lending

LOANS = Scales(target=(12.2, 3.7))  # rates in percent; inputs are standardised


def shape(clients: int, records: int) -> Federation:
    """Loans without a single value: clients, records and inputs."""
    rows = clients * records
    nothing = Examples(np.zeros((rows, 10), np.float32), np.zeros(rows, np.float32))
    offsets = np.arange(0, rows + 1, records)
    return Federation(nothing, offsets, nothing.take(np.arange(1)), Task.REGRESSION, 0)


def predicted(name: str, clients: int, records: int, epsilon: int, seed: int = 0) -> Prediction:
    sweep, values = GRIDS[name]
    truth = measured(name, sweep, clients=clients, noise="certified", epsilon=epsilon)
    recipe = table_of("fu")["lending"]["recipe"]
    cases = [
        lending(Scale.FULL, recipe, labels=["T", "E"], epsilon=epsilon, clients=clients,
                noise="certified", **{"T": 120, sweep: value})
        for value in values
    ]  # fmt: skip
    like = shape(clients, records)
    made = synthetic_proxy(
        like, records, seed, clients=clients, scales=LOANS, partition=SortedSlices(clients)
    )
    return predict(cases, sweep, like, made, truth, seeds=4)


@pytest.mark.parametrize(("name", "epsilon"), [("fu-table-3", 5), ("fu-table-2", 5)])
def test_the_choice_is_within_a_quarter_of_the_best(name: str, epsilon: int) -> None:
    found = predicted(name, 5000, 6, epsilon)
    assert found.times_worse <= 1.25
    blind = np.mean(list(found.measured.values())) / found.measured[found.best]
    assert blind > 1.5  # what a choice that knows nothing costs


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("clients", "records"), [(5000, 6), (425, 80)])
@pytest.mark.parametrize("epsilon", [1, 3, 5])
@pytest.mark.parametrize("name", list(GRIDS))
def test_in_every_grid_and_for_every_made_up_world(
    name: str, clients: int, records: int, epsilon: int, seed: int
) -> None:
    assert predicted(name, clients, records, epsilon, seed).times_worse <= 1.25


@pytest.mark.slow
@pytest.mark.skipif(
    not (at_hand(Data("adult")) and at_hand(Data("lending-club"))), reason="needs the files"
)
def test_in_every_grid_of_both_papers_with_the_true_scales() -> None:
    """Fu's tables II and III, and Hu's figures 7 and 8, which end in figures 5 and 6."""
    found = dict(grids())
    assert len(found) == 24
    assert {name: one.times_worse for name, one in found.items() if one.times_worse > 1.25} == {}
