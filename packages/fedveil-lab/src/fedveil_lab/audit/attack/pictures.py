"""Attacks in pictures: a sheet of reconstructions, ROC curves beside what epsilon allows."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.privacy.rounding import at_most
from fedveil_lab.audit.attack.attack import Attack
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


def page(found: Attack, pictures: dict[str, bytes], name: str) -> str:
    """One HTML page that needs nothing else."""
    parts = [f"<h1>Attacks on {escape(name)}</h1>", f"<p>{escape(_summary(found))}</p>"]
    for title, picture in pictures.items():
        data = base64.b64encode(picture).decode()
        parts.append(f'<h2>{escape(title)}</h2><img alt="{escape(title)}" '
                     f'src="data:image/png;base64,{data}">')  # fmt: skip
    if found.reconstruction is not None:
        rows = [
            (one.view, f"{one.correlation:.3f}", f"{one.found} of {one.victims}")
            for one in found.reconstruction.likeness
        ]
        found_of = f"found among {found.reconstruction.candidates}"
        parts.append(_table(("what is seen", "correlation", found_of), rows))
    if found.labels:
        chance = f"blind guess {found.labels[0].by_chance:.0%}"
        named = [(one.view, f"{one.right} of {one.victims}") for one in found.labels]
        parts.append(_table(("what is seen", f"label named ({chance})"), named))
    if found.properties:
        chance = f"blind guess {found.properties[0].by_chance:.0%}"
        head = ("what is seen", f"{found.properties[0].what}, above the median? ({chance})")
        parts.append(
            _table(head, [(o.view, f"{o.right} of {o.victims}") for o in found.properties])
        )
    untried = "".join(f"<li>{escape(one)}</li>" for one in found.not_tried)
    parts.append(f"<h2>Not tried</h2><ul>{untried}</ul>")
    return _PAGE.replace("{body}", "\n".join(parts))


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Attacks</title>
<style>body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
img{max-width:100%}table{border-collapse:collapse;margin:1rem 0}
td,th{border-bottom:1px solid #ccc;padding:.2rem .8rem;text-align:left}</style>
{body}</html>
"""


def _summary(found: Attack) -> str:
    promise = "promises nothing" if found.epsilon is None else f"epsilon {at_most(found.epsilon)}"
    return f"Method {found.method}, {promise}. Simulated: no protected run was attacked."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _shown(image: Image) -> Image:
    """Stretched to the whole range of greys: an attacker would do that too."""
    low, high = float(image.min()), float(image.max())
    return (np.asarray(image) - low) / max(high - low, 1e-12)


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
