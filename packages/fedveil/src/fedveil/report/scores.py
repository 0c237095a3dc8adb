"""Names, order and format of a model's scores, on a terminal and in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

NAMES = {
    "subset_accuracy": "rows with all labels right",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "f1_micro": "F1 of all labels together",
    "auc": "area under the ROC curve",
    "log_loss": "log loss",
    "brier": "Brier score",
    "calibration_error": "calibration error",
    "rmse": "root mean squared error (label's unit)",
    "mae": "mean absolute error (label's unit)",
    "r2": "R2",
}
_SHARES = ("accuracy", "subset_accuracy", "balanced_accuracy", "calibration_error")
# Where one class has most rows, accuracy says least.
_UNEVEN = 0.75
_FIRST_IF_UNEVEN = ("auc", "log_loss", "balanced_accuracy", "f1", "accuracy")


def ordered(scores: Mapping[str, Any]) -> list[str]:
    """Return the names of the known scores, the most telling first.

    Args:
        scores: what `Scores.to_dict` returns.
    """
    order: Iterable[str] = NAMES
    if (scores.get("constant", {}).get("accuracy") or 0.0) > _UNEVEN:
        order = dict.fromkeys((*_FIRST_IF_UNEVEN, *NAMES))
    return [name for name in order if scores.get(name) is not None]


def score_rows(scores: Mapping[str, Any]) -> list[list[str]]:
    """Return table rows of a model's scores beside those of the best constant answer."""
    constant = scores["constant"]
    return [
        [NAMES[key], f"{shown(key, scores[key])} (constant: {shown(key, constant.get(key))})"]
        for key in ordered(scores)
    ]


def leading_score(result: Mapping[str, Any]) -> tuple[str, float, float | None] | None:
    """Return the score that stands for a whole result: its name, value and the constant's value.

    Args:
        result: the `result` of a report's document, or plain figures by name.
    """
    for name, of in (result.get("scores") or {}).items():
        return name, of["model"], of["constant"]
    for name in ("accuracy", "rmse", "loss"):
        if result.get(name) is not None:
            return name, result[name], None
    return None


def useless(scores: Mapping[str, Any] | None) -> str:
    """Return a short verdict if a model is worse than the best constant answer, else "".

    Only released values are compared. A classifier is useless if neither its classes nor its
    probabilities nor its ranking beat those of the constant answer.

    Args:
        scores: what `Scores.to_dict` returns, or None.
    """
    if not scores or scores.get("clearly_better_than_constant"):
        return ""
    constant = scores["constant"]
    if scores.get("rmse") is not None:
        worse = constant.get("rmse") is not None and scores["rmse"] > constant["rmse"]
        return "worse than the mean" if worse else ""
    losses = [
        scores[name] > constant[name]
        for name in ("log_loss", "brier")
        if None not in (scores.get(name), constant.get(name))
    ]
    right = [
        scores[name] < constant[name]
        for name in ("accuracy", "subset_accuracy")
        if None not in (scores.get(name), constant.get(name))
    ]
    return "worse than the majority class" if any(right) and all(losses) else ""


def shown(key: str, value: float | None) -> str:
    """Write a score: shares in percent, others to four digits, an unknown one as a dash."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.1%}" if key in _SHARES else f"{value:.4g}"
