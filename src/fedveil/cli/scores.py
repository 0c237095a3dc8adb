"""Scores of a model as rows of a table, each beside the best constant answer's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {
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
        [name, f"{_shown(key, scores[key])} (constant: {_shown(key, scores['constant'][key])})"]
        for key, name in _NAMES.items()
        if scores.get(key) is not None
    ]


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if key in _SHARES else f"{value:.4g}"
