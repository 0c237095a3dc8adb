"""The figures people expect of a model, beside those of the best constant answer.

The constant answer is the mean label, or always the most frequent class (its log loss: the classes'
shares as probabilities), of the very rows that are scored; of several labels it is each one's own.
No training row is looked at, and no other constant could do better on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.display import Displayed

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_SURE = 3.0  # standard errors that make a difference clear: by chance 1 time in 700
_WORTH = 0.01  # and the share of the constant's error that a model must save
_MOST = 20_000_000  # probabilities kept for the area under the curve
_BINS = 15  # of the likeliest class's probability, to see whether it is right as often as it says

Metric = Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]


@dataclass(frozen=True, repr=False)
class Scores(Displayed):
    """How good a model is on some rows, beside the best constant answer. `TrainedModel.evaluate`
    makes one.

    figures: by name, such as accuracy, log loss or rmse; None where the rows do not define one.
    constant: the same figures of the best constant answer; `constant_answer` says which that is.
    clearly_better: than the constant, by more than chance explains; otherwise `warning` says so.
    reliability: rows by the probability of their likeliest class: how many, the mean of that
        probability, and the share that is right. Empty for numbers.
    """

    rows: int
    figures: dict[str, float | None]
    constant: dict[str, float | None]
    constant_answer: str  # in words
    clearly_better: bool
    reliability: tuple[tuple[int, float, float], ...] = ()

    def _display(self) -> tuple[str, dict[str, object]]:
        shown = {name: value for name, value in self.figures.items() if value is not None}
        beside = {name: self.constant.get(name) for name in shown}
        facts: dict[str, object] = {
            name: f"{value:.4g}"
            + ("" if beside[name] is None else f" (constant: {beside[name]:.4g})")
            for name, value in shown.items()
        }
        return f"on {self.rows:,} rows", {"clearly better": self.clearly_better, **facts}

    @property
    def warning(self) -> str:
        """A sentence if the model is not clearly better than the constant answer, or if its classes
        are not though its probabilities are; else empty."""
        if not self.clearly_better:
            return (
                f"on these {self.rows} rows the model is not clearly better than answering "
                f"{self.constant_answer} every time; it may have learned nothing"
            )
        right, usual = self.figures.get("accuracy"), self.constant.get("accuracy")
        if right is None or usual is None or right > usual:
            return ""
        loss, other = self.figures.get("log_loss"), self.constant.get("log_loss")
        what = "it ranks rows better than a constant answer"
        if loss is not None and other is not None and loss < other:
            what = "its probabilities are worth more than a constant answer"
        return (
            f"{what}, but its likeliest class is "
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


@dataclass
class ClassTally:
    """Classes and probabilities of rows, added up batch by batch."""

    names: tuple[str, ...]
    _confusion: npt.NDArray[np.int64] = field(init=False)  # [true, predicted]
    _losses: Floats = field(init=False)  # by true class: sum, and sum of squares, of the log loss
    _squares: float = field(init=False, default=0.0)  # of probabilities less what was true
    _bins: Floats = field(init=False)  # by probability of the likeliest class: rows, sum, hits
    _kept: list[tuple[Codes, Floats]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._confusion = np.zeros((len(self.names),) * 2, np.int64)
        self._losses = np.zeros((2, len(self.names)))
        self._bins = np.zeros((3, _BINS))

    def add(self, probabilities: Floats, targets: Codes) -> None:
        """Probabilities `[rows, classes]` and true classes `[rows]`."""
        np.add.at(self._confusion, (targets, probabilities.argmax(1)), 1)
        right = probabilities[np.arange(len(targets)), targets]
        losses = -np.log(np.maximum(right, np.finfo(np.float64).eps))  # as scikit-learn's
        for power, sums in enumerate(self._losses, 1):
            sums += np.bincount(targets, losses**power, len(sums))
        self._squares += float((probabilities**2).sum() - 2 * right.sum() + len(right))
        sure = probabilities.max(1)
        places = np.minimum((sure * _BINS).astype(np.int64), _BINS - 1)
        hits = probabilities.argmax(1) == targets
        for sums, values in zip(self._bins, (np.ones(len(sure)), sure, hits), strict=True):
            sums += np.bincount(places, values, _BINS)
        if self._confusion.sum() * len(self.names) <= _MOST:
            # Of two classes one column says it all.
            kept = probabilities[:, -1:] if len(self.names) == 2 else probabilities
            self._kept.append((targets, kept))

    def scores(self) -> Scores:
        rows, counts = int(self._confusion.sum()), self._confusion.sum(1)
        seen = counts > 0
        shares = counts / max(1, rows)
        hits = np.diag(self._confusion)
        recalls = hits[seen] / counts[seen]
        top = int(counts.argmax())
        guessed = self._confusion.copy() * 0
        guessed[:, top] = counts
        entropy = float(-(shares[seen] * np.log(shares[seen])).sum())
        figures = {
            "accuracy": float(hits.sum() / rows),
            "balanced_accuracy": float(recalls.mean()),
            "f1": _f1(self._confusion),
            "auc": self._auc(rows),
            "log_loss": float(self._losses[0].sum() / rows),
            "brier": self._squares / rows / (2 if len(self.names) == 2 else 1),
            "calibration_error": float(np.abs(self._bins[1] - self._bins[2]).sum() / rows),
        }
        constant = {
            "accuracy": float(shares[top]),
            "balanced_accuracy": float(1 / seen.sum()),
            "f1": _f1(guessed),
            "auc": 0.5 if seen.sum() > 1 else None,
            "log_loss": entropy,
            "brier": float((shares * (1 - shares)).sum()) / (2 if len(self.names) == 2 else 1),
            "calibration_error": 0.0,
        }
        area = figures["auc"]
        ranks = area is not None and _ranks(area, counts)
        answer, better = repr(self.names[top]), ranks or self._better(counts, top)
        return Scores(rows, figures, constant, answer, better, self._reliability())

    def _reliability(self) -> tuple[tuple[int, float, float], ...]:
        rows, sure, hits = self._bins[:, self._bins[0] > 0]
        found = zip(rows.tolist(), (sure / rows).tolist(), (hits / rows).tolist(), strict=True)
        return tuple((int(count), mean, share) for count, mean, share in found)

    def _better(self, counts: Codes, top: int) -> bool:
        """In log loss, in accuracy or in balanced accuracy: a model may be made for any of them, or
        for ranking rows, as where one class is rare."""
        rows, seen = counts.sum(), counts > 0
        n, hits = counts[seen], np.diag(self._confusion)[seen]
        losses, squares = self._losses[:, seen]
        own = -np.log(n / rows)  # the constant's loss on a row of each class
        saved, square = (n * own - losses).sum(), (n * own**2 - 2 * own * losses + squares).sum()
        by_loss = _clear(saved / rows, square / rows, rows, float((n * own).sum() / rows))
        is_top = np.flatnonzero(seen) == top
        saved = hits.sum() - counts[top]
        differ = np.where(is_top, n - hits, hits).sum()  # rows that only one of the two gets right
        by_hits = _clear(saved / rows, differ / rows, rows, 1 - counts[top] / rows)
        recalls, classes = hits / n, len(n)
        error = math.sqrt(float((recalls * (1 - recalls) / n).sum())) / classes
        gain = float(recalls.mean()) - 1 / classes
        by_recall = gain > max(_SURE * error, _WORTH * (1 - 1 / classes))
        return bool(by_loss or by_hits or by_recall)

    def _auc(self, rows: int) -> float | None:
        """Of the second of two classes, or the mean over classes of each against all others.

        None if some class has all rows or none, or if there are too many rows to keep.
        """
        if sum(len(targets) for targets, _ in self._kept) < rows:
            return None
        targets = np.concatenate([targets for targets, _ in self._kept])
        scores = np.concatenate([probabilities for _, probabilities in self._kept])
        first = 1 if len(self.names) == 2 else 0
        areas = [
            area_under_curve(scores[:, column], targets == column + first)
            for column in range(scores.shape[1])
        ]
        known = [area for area in areas if area is not None]
        return float(np.mean(known)) if len(known) == len(areas) else None


@dataclass
class LabelTally:
    """Probabilities and truths of several labels: five bytes for each of a row."""

    names: tuple[str, ...]
    _kept: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]] = field(
        init=False, default_factory=list
    )

    def add(self, probabilities: Floats, targets: Codes) -> None:
        """Probabilities `[rows, labels]` that a label holds, and whether it does, 0 or 1."""
        self._kept.append((probabilities.astype(np.float32), targets.astype(np.bool_)))

    def scores(self) -> Scores:
        """Means over labels, but `f1_micro`, of all labels' rows together, and `subset_accuracy`,
        the share of rows whose labels are all right."""
        chances, truths = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        rows, shares = len(truths), truths.mean(axis=0)
        usual = shares > 0.5
        entropies, losses = _log_losses(shares, truths), _log_losses(chances, truths)
        areas = [area_under_curve(chances[:, i], truths[:, i]) for i in range(len(self.names))]
        known = [area for area in areas if area is not None]
        figures = _label_figures(chances > 0.5, truths) | {
            "auc": float(np.mean(known)) if known else None,
            "log_loss": float(losses.mean()),
            "brier": float(np.square(chances.astype(np.float64) - truths).mean()),
        }
        constant = _label_figures(np.broadcast_to(usual, truths.shape), truths) | {
            "auc": 0.5 if known else None,
            "log_loss": float(entropies.mean()),
            "brier": float((shares * (1 - shares)).mean()),
        }
        # A row is one witness, whatever its labels have to do with each other.
        saved = (entropies - losses).mean(axis=1)
        right = ((chances > 0.5) == truths).mean(axis=1) - (usual == truths).mean(axis=1)
        gains = (saved, constant["log_loss"]), (right, 1 - constant["accuracy"])
        better = any(
            _clear(float(gain.mean()), float((gain**2).mean()), rows, worst)
            for gain, worst in gains
        )
        recall, error = _balanced(chances > 0.5, truths)
        figures["balanced_accuracy"], constant["balanced_accuracy"] = recall, 0.5
        better = better or recall - 0.5 > max(_SURE * error, _WORTH / 2)
        if len(known) == len(areas):
            better = better or _ranks(float(np.mean(known)), truths.sum(axis=0), rows)
        held = ", ".join(name for name, one in zip(self.names, usual, strict=True) if one)
        return Scores(rows, figures, constant, repr(held) if held else "no label", better)


def _label_figures(guessed: npt.NDArray[np.bool_], truths: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Of answers `[rows, labels]`. The F1 score of a label that no row has or is said to have is
    zero, as in scikit-learn."""
    hits, either = (guessed & truths).sum(axis=0), guessed.sum(axis=0) + truths.sum(axis=0)
    return {
        "subset_accuracy": float((guessed == truths).all(axis=1).mean()),
        "accuracy": float((guessed == truths).mean()),
        "f1": float((2 * hits / np.maximum(either, 1)).mean()),
        "f1_micro": float(2 * hits.sum() / max(1, either.sum())),
    }


def _balanced(guessed: npt.NDArray[np.bool_], truths: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Mean over labels of the mean share that is right of rows with it and of rows without it, and
    a bound on its standard error, which holds however labels hang together."""
    shares, errors = [], []
    for own in (truths, ~truths):
        count = np.maximum(own.sum(axis=0), 1)
        right = ((guessed == truths) & own).sum(axis=0) / count
        shares.append(np.where(own.any(axis=0), right, 0.5))
        errors.append(right * (1 - right) / count)
    return float(np.mean(shares)), float(np.sqrt(errors[0] + errors[1]).mean() / 2)


def _log_losses(chances: npt.NDArray[Any], truths: npt.NDArray[np.bool_]) -> Floats:
    """Log loss of each row and label."""
    right = np.where(truths, chances, 1 - chances).astype(np.float64)
    return -np.log(np.maximum(right, np.finfo(np.float64).eps))


@dataclass
class NumberTally:
    """True and predicted numbers of rows: sixteen bytes a row."""

    _kept: list[tuple[Floats, Floats]] = field(init=False, default_factory=list)

    def add(self, predicted: Floats, targets: Floats) -> None:
        self._kept.append((predicted, targets))

    def scores(self) -> Scores:
        predicted = np.concatenate([predicted for predicted, _ in self._kept])
        targets = np.concatenate([targets for _, targets in self._kept])
        rows, centre = len(targets), float(targets.mean())
        errors, spread = (predicted - targets), (targets - centre)
        mse, variance = float((errors**2).mean()), float((spread**2).mean())
        figures = {
            "mae": float(np.abs(errors).mean()),
            "rmse": math.sqrt(mse),
            "r2": 1 - mse / variance if variance > 0 else None,
        }
        constant = {
            "mae": float(np.abs(spread).mean()),
            "rmse": math.sqrt(variance),
            "r2": 0.0 if variance > 0 else None,
        }
        saved = spread**2 - errors**2
        better = _clear(float(saved.mean()), float((saved**2).mean()), rows, variance)
        return Scores(rows, figures, constant, f"the mean ({centre:.4g})", better)


def with_metrics(
    scores: Scores,
    metrics: Mapping[str, Metric],
    labels: npt.NDArray[Any],
    predicted: npt.NDArray[Any],
) -> Scores:
    """The scores with figures of one's own, as scikit-learn's: functions of the true labels and the
    predicted ones, classes by name. The constant answer is scored by them too."""
    if np.issubdtype(labels.dtype, np.floating):
        usual = labels.mean()
    elif labels.ndim == 2:  # of several labels, each one's own
        usual = labels.mean(axis=0) > 0.5
    else:
        names, counts = np.unique(labels, return_counts=True)
        usual = names[counts.argmax()]
    constant = np.full(labels.shape, usual, labels.dtype)
    own = {name: float(metric(labels, predicted)) for name, metric in metrics.items()}
    beside = {name: float(metric(labels, constant)) for name, metric in metrics.items()}
    figures, others = {**scores.figures, **own}, {**scores.constant, **beside}
    return replace(scores, figures=figures, constant=others)


def area_under_curve(scores: Floats, positive: npt.NDArray[np.bool_]) -> float | None:
    """The chance that a positive row has a higher score than a negative one, ties counted half:
    the Mann-Whitney statistic. None without both kinds of rows."""
    above, below = int(positive.sum()), int((~positive).sum())
    if not above or not below:
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    rank = last - (count - 1) / 2  # mean rank of equal scores, from 1
    total = float(rank[place][positive].sum())
    return (total - above * (above + 1) / 2) / (above * below)


def _ranks(area: float, counts: npt.NDArray[Any], rows: int | None = None) -> bool:
    """Whether a mean area under the curve, of classes with so many rows, is no accident: of blind
    scores the Mann-Whitney statistic has a known variance, and a mean's error is at most the mean
    of errors."""
    have = np.asarray(counts, np.float64)
    total = float(have.sum() if rows is None else rows)
    error = float(np.sqrt((total + 1) / (12 * have * (total - have))).mean())
    return area - 0.5 > max(_SURE * error, _WORTH / 2)


def _clear(mean: float, square: float, rows: int, constant: float) -> bool:
    """Whether a mean saving is worth it beside the constant's mean error, and no accident."""
    error = math.sqrt(max(0.0, square - mean**2) / rows)
    return mean > max(_SURE * error, _WORTH * constant)


def _f1(confusion: npt.NDArray[np.int64]) -> float:
    """Of the second of two classes; with more, the mean over all that occur or are predicted."""
    hits, sums = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    scores = np.divide(2 * hits, sums, out=np.zeros(len(hits)), where=sums > 0)
    return float(scores[1] if len(scores) == 2 else scores[sums > 0].mean())
