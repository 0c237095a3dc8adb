"""results/NAME.png: panels as in a paper, readable without colour."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from fedveil.errors import BadInput
from fedveil.experiments.case import Label
from fedveil.experiments.experiment import Experiment, Panel
from fedveil.experiments.summary import Row, Spread

# Lines differ by grey level, dash and marker, so that a black-and-white print tells them apart.
_COLOURS = ("#000000", "#c23b22", "#1f6fb4", "#7a9a01", "#8a5fbf", "#e0952c", "#5a5a5a", "#2a9d8f")
_DASHES = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1)),
    (0, (1, 1)),
    (0, (7, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_MARKERS = "osD^vPX*"

Line = list[tuple[float, Spread]]


def draw(experiment: Experiment, rows: Sequence[Row]) -> bytes:
    """All panels of an experiment in one picture, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [panel for panel in experiment.panels if any(lines_of(panel, rows).values())]
    if not panels:
        raise BadInput(f"{experiment.name}: every run diverged; there is nothing to draw")
    columns = min(len(panels), 4 if len(panels) > 6 else 2 if len(panels) in (2, 4) else 3)
    height = math.ceil(len(panels) / columns)
    settings: dict[str, Any] = {
        "font.family": "serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 7.5,
    }
    with pyplot.rc_context(settings):  # type: ignore[arg-type]
        figure, axes = pyplot.subplots(
            height, columns, figsize=(3.7 * columns, 2.9 * height), squeeze=False
        )
        for panel, axis in zip(panels, axes.flat, strict=False):
            _panel(axis, panel, rows)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        figure.tight_layout()
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()


def lines_of(panel: Panel, rows: Sequence[Row]) -> dict[Label, Line]:
    """The panel's lines by the value that tells them apart, points in order of x."""
    found: dict[Label, Line] = {}
    for row in rows:
        if not row.matches(**dict(panel.where)) or row.case.get(panel.by) is None:
            continue
        line = found.setdefault(row[panel.by], [])
        if panel.x == "round":
            line += [(float(number), spread) for number, spread in row.curve(panel.y)]
        else:
            line.append((float(row[panel.x]), row.spread(panel.y)))
    return {
        label: sorted((p for p in line if p[1].runs), key=lambda p: p[0])
        for label, line in found.items()
    }


def _panel(axis: Any, panel: Panel, rows: Sequence[Row]) -> None:
    for number, (label, line) in enumerate(lines_of(panel, rows).items()):
        xs, means = [x for x, _ in line], [s.mean for _, s in line]
        style = {"color": _COLOURS[number % 8], "linestyle": _DASHES[number % 8]}
        axis.plot(
            xs,
            means,
            label=str(label),
            marker=_MARKERS[number % 8],
            markersize=3,
            markevery=max(1, len(xs) // 8),
            linewidth=1.3,
            **style,
        )
        low = [s.mean - s.deviation for _, s in line]
        high = [s.mean + s.deviation for _, s in line]
        if panel.log_y:  # a band cannot reach below zero there
            low = [max(value, mean / 10) for value, mean in zip(low, means, strict=True)]
        axis.fill_between(xs, low, high, color=style["color"], alpha=0.13, linewidth=0)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_label or panel.x)
    axis.set_ylabel(panel.y_label or panel.y)
    if panel.log_y:
        axis.set_yscale("log")
    axis.legend(title=panel.by, title_fontsize=7.5)
