"""The figures people expect of a model, beside those of the best constant answer.

The constant answer is the mean label, or always the most frequent class (its log loss: the classes'
shares as probabilities), of the very rows that are scored; of several labels it is each one's own.
No training row is looked at, and no other constant could do better on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fedveil.core.display import Displayed

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Figures = dict[str, float | None]

_SURE = 3.0  # standard errors that make a difference clear: by chance 1 time in 700
_WORTH = 0.01  # and the share of the constant's error that a model must save
_LEAST = float(np.finfo(np.float64).eps)  # of a probability in a log loss, as in scikit-learn
_BINS = 15  # of the likeliest class's probability, to see whether it is right as often as it says

Metric = Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]


@dataclass(frozen=True, repr=False)
class Scores(Displayed):
    """Figures of a model on some rows, beside those of the best constant answer.

    `TrainedModel.evaluate` makes one.

    Attributes:
        rows: How many were scored.
        figures: By name, such as accuracy, log loss or rmse; None where the rows do not define one.
        constant: The same figures of the best constant answer.
        constant_answer: That answer in words.
        clearly_better: Whether the model is better than the constant by more than chance explains;
            otherwise `warning` says so.
        reliability: Rows by the probability of their likeliest class: how many, the mean of that
            probability, and the share that is right. Empty for numbers.
    """

    rows: int
    figures: dict[str, float | None]
    constant: dict[str, float | None]
    constant_answer: str
    clearly_better: bool
    reliability: tuple[tuple[int, float, float], ...] = ()

    def _display(self) -> tuple[str, dict[str, object]]:
        defined = {name: value for name, value in self.figures.items() if value is not None}
        beside = {name: self.constant.get(name) for name in defined}
        facts: dict[str, object] = {
            name: f"{value:.4g}"
            + ("" if beside[name] is None else f" (constant: {beside[name]:.4g})")
            for name, value in defined.items()
        }
        return f"on {self.rows:,} rows", {"clearly better": self.clearly_better, **facts}

    @property
    def learnt(self) -> bool:
        """Return whether the model is clearly better than the constant, in its log loss too.

        Noise alone may rank some rows by luck, but its probabilities are far off.
        """
        loss, other = self.figures.get("log_loss"), self.constant.get("log_loss")
        return self.clearly_better and (loss is None or other is None or loss < other)

    @property
    def warning(self) -> str:
        """A warning if the model, or its classes, are not clearly better than a constant answer."""
        if not self.clearly_better:
            return (
                f"on these {self.rows} rows the model is not clearly better than answering "
                f"{self.constant_answer} every time; it may have learned nothing"
            )
        right, usual = self.figures.get("accuracy"), self.constant.get("accuracy")
        if right is None or usual is None or right > usual:
            return ""
        loss, other = self.figures.get("log_loss"), self.constant.get("log_loss")
        strength = "it ranks rows better than a constant answer"
        if loss is not None and other is not None and loss < other:
            strength = "its probabilities are worth more than a constant answer"
        return (
            f"{strength}, but its likeliest class is "
            f"right in {right:.1%} of {self.rows} rows, and always answering "
            f"{self.constant_answer} in {usual:.1%}; use the probabilities, or class weights"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            **self.figures,
            "constant": {"answer": self.constant_answer, **self.constant},
            "clearly_better_than_constant": self.clearly_better,
            "warning": self.warning,
        }


def class_scores(names: Sequence[str], chances: Floats, targets: Codes) -> Scores:
    """Score a classifier.

    A model counts as better if it is so in log loss, in accuracy, in balanced accuracy or in its
    ranks: it may be made for any of them.

    Args:
        names: Of the classes.
        chances: Probabilities `[rows, classes]`.
        targets: True classes `[rows]`.
    """
    rows, counts = len(targets), np.bincount(targets, minlength=len(names))
    shares, top, halves = counts / rows, int(counts.argmax()), 2 if len(names) == 2 else 1
    predicted, is_top = chances.argmax(1), targets == top
    hits, sure = predicted == targets, chances.max(1)
    right = chances[np.arange(rows), targets]
    losses = -np.log(np.maximum(right, _LEAST))
    usual_losses = -np.log(shares[targets])
    areas = [
        area_under_curve(chances[:, code], targets == code)
        for code in range(halves - 1, len(names))  # of two classes, of the second
    ]
    area = None if None in areas else float(np.mean(np.asarray(areas, np.float64)))
    places = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
    values = (np.ones(rows), sure, hits)
    bins = np.stack([np.bincount(places, value, _BINS) for value in values])
    figures: Figures = {
        **_class_figures(predicted, targets, len(names)),
        "auc": area,
        "log_loss": float(losses.mean()),
        "brier": float(np.vdot(chances, chances) / rows - 2 * right.mean() + 1) / halves,
        "calibration_error": float(np.abs(bins[1] - bins[2]).sum() / rows),
    }
    constant: Figures = {
        **_class_figures(np.full(rows, top), targets, len(names)),
        "auc": 0.5 if np.count_nonzero(counts) > 1 else None,
        "log_loss": float(usual_losses.mean()),
        "brier": float((shares * (1 - shares)).sum()) / halves,
        "calibration_error": 0.0,
    }
    n = counts[counts > 0]
    recalls = np.bincount(targets[hits], minlength=len(names))[counts > 0] / n
    error = math.sqrt(float((recalls * (1 - recalls) / n).sum())) / len(n)
    better = (
        (area is not None and _ranks(area, counts, rows))
        or _clear(usual_losses - losses, float(usual_losses.mean()))
        or _clear(hits.astype(np.float64) - is_top, 1 - shares[top])
        or _gains(float(recalls.mean()), 1 / len(n), error)
    )
    reliability = tuple(
        (int(count), float(mean / count), float(share / count))
        for count, mean, share in bins.T
        if count
    )
    return Scores(rows, figures, constant, repr(names[top]), better, reliability)


def _class_figures(predicted: Codes, targets: Codes, classes: int) -> Figures:
    """Return accuracy, balanced accuracy and F1: of the second of two classes, or the mean over
    all that occur or are predicted."""
    right = np.bincount(targets[predicted == targets], minlength=classes)
    true, sums = np.bincount(targets, minlength=classes), np.bincount(predicted, minlength=classes)
    sums += true
    f1 = 2 * right / np.maximum(sums, 1)
    return {
        "accuracy": float(right.sum() / len(targets)),
        "balanced_accuracy": float((right[true > 0] / true[true > 0]).mean()),
        "f1": float(f1[1] if classes == 2 else f1[sums > 0].mean()),
    }


def label_scores(names: Sequence[str], chances: Floats, truths: Codes) -> Scores:
    """Score a model of several labels by means over labels.

    Exceptions are `f1_micro`, of all labels' rows together, and `subset_accuracy`, the share of
    rows whose labels are all right.

    Args:
        names: Of the labels.
        chances: Probabilities `[rows, labels]` that a label holds.
        truths: Whether it does, 0 or 1.
    """
    holds = truths.astype(np.bool_)
    rows, shares = len(holds), holds.mean(axis=0)
    usual = shares > 0.5
    usual_losses, losses = _log_losses(shares, holds), _log_losses(chances, holds)
    areas = [area_under_curve(chances[:, i], holds[:, i]) for i in range(len(names))]
    defined = [area for area in areas if area is not None]
    area = float(np.mean(defined)) if defined else None
    recall, error = _balanced(chances > 0.5, holds)
    figures: Figures = {
        **_label_figures(chances > 0.5, holds),
        "auc": area,
        "log_loss": float(losses.mean()),
        "brier": float(np.square(chances - holds).mean()),
        "balanced_accuracy": recall,
    }
    constant: Figures = {
        **_label_figures(np.broadcast_to(usual, holds.shape), holds),
        "auc": 0.5 if defined else None,
        "log_loss": float(usual_losses.mean()),
        "brier": float((shares * (1 - shares)).mean()),
        "balanced_accuracy": 0.5,
    }
    # A row is one witness, whatever its labels have to do with each other.
    saved = (usual_losses - losses).mean(axis=1)
    wrong = (usual != holds).mean(axis=1)
    better = (
        _clear(saved, float(usual_losses.mean()))
        or _clear(wrong - ((chances > 0.5) != holds).mean(axis=1), float(wrong.mean()))
        or _gains(recall, 0.5, error)
        or (area is not None and len(defined) == len(areas) and _ranks(area, holds.sum(0), rows))
    )
    held = ", ".join(name for name, one in zip(names, usual, strict=True) if one)
    return Scores(rows, figures, constant, repr(held) if held else "no label", better)


def _label_figures(predicted: Bools, truths: Bools) -> Figures:
    """Score answers `[rows, labels]`. As in scikit-learn, the F1 score of a label that no row has
    or is said to have is zero."""
    hits, either = (predicted & truths).sum(axis=0), predicted.sum(axis=0) + truths.sum(axis=0)
    return {
        "subset_accuracy": float((predicted == truths).all(axis=1).mean()),
        "accuracy": float((predicted == truths).mean()),
        "f1": float((2 * hits / np.maximum(either, 1)).mean()),
        "f1_micro": float(2 * hits.sum() / max(1, either.sum())),
    }


def _balanced(predicted: Bools, truths: Bools) -> tuple[float, float]:
    """Return the mean over labels of the mean share that is right of rows with it and of rows
    without it, and a bound on its standard error, which holds however labels hang together."""
    shares, errors = [], []
    for truth in (truths, ~truths):
        count = np.maximum(truth.sum(axis=0), 1)
        right = ((predicted == truths) & truth).sum(axis=0) / count
        shares.append(np.where(truth.any(axis=0), right, 0.5))
        errors.append(right * (1 - right) / count)
    return float(np.mean(shares)), float(np.sqrt(errors[0] + errors[1]).mean() / 2)


def _log_losses(chances: Floats, truths: Bools) -> Floats:
    """Return the log loss of each row and label."""
    return -np.log(np.maximum(np.where(truths, chances, 1 - chances), _LEAST))


def number_scores(predicted: Floats, targets: Floats) -> Scores:
    """Score a regression: numbers `[rows]`, predicted and true."""
    centre = float(targets.mean())
    errors, spread = predicted - targets, targets - centre
    variance = float((spread**2).mean())

    def figures(misses: Floats) -> Figures:
        mse = float((misses**2).mean())
        return {
            "mae": float(np.abs(misses).mean()),
            "rmse": math.sqrt(mse),
            "r2": 1 - mse / variance if variance > 0 else None,
        }

    better = _clear(spread**2 - errors**2, variance)
    answer = f"the mean ({centre:.4g})"
    return Scores(len(targets), figures(errors), figures(spread), answer, better)


def with_metrics(
    scores: Scores,
    metrics: Mapping[str, Metric],
    labels: npt.NDArray[Any],
    predicted: npt.NDArray[Any],
) -> Scores:
    """Add figures of one's own to scores, for the model and for the constant answer.

    Args:
        scores: Of the same rows.
        metrics: Functions of the true and the predicted labels, as scikit-learn's.
        labels: True labels: classes by name, or numbers.
        predicted: Predicted ones.
    """
    if np.issubdtype(labels.dtype, np.floating):
        usual = labels.mean()
    elif labels.ndim == 2:  # of several labels, each one's own
        usual = labels.mean(axis=0) > 0.5
    else:
        names, counts = np.unique(labels, return_counts=True)
        usual = names[counts.argmax()]
    constant = np.full(labels.shape, usual, labels.dtype)
    extra = {name: float(metric(labels, predicted)) for name, metric in metrics.items()}
    beside = {name: float(metric(labels, constant)) for name, metric in metrics.items()}
    figures, others = {**scores.figures, **extra}, {**scores.constant, **beside}
    return replace(scores, figures=figures, constant=others)


def area_under_curve(scores: Floats, positive: Bools) -> float | None:
    """Return the chance that a positive row has a higher score than a negative one, ties counted
    half: the Mann-Whitney statistic. None without both kinds of rows."""
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below:
        return None
    total = float(rankdata(scores)[positive].sum())
    return (total - above * (above + 1) / 2) / (above * below)


def _ranks(area: float, counts: npt.NDArray[Any], rows: int) -> bool:
    """Return whether a mean area under the curve, of classes with so many rows, is no accident.

    Of blind scores the Mann-Whitney statistic has a known variance, and a mean's error is at most
    the mean of errors.
    """
    have = np.asarray(counts, np.float64)
    return _gains(area, 0.5, float(np.sqrt((rows + 1) / (12 * have * (rows - have))).mean()))


def _gains(share: float, blind: float, error: float) -> bool:
    """Return whether a share of what is right is clearly more than that of a blind answer."""
    return share - blind > max(_SURE * error, _WORTH * (1 - blind))


def _clear(saved: Floats, constant: float) -> bool:
    """Return whether mean savings `[rows]` are worth it beside the constant's error, and no
    accident."""
    error = float(saved.std()) / math.sqrt(len(saved))
    return float(saved.mean()) > max(_SURE * error, _WORTH * constant)
