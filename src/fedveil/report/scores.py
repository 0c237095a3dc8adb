"""What scores of a model are called and how they are written, on a terminal and in a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auc": "area under the ROC curve",
    "log_loss": "log loss",
    "rmse": "root mean squared error (label's unit)",
    "mae": "mean absolute error (label's unit)",
    "r2": "R2",
}
_SHARES = ("accuracy", "balanced_accuracy")


def score_rows(scores: Mapping[str, Any]) -> list[list[str]]:
    """Rows of a table from what `Scores.to_dict` gives."""
    return [
        [name, f"{shown(key, scores[key])} (constant: {shown(key, scores['constant'][key])})"]
        for key, name in NAMES.items()
        if scores.get(key) is not None
    ]


def shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if key in _SHARES else f"{value:.4g}"
