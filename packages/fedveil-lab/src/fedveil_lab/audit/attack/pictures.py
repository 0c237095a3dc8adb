"""Attacks in pictures: a sheet of reconstructions, ROC curves beside what epsilon allows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.privacy.rounding import at_most
from fedveil_lab.audit.attack.membership import Membership
from fedveil_lab.audit.attack.reconstruct import Reconstruction

_ROWS = 4  # victims that are shown

Image = npt.NDArray[Any]


def sheet(made: Reconstruction, title: str) -> bytes:
    """A PNG: victims in rows, the original and then each view in columns."""
    from matplotlib.figure import Figure

    rows = [_row(made, row) for row in range(min(_ROWS, len(made.originals)))]
    width, height = 1.05 * len(rows[0]) + 0.1, 1.08 * len(rows) + 0.75
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, images in zip(axes, rows, strict=True):
        for axis, (view, image) in zip(line, images.items(), strict=True):
            axis.set_axis_off()
            grey = np.ndim(image) < 3 or np.shape(image)[-1] == 1
            axis.imshow(_shown(image), cmap="gray" if grey else None, interpolation="nearest")
            if line is axes[0]:
                axis.set_title(view.replace(", ", "\n"), fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    edges = {"left": 0.1 / width, "right": 1 - 0.1 / width, "top": 1 - 0.75 / height}
    figure.subplots_adjust(bottom=0.05 / height, wspace=0.06, hspace=0.06, **edges)
    return _png(figure)


def _row(made: Reconstruction, victim: int) -> dict[str, Image]:
    views = {view: images[victim] for view, images in made.images.items()}
    return {"original": made.originals[victim], **views}


def roc(one: Membership, title: str) -> bytes:
    """A PNG; logarithmic, so that low false-positive rates show."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), dpi=110)
    axis = figure.subplots()
    for curve in one.curves:
        axis.plot(*_axes(curve.curve), label=f"{curve.attack} (AUC {curve.auc:.3f})")
    if one.allowed and one.epsilon is not None:
        axis.plot(*_axes(one.allowed), "k--", label=f"allowed by epsilon {at_most(one.epsilon)}")
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
