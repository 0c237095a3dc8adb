"""Networks train their first layer through the dual where that pays, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of

from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines import algebra
from fedveil.training.engines.affine import Affine
from fedveil.training.engines.algebra import MlpEngine
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import RoundRequest
from fedveil.training.engines.dual import costs
from fedveil.training.models.flat import Slot

from .jobs import GRIDS, RULES, SHAPINGS, SIZES, make_job, start_of

FIRST = Affine(Slot("w", (200, 784), 0), Slot("b", (200,), 156_800))


def test_clients_with_few_examples_go_through_the_dual() -> None:
    rule = LocalTraining(LearningRate(0.1), epochs=5, batch_size=10)
    by_rows, by_dual = costs(rule, FIRST, np.array([10, 50, 600, 100_000]))
    assert (by_dual < by_rows).tolist() == [True, True, True, False]


def test_rules_beyond_plain_descent_keep_their_weights_as_rows() -> None:
    for name, rule in RULES.items():
        engine = build_engine(make_job("wide mlp", rule, UpdatePipeline()), "mlp")
        assert isinstance(engine, MlpEngine if rule.plain else RowEngine), name


@pytest.mark.parametrize("pipeline", [*SHAPINGS.values(), *GRIDS.values()], ids=[*SHAPINGS, *GRIDS])
def test_both_ways_give_the_same_sum(
    pipeline: UpdatePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients through the dual against all clients as rows."""
    job = make_job("wide mlp", RULES["two epochs, weight decay"], pipeline)
    cohort, start = np.arange(len(SIZES)), start_of(job)
    results = []
    for cheap, dear in ((1, 0), (0, 1)):
        flat = np.ones(len(SIZES))
        monkeypatch.setattr(
            algebra,
            "costs",
            lambda *_, flat=flat, cheap=cheap, dear=dear: (flat * cheap, flat * dear),
        )
        results.append(sum_of(build_engine(job, "mlp"), RoundRequest(start, cohort, 3)))
    dual, rows = results
    torch.testing.assert_close(dual.norms, rows.norms, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dual.losses, rows.losses, rtol=1e-4, atol=1e-6)
    if pipeline.rounding_beta is not None:
        return  # rounding at random turns the smallest difference into a step
    units = 0.0 if pipeline.granularity is None else 2.0 * len(SIZES)  # of the grid
    torch.testing.assert_close(
        dual.total, rows.total, rtol=1e-4, atol=max(1e-6, units), check_dtype=True
    )


def test_an_update_that_is_not_finite_counts_as_zero() -> None:
    rule = LocalTraining(LearningRate(1e30), epochs=2, batch_size=4)
    job = make_job("wide mlp", rule, UpdatePipeline(Clip(0.2, 2)))
    engine = build_engine(job, "mlp")
    assert isinstance(engine, MlpEngine)
    result = sum_of(engine, RoundRequest(start_of(job), np.arange(len(SIZES)), 0))
    assert result.rejected > 0
    assert bool(torch.isfinite(result.total).all())
    assert float(result.total.norm()) <= 0.2 * len(SIZES)
