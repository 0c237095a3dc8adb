"""Sentences and pictures compare rows that are alike, seed by seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fedveil_lab.reproduction.case import Case, Data
from fedveil_lab.reproduction.charts import lines_of
from fedveil_lab.reproduction.experiment import Panel
from fedveil_lab.reproduction.findings import findings
from fedveil_lab.reproduction.pages import EXPERIMENTS
from fedveil_lab.reproduction.runs import Row, paired

BASE, OURS = "DP-FedAvg", "BLUR + LUS"


def row(method: str, clip: float, accuracies: dict[int, float], **labels: float) -> Row:
    """A case whose seeds ended with these accuracies."""
    case = Case(
        (("data", "toy"), ("epsilon", 8.0), ("method", method), ("clip", clip), *labels.items()),
        Data("digits"),
        (),
        every=1,
    )
    outcomes = tuple(
        {
            "seed": seed,
            "final": {"accuracy": accuracy, "update_norm": 0.5},
            "curve": [
                {"round": n, "update_norm": norm} for n, norm in ((0, 0.9), (1, 0.4), (2, 0.5))
            ],
        }
        for seed, accuracy in accuracies.items()
    )
    return Row(case, outcomes)


ROWS = (
    row(BASE, 0.1, {0: 50.0, 1: 60.0, 2: 70.0}),
    row(OURS, 0.1, {0: 51.0, 1: 61.5, 2: 72.0}),
    row(BASE, 1.0, {0: 70.0, 1: 80.0, 2: 90.0}),
    row(OURS, 1.0, {0: 30.0, 1: 30.0, 2: 30.0}),
)


def test_paired_differences_lose_what_seeds_share() -> None:
    gain = paired(ROWS[1], ROWS[0], "accuracy")
    assert gain.mean == pytest.approx(1.5)
    assert gain.deviation == pytest.approx(0.5)  # of 1, 1.5, 2; single runs spread by 10
    assert gain.error == pytest.approx(0.5 / math.sqrt(3))


def test_only_seeds_that_both_ran_are_paired() -> None:
    fewer = row(BASE, 0.1, {1: 60.0, 7: 0.0})
    gain = paired(ROWS[1], fewer, "accuracy")
    assert (gain.mean, gain.runs) == (1.5, 1)
    assert math.isnan(gain.error)


def said(rows: tuple[Row, ...], **how: Any) -> list[str]:
    how = {"compare": ("method",), "base": BASE, "best_of": ""} | how
    return findings(replace(EXPERIMENTS["cheng-table-1"], **how), rows)


def test_methods_are_compared_at_equal_clips_and_at_their_best_ones() -> None:
    best, small, large = said(ROWS, best_of="clip")
    assert f"{BASE} at clip 1 80.00 ± 10.00, {OURS} at clip 0.1 61.50" in best
    assert "(-18.50 ± " in best
    assert "clip 0.1" in small
    assert "(+1.50 ± 0.29)" in small
    assert "(-50.00 ± " in large


def test_without_a_base_the_best_and_the_worst_are_named() -> None:
    first, second = said(ROWS, compare=("clip",), base=None)
    assert "best clip 1 with 80.00" in first
    assert "worst clip 0.1 with 60.00" in first
    assert "best clip 0.1 with 61.50" in second


def test_a_method_with_its_own_setting_meets_the_baseline_without_it() -> None:
    rows = (row(BASE, 0.3, {0: 50.0}, sparsity=0.0), row("LUS", 0.3, {0: 49.0}, sparsity=0.7))
    (found,) = said(rows, compare=("method", "sparsity"))
    assert "LUS sparsity 0.7 49.00 (-1.00)" in found


def test_difference_panels_show_paired_means_and_the_rest_as_it_is() -> None:
    panel = Panel("", "clip", "accuracy", "method", minus=BASE, log_x=True)
    lines = lines_of(panel, ROWS)
    assert lines[BASE] == []
    assert [(x, s.mean) for x, s in lines[OURS]] == [(0.1, 1.5), (1.0, -50.0)]
