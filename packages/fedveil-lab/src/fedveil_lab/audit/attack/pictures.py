"""Attacks in pictures: a sheet of reconstructions, ROC curves beside what epsilon allows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.privacy.rounding import at_most
from fedveil_lab.audit.attack.membership import Membership
from fedveil_lab.audit.attack.reconstruct import Reconstruction
from fedveil_lab.audit.attack.uploads import SUMS

_ROWS = 4  # victims that are shown

Image = npt.NDArray[Any]


def sheet(made: Reconstruction, title: str) -> bytes:
    """A PNG: victims in rows, the original and then each view in columns."""
    rows = range(min(_ROWS, len(made.originals)))
    return _sheet([("", _row(made, row)) for row in rows], title)


def poster(made: Reconstruction, epsilon: float | None) -> bytes:
    """A PNG for readers who know none of the words: four columns, and what they mean."""
    promise = "" if epsilon is None else f"\n(epsilon {at_most(epsilon)})"
    captions = {
        "original": "The picture,\nkept by its owner",
        "open": "Read off what\none device sends",
        "sum of 10": "Read off the sum\nof ten devices",
        f"sum of {max(SUMS)}, noise": f"The sum of fifty,\nwith noise{promise}",
    }
    rows = [_row(made, row) for row in range(min(_ROWS, len(made.originals)))]
    shown = [
        ("", {told: row[view] for view, told in captions.items() if view in row}) for row in rows
    ]
    return _sheet(shown, "What training a model gives away", dpi=220)


def side_by_side(made: Mapping[str, Reconstruction], title: str) -> bytes:
    """A PNG: the first victim of each, one below the other, with the views that all have."""
    rows = [(name, _row(one, 0)) for name, one in made.items()]
    shared = [view for view in rows[0][1] if all(view in row for _, row in rows)]
    return _sheet([(name, {view: row[view] for view in shared}) for name, row in rows], title)


def _row(made: Reconstruction, victim: int) -> dict[str, Image]:
    views = {view: images[victim] for view, images in made.images.items()}
    return {"original": made.originals[victim], **views}


def _sheet(rows: Sequence[tuple[str, Mapping[str, Image]]], title: str, dpi: int = 110) -> bytes:
    from matplotlib.figure import Figure

    columns, left = list(rows[0][1]), 1.3 if rows[0][0] else 0.1
    width, height = 1.05 * len(columns) + left, 1.08 * len(rows) + 0.75
    figure = Figure(figsize=(width, height), dpi=dpi)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for row, (name, images) in enumerate(rows):
        for place, column in enumerate(columns):
            axis, image = axes[row][place], images[column]
            axis.set_axis_off()
            grey = np.ndim(image) < 3 or np.shape(image)[-1] == 1
            axis.imshow(_shown(image), cmap="gray" if grey else None, interpolation="nearest")
            if row == 0:
                axis.set_title(column.replace(", ", "\n"), fontsize=8)
        middle = 1 - (0.75 + 1.08 * (row + 0.5)) / height
        figure.text(0.05 / width, middle, name.replace(", ", "\n"), fontsize=8, va="center")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    edges = {"left": left / width, "right": 1 - 0.1 / width, "top": 1 - 0.75 / height}
    figure.subplots_adjust(bottom=0.05 / height, wspace=0.06, hspace=0.06, **edges)
    return _png(figure)


def roc(found: Mapping[str, Membership]) -> bytes:
    """A PNG, one panel for each title; logarithmic, so that low false-positive rates show."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found) + 0.4, 4.2), dpi=110)
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (title, one) in zip(axes, found.items(), strict=True):
        for curve in one.curves:
            axis.plot(*_axes(curve.curve), label=f"{curve.attack} (AUC {curve.auc:.3f})")
        if one.allowed and one.epsilon is not None:
            told = f"allowed by epsilon {at_most(one.epsilon)}"
            axis.plot(*_axes(one.allowed), "k--", label=told)
        axis.plot([1e-4, 1], [1e-4, 1], color="0.6", lw=0.8, label="guessing")
        axis.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.05))
        axis.set(xlabel="false-positive rate", ylabel="true-positive rate")
        axis.set_title(title, fontsize=10)
        axis.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    return _png(figure)


def _axes(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as two lists, without those that a logarithm has no place for."""
    shown = [point for point in points if min(point) > 0]
    return [x for x, _ in shown], [y for _, y in shown]


def is_image(made: Reconstruction) -> bool:
    """Whether records have the shape of an image; rows of a table have no picture."""
    return made.originals.ndim >= 3


def _shown(image: Image) -> Image:
    """Stretched to the whole range of greys: an attacker would do that too."""
    low, high = float(image.min()), float(image.max())
    return (np.asarray(image) - low) / max(high - low, 1e-12)


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
