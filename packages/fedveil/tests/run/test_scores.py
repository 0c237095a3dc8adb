"""Scores beside scikit-learn's, and when a model counts as clearly better than a constant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from fedveil.report.scores import score_rows
from fedveil.run.scores import Scores, area_under_curve, class_scores, number_scores


def _classified(names: int, seed: int, rows: int = 500) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    logits = np.round(draw.normal(size=(rows, names)), 1)  # rounded: many ties
    targets = draw.integers(0, names, rows)
    logits[np.arange(rows), targets] += 0.7
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True), targets


def _tallied(probabilities: np.ndarray, targets: np.ndarray) -> Scores:
    names = [f"class {i}" for i in range(probabilities.shape[1])]
    return class_scores(names, probabilities, targets)


def _brier(probabilities: np.ndarray, targets: np.ndarray) -> float:
    if probabilities.shape[1] == 2:
        return float(metrics.brier_score_loss(targets, probabilities[:, 1]))
    return float(((probabilities - np.eye(probabilities.shape[1])[targets]) ** 2).sum(1).mean())


def _calibration_error(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Guo et al. 2017, row by row."""
    gap = 0.0
    for low in np.arange(15) / 15:
        inside = [
            (max(own), own.argmax() == target)
            for own, target in zip(probabilities, targets, strict=True)
            if low <= max(own) < low + 1 / 15
        ]
        gap += abs(sum(sure for sure, _ in inside) - sum(hit for _, hit in inside))
    return gap / len(targets)


@pytest.mark.parametrize("names", [2, 3, 7])
def test_classes_are_scored_as_by_scikit_learn(names: int) -> None:
    probabilities, targets = _classified(names, seed=names)
    found = _tallied(probabilities, targets).figures
    said = probabilities.argmax(1)
    two = names == 2
    auc = metrics.roc_auc_score(
        targets, probabilities[:, 1] if two else probabilities, multi_class="ovr"
    )
    wanted = {
        "accuracy": metrics.accuracy_score(targets, said),
        "balanced_accuracy": metrics.balanced_accuracy_score(targets, said),
        "f1": metrics.f1_score(targets, said, average="binary" if two else "macro"),
        "auc": auc,
        "log_loss": metrics.log_loss(targets, probabilities, labels=range(names)),
        "brier": _brier(probabilities, targets),
        "calibration_error": _calibration_error(probabilities, targets),
    }
    assert found == pytest.approx(wanted, rel=1e-12)  # sums of 500 doubles in another order


def test_numbers_are_scored_as_by_scikit_learn() -> None:
    draw = np.random.default_rng(3)
    targets = draw.normal(12, 4, 400)
    predicted = targets + draw.normal(0, 1, 400)
    found = number_scores(predicted, targets)
    wanted = {
        "mae": metrics.mean_absolute_error(targets, predicted),
        "rmse": metrics.root_mean_squared_error(targets, predicted),
        "r2": metrics.r2_score(targets, predicted),
    }
    assert found.figures == pytest.approx(wanted, rel=1e-12)
    centre = np.full(400, targets.mean())
    assert found.constant["rmse"] == pytest.approx(
        metrics.root_mean_squared_error(targets, centre), rel=1e-12
    )
    assert found.constant["mae"] == pytest.approx(
        metrics.mean_absolute_error(targets, centre), rel=1e-12
    )
    assert found.clearly_better
    assert not found.warning


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    """By its definition, pair by pair, with ties counted half."""
    high = [score for score, positive in rows if positive]
    low = [score for score, positive in rows if not positive]
    found = area_under_curve(
        np.array([float(score) for score, _ in rows]), np.array([kind for _, kind in rows])
    )
    if not high or not low:
        assert found is None
        return
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in high for b in low]
    assert found == pytest.approx(math.fsum(pairs) / len(pairs), abs=1e-12)


def test_one_percent_positives_do_not_look_like_a_good_model() -> None:
    """Always 'no' is right 99 times in 100, and must be called what it is."""
    targets = (np.arange(1000) % 100 == 0).astype(np.int64)
    found = _tallied(np.tile([0.98, 0.02], (1000, 1)), targets)
    assert found.figures["accuracy"] == 0.99
    assert found.figures["balanced_accuracy"] == 0.5
    assert found.figures["f1"] == 0.0
    assert found.figures["auc"] == 0.5
    assert not found.clearly_better
    assert "answering 'class 0' every time" in found.warning


@pytest.mark.parametrize(("times", "clear"), [(1, False), (20, False), (1000, True)])
def test_a_saving_in_log_loss_is_clear_from_three_standard_errors_on(
    times: int, clear: bool
) -> None:
    """Row by row beside a constant that gives each class its share, here one half; the answer is
    class 0 in every row, so that the hits are those of the constant, too."""
    positive = np.tile([0.05, 0.45, 0.45, 0.3, 0.45, 0.45, 0.45, 0.4, 0.3, 0.49], times)
    targets = np.tile(np.repeat([0, 1], 5), times)
    saved = np.log(2) + np.log(np.where(targets == 1, positive, 1 - positive))
    assert (saved.mean() > 3 * saved.std() / math.sqrt(len(saved))) == clear
    assert saved.mean() > 0.01 * np.log(2)
    found = _tallied(np.column_stack([1 - positive, positive]), targets)
    assert found.clearly_better == clear


def test_noise_is_seldom_called_clearly_better() -> None:
    """Answers unrelated to the labels: each of three one-sided tests at three standard errors errs
    with probability 0.0014, so more than 12 of 1000 has a probability below 1e-3."""
    draw = np.random.default_rng(7)
    called = 0
    for _ in range(1000):
        targets = draw.integers(0, 2, 400)
        positive = draw.uniform(0.05, 0.95, 400)
        called += _tallied(np.column_stack([1 - positive, positive]), targets).clearly_better
    assert called <= 12


def test_whether_a_model_is_as_right_as_it_says() -> None:
    """Rows that are right as often as they are said to be have no calibration error but chance:
    20,000 of them, four standard errors of a bin. A model that is always sure shows."""
    draw = np.random.default_rng(3)
    chances = draw.dirichlet((1.0, 1.0), 20_000)
    targets = (draw.random(20_000) < chances[:, 1]).astype(np.int64)
    honest = _tallied(chances, targets)
    assert honest.figures["calibration_error"] < 4 * math.sqrt(8 * 0.25 / 20_000)
    sure = np.eye(2)[chances.argmax(1)]
    boast = _tallied(sure, targets)
    assert boast.figures["calibration_error"] == pytest.approx(1 - boast.figures["accuracy"])
    ((rows, said, right),) = boast.reliability
    assert (rows, said, right) == (20_000, 1.0, pytest.approx(boast.figures["accuracy"]))


def test_a_model_that_ranks_rare_rows_has_learned_something() -> None:
    """Of 1 % positives accuracy says nothing, and log loss is hardly less; ranks are clear."""
    draw = np.random.default_rng(0)
    targets = (np.arange(4000) < 40).astype(np.int64)
    logits = -4.6 + draw.normal(size=4000) + 0.9 * targets
    found = _tallied(_two(logits), targets)
    assert 0.65 < found.figures["auc"] < 0.85
    assert found.clearly_better
    assert "use the probabilities, or class weights" in found.warning
    loud = _tallied(_two(5 * logits + 20), targets)  # the same ranks, and useless probabilities
    assert loud.warning.startswith("it ranks rows better")
    # Blind ranks pass one time in 700: four of 200 or more, two times in 10,000.
    blind = [_tallied(_two(draw.normal(size=4000) - 4.6), targets) for _ in range(200)]
    assert sum(one.figures["auc"] > 0.5 and one.clearly_better for one in blind) < 4


def _two(logits: np.ndarray) -> np.ndarray:
    chances = 1 / (1 + np.exp(-logits))
    return np.stack([1 - chances, chances], axis=1)


@pytest.mark.parametrize("names", [2, 3])
def test_the_constant_answer_is_scored_as_by_scikit_learn(names: int) -> None:
    probabilities, targets = _classified(names, seed=10 + names)
    found = _tallied(probabilities, targets)
    shares = np.bincount(targets) / len(targets)
    said = np.full(len(targets), shares.argmax())
    average = "binary" if names == 2 else "macro"
    assert found.constant == pytest.approx(
        {
            "accuracy": metrics.accuracy_score(targets, said),
            "balanced_accuracy": metrics.balanced_accuracy_score(targets, said),
            "f1": metrics.f1_score(targets, said, average=average, zero_division=0),
            "auc": 0.5,
            "log_loss": metrics.log_loss(targets, np.tile(shares, (len(targets), 1))),
            "brier": _brier(np.tile(shares, (len(targets), 1)), targets),
            "calibration_error": 0.0,
        },
        rel=1e-12,
    )


def test_rare_positives_that_are_ranked_well_count() -> None:
    """The same accuracy as always 'no', but probabilities that know more."""
    targets = (np.arange(5000) % 50 == 0).astype(np.int64)
    positive = np.where(targets == 1, 0.4, 0.01)
    found = _tallied(np.column_stack([1 - positive, positive]), targets)
    assert found.figures["accuracy"] == found.constant["accuracy"] == 0.98
    assert found.figures["auc"] == 1.0
    assert found.clearly_better


def test_better_probabilities_but_fewer_hits_than_the_constant_are_said_to_be_so() -> None:
    """As of loans that are mostly repaid: whoever uses the classes would do better without it."""
    targets = (np.arange(4000) % 8 == 0).astype(np.int64)
    positive = np.where(targets == 1, 0.45, 0.05)
    positive[1:4000:8] = 0.51  # 500 of 3500 who are negative
    found = _tallied(np.column_stack([1 - positive, positive]), targets)
    assert found.clearly_better
    assert found.warning == (
        "its probabilities are worth more than a constant answer, but its likeliest class is right "
        "in 75.0% of 4000 rows, and always answering 'class 0' in 87.5%; use the probabilities, or "
        "class weights"
    )
    positive[1:4000:8] = 0.05  # always class 0, too
    assert "right in 87.5%" in _tallied(np.column_stack([1 - positive, positive]), targets).warning
    positive[targets == 1] = 0.55
    assert not _tallied(np.column_stack([1 - positive, positive]), targets).warning


def test_a_confident_model_with_a_poor_log_loss_still_counts_by_its_hits() -> None:
    draw = np.random.default_rng(5)
    targets = draw.integers(0, 2, 2000)
    said = np.where(draw.random(2000) < 0.8, targets, 1 - targets)
    probabilities = np.where(said[:, None] == np.arange(2), 1 - 1e-9, 1e-9)
    found = _tallied(probabilities, targets)
    assert found.figures["log_loss"] > found.constant["log_loss"]
    assert found.clearly_better
    assert not found.learnt  # noise alone could do so


def test_numbers_no_better_than_the_mean_are_said_to_be_so() -> None:
    draw = np.random.default_rng(9)
    targets = draw.normal(12, 5, 1000)
    found = number_scores(draw.normal(12, 5, 1000), targets)
    assert found.figures["r2"] < 0  # type: ignore[operator]
    assert "not clearly better than answering the mean (" in found.warning


def test_one_class_only_leaves_undefined_figures_out() -> None:
    probabilities, _ = _classified(2, seed=2, rows=50)
    found = _tallied(probabilities, np.zeros(50, np.int64))
    assert found.figures["auc"] is None
    assert found.figures["balanced_accuracy"] == found.figures["accuracy"]
    assert not found.clearly_better


def test_where_one_class_has_most_rows_accuracy_does_not_come_first() -> None:
    for share, first in ((0.5, "accuracy"), (0.9, "area under the ROC curve")):
        targets = (np.arange(1000) >= 1000 * share).astype(np.int64)
        found = _tallied(np.tile([share, 1 - share], (1000, 1)), targets)
        assert score_rows(found.to_dict())[0][0] == first
