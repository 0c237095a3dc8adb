"""Cheng's pages: comparisons pair seeds and settings, and the norms that are drawn are real."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil_lab.reproduction.case import Case, Data, Without
from fedveil_lab.reproduction.charts import lines_of
from fedveil_lab.reproduction.experiment import Experiment, Panel
from fedveil_lab.reproduction.pages import EXPERIMENTS
from fedveil_lab.reproduction.pages.cheng import at_best_clips, at_one_clip, norm_findings
from fedveil_lab.reproduction.pictures import draw
from fedveil_lab.reproduction.ridges import hills_of, ridges_of
from fedveil_lab.reproduction.run_case import run_case
from fedveil_lab.reproduction.summary import Row, paired

BASE, OURS = "DP-FedAvg", "BLUR + LUS"


def row(method: str, clip: float, accuracies: dict[int, float], **labels: float) -> Row:
    """A case whose seeds ended with these accuracies."""
    case = Case(
        (("data", "toy"), ("epsilon", 8.0), ("method", method), ("clip", clip), *labels.items()),
        Data("digits"),
        (),
        every=1,
    )
    rng = np.random.default_rng(0)
    outcomes = tuple(
        {
            "seed": seed,
            "final": {"accuracy": accuracy, "update_norm": 0.5},
            "curve": [{"round": 2, "accuracy": accuracy, "update_norm": 0.5}],
            "norms": {str(number): list(rng.uniform(0.2, 0.8, 50)) for number in (1, 2)},
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


def test_findings_compare_best_clips_and_equal_clips() -> None:
    (best,) = at_best_clips(ROWS)
    assert "DP-FedAvg 80.00 ± 10.00 (S = 1)" in best
    assert "BLUR + LUS 61.50" in best
    assert "(S = 0.1). Minus DP-FedAvg: BLUR + LUS -18.50 ± " in best
    small, large = at_one_clip(ROWS)
    assert "clip 0.1" in small
    assert "BLUR + LUS +1.50 ± 0.29" in small
    assert "BLUR + LUS -50.00" in large


def test_a_method_with_its_own_setting_meets_the_baseline_without_it() -> None:
    rows = (row(BASE, 0.3, {0: 50.0}, sparsity=0.0), row("LUS", 0.3, {0: 49.0}, sparsity=0.7))
    (found,) = at_one_clip(rows)
    assert "LUS sparsity 0.7 -1.00" in found


def test_difference_panels_show_paired_means_and_the_rest_as_it_is() -> None:
    panel = Panel("", "clip", "accuracy", "method", minus=BASE, log_x=True)
    lines = lines_of(panel, ROWS)
    assert lines[BASE] == []
    assert [(x, s.mean) for x, s in lines[OURS]] == [(0.1, 1.5), (1.0, -50.0)]


def test_hills_hold_all_seeds_of_a_round_and_findings_count_what_is_above_the_clip() -> None:
    hills = hills_of(ROWS[:1])
    assert list(hills) == [1, 2]
    assert len(hills[1]) == 150
    share = np.mean(np.concatenate(list(hills.values())) > 0.1)
    assert f"{share:.0%} above the clip" in norm_findings(ROWS[:1])[0]


def test_norm_pictures_draw() -> None:
    where = (("method", BASE), ("clip", 0.1))
    ridges = Panel("", "round", "update_norm", "method", where, "norm", "round", ridges=True)
    experiment = EXPERIMENTS["cheng-figure-2"]
    shown = Experiment(**{**experiment.__dict__, "panels": (ridges,)})
    (made,) = ridges_of(shown, ROWS)
    assert all(sum(hill) == pytest.approx(1, abs=0.01) for hill in made["hills"].values())
    document = {"experiment": "", "charts": [], "ridges": [made]}
    assert draw(document).startswith(b"\x89PNG")


def test_recorded_norms_are_those_of_the_cohort() -> None:
    """Everybody takes part, so there are as many norms as clients, and their median is reported."""
    case = Case(
        (),
        Data("digits", (("clients", 30),), "iid"),
        (
            ("model.name", "logistic"),
            ("training.method", "bounded-sparse"),
            ("training.sampling", "everyone"),
            ("training.rounds", 3),
            ("training.local_steps", 2),
            ("privacy.clip_norm", 0.1),
        ),
        Without(),
        every=2,
        measures=("update_norms",),
    )
    outcome = run_case(case, 0)
    assert list(outcome["norms"]) == ["2", "3"]
    last = sorted(outcome["norms"]["3"])
    assert len(last) == 30
    assert last[14] == pytest.approx(outcome["final"]["update_norm"], rel=1e-3)
    share = np.mean(np.array(last) > 0.1)
    assert outcome["final"]["clipped"] == pytest.approx(share, abs=1 / 30)
