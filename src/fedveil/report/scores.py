"""What scores of a model are called and how they are written, on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Mapping
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


def score_rows(scores: Mapping[str, Any]) -> list[list[str]]:
    """Rows of a table from what `Scores.to_dict` gives."""
    order = dict.fromkeys(NAMES)
    if (scores["constant"].get("accuracy") or 0.0) > _UNEVEN:
        order = dict.fromkeys((*_FIRST_IF_UNEVEN, *NAMES))
    return [
        [NAMES[key], f"{shown(key, scores[key])} (constant: {_constant(key, scores)})"]
        for key in order
        if scores.get(key) is not None
    ]


def _constant(key: str, scores: Mapping[str, Any]) -> str:
    return shown(key, scores["constant"].get(key))


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if key in _SHARES else f"{value:.4g}"
