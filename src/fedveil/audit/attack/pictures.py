"""Attacks in pictures: a sheet of reconstructions, ROC curves beside what epsilon allows."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.audit.attack.attack import Attack
from fedveil.audit.attack.membership import Membership
from fedveil.audit.attack.reconstruct import Reconstruction

_ROWS = 4  # victims that are shown


def sheet(made: Reconstruction, title: str) -> bytes:
    """A PNG: victims in rows, the original and then each view in columns."""
    from matplotlib.figure import Figure

    columns = ["original", *made.images]
    rows = min(_ROWS, len(made.originals))
    figure = Figure(figsize=(1.05 * len(columns), 1.08 * rows + 0.75), dpi=110)
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for row in range(rows):
        for place, name in enumerate(columns):
            image = made.originals[row] if place == 0 else made.images[name][row]
            axis = axes[row][place]
            axis.set_axis_off()
            grey = np.ndim(image) < 3 or np.shape(image)[-1] == 1
            axis.imshow(_shown(image), cmap="gray" if grey else None, interpolation="nearest")
            if row == 0:
                axis.set_title(name.replace(", ", "\n"), fontsize=8)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=1 - 0.62 / (rows + 0.7),
                           wspace=0.06, hspace=0.06)  # fmt: skip
    return _png(figure)


def roc(found: Membership, title: str) -> bytes:
    """A PNG with both axes logarithmic, where low false-positive rates can be seen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 4.2), dpi=110)
    axis = figure.subplots()
    for curve in found.curves:
        x, y = zip(*((x, y) for x, y in curve.curve if x > 0 and y > 0), strict=True)
        axis.plot(x, y, label=f"{curve.attack} (AUC {curve.auc:.3f})")
    if found.allowed:
        x, y = zip(*((x, y) for x, y in found.allowed if x > 0), strict=True)
        axis.plot(x, y, "k--", label=f"allowed by epsilon {found.epsilon:.3g}")
    axis.plot([1e-4, 1], [1e-4, 1], color="0.6", lw=0.8, label="guessing")
    axis.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.05))
    axis.set_xlabel("false-positive rate")
    axis.set_ylabel("true-positive rate")
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8)
    figure.tight_layout()
    return _png(figure)


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
    promise = "promises nothing" if found.epsilon is None else f"epsilon {found.epsilon:.4g}"
    return f"Method {found.method}, {promise}. Simulated: no protected run was attacked."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _shown(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Stretched to the whole range of greys: an attacker would do that too."""
    low, high = float(image.min()), float(image.max())
    return (np.asarray(image) - low) / max(high - low, 1e-12)


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
