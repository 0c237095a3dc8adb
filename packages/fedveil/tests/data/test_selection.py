"""Names that are published: how often a value that one unit alone has appears, against its bound.

The proof (Gopi et al. 2020, weighted Gaussian) is about values that somebody has voted for: at most
k of a unit. A value without a vote is no candidate, however much noise there is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta

import fedveil as fv
from fedveil.core.units import Trust, Unit
from fedveil.data.dp_schema import Offer, buy
from fedveil.data.draft import MOST_CLASSES
from fedveil.data.statistics import Voters, spread_votes

FAILURE = 0.02  # as large as it may be seen in so few runs
NOISE = 2.0
OTHERS = 100  # units with the labels that everybody has
ALARM = 1e-6  # of each case that the bound is called exceeded though it holds
OWN_VALUES = [1, 21, 998]


def labels(unit: Unit, own: int) -> tuple[list[str], np.ndarray, str | None]:
    """Labels, their clients and the separator of a table in which the last unit alone has `own`
    values: in as many rows if it is a client, in one cell if it is a row."""
    values = [f"own{place:06d}" for place in range(own)]
    if unit is Unit.RECORD:
        cells = ["no;yes"] * OTHERS + [";".join(values)]
        return cells, np.zeros(OTHERS + 1, np.int64), ";"
    clients = np.concatenate([np.arange(OTHERS), np.full(own, OTHERS)])
    return [("no", "yes")[row % 2] for row in range(OTHERS)] + values, clients, None


def too_often(seen: int, runs: int) -> float:
    """The lower end of the exact (Clopper-Pearson) interval of a rate."""
    return float(beta.ppf(ALARM, seen, runs - seen + 1)) if seen else 0.0


def offer_for(unit: Unit, seed: int) -> Offer:
    trust = Trust.LOCAL if unit is Unit.RECORD else Trust.CENTRAL
    return Offer(unit, trust, NOISE, FAILURE, seed=seed)


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
@pytest.mark.parametrize("own", OWN_VALUES)
def test_values_of_one_unit_alone_appear_no_more_often_than_was_accounted(
    unit: Unit, own: int
) -> None:
    """False alarms: at most one in a million of each case, for any rate within the bound."""
    cells, clients, separator = labels(unit, own)
    table: dict[str, Any] = {
        "x": pa.chunked_array([np.arange(len(cells)).astype(float)]),
        "y": pa.chunked_array([cells]),
    }
    runs, seen = 60, 0
    for seed in range(runs):
        bought = buy(table, "y", clients, offer_for(unit, seed), ".", separator)
        found = bought.columns["y"].categories
        assert {"no", "yes"} <= set(found)
        seen += any(name.startswith("own") for name in found)
    assert too_often(seen, runs) <= FAILURE


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
@pytest.mark.parametrize("own", OWN_VALUES)
def test_only_values_with_a_vote_are_candidates(unit: Unit, own: int) -> None:
    cells, clients, separator = labels(unit, own)
    voters = Voters(clients if unit is Unit.CLIENT else None)
    names, votes = spread_votes(pa.chunked_array([cells]), voters, MOST_CLASSES, separator)
    assert len(names) == len(votes) == 2 + min(own, MOST_CLASSES)
    assert votes.min() > 0


def test_truths_that_stand_out_of_the_noise_are_truths_again() -> None:
    draw = np.random.default_rng(3)
    X = draw.normal(size=(1200, 2))
    settings = {"data.statistics": "bought", "training.rounds": 2, "training.local_steps": 1}
    settings |= {"training.learning_rate": 0.5, "privacy.clip_norm": 2.0}
    model = fv.DPFedClassifier(settings=settings, epsilon=60.0).fit(X, X[:, 0] > 0)
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == np.bool_
