"""results/NAME.png: panels as in a paper, readable without colour."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.report.spread import Spread
from reproduction.case import Label
from reproduction.experiment import Experiment, Panel
from reproduction.ridges import draw_ridges
from reproduction.summary import Row, paired

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
        raise ConfigError(f"{experiment.name}: every run diverged; there is nothing to draw")
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
            (draw_ridges if panel.ridges else _panel)(axis, panel, rows)
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
        elif panel.minus is None:
            line.append((_place(panel, row, rows), row.spread(panel.y)))
        else:
            base = _base(panel, row, rows)
            if base is not None and base is not row:
                line.append((_place(panel, row, rows), paired(row, base, panel.y)))
    return {
        label: sorted((p for p in line if p[1].runs), key=lambda p: p[0])
        for label, line in found.items()
    }


def _names(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """What stands along the axis, where that is words and not numbers."""
    chosen = (row for row in rows if row.matches(**dict(panel.where)))
    found = dict.fromkeys(row.case.get(panel.x) for row in chosen)
    return [name for name in found if isinstance(name, str)]


def _place(panel: Panel, row: Row, rows: Sequence[Row]) -> float:
    value = row[panel.x]
    return float(_names(panel, rows).index(value) if isinstance(value, str) else value)


def _base(panel: Panel, row: Row, rows: Sequence[Row]) -> Row | None:
    """The row of the line that is taken off, alike in all other labels."""
    wanted = {**dict(row.case.labels), panel.by: panel.minus}
    return next((other for other in rows if dict(other.case.labels) == wanted), None)


def _marks(axis: Any, label: str, number: int, line: Line, panel: Panel) -> None:
    """Words have no order: marks with bars, and nothing in between."""
    wide = [s.deviation if panel.minus is None else s.error for _, s in line]
    bars = [0.0 if math.isnan(half) else half for half in wide]
    style = {"color": _COLOURS[number % 8], "fmt": _MARKERS[number % 8]}
    axis.errorbar(
        [x for x, _ in line], [s.mean for _, s in line], bars, label=label, capsize=2.5, **style
    )


def _panel(axis: Any, panel: Panel, rows: Sequence[Row]) -> None:
    names = _names(panel, rows) if panel.x != "round" else []
    if names:
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7.5)
    for number, (label, line) in enumerate(lines_of(panel, rows).items()):
        if not line:  # the line that others are compared with
            axis.axhline(0.0, color=_COLOURS[number % 8], linewidth=0.8, label=str(label))
            continue
        xs, means = [x for x, _ in line], [s.mean for _, s in line]
        if names:
            _marks(axis, str(label), number, line, panel)
            continue
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
        wide = [s.deviation if panel.minus is None else s.error for _, s in line]
        low = [mean - half for mean, half in zip(means, wide, strict=True)]
        high = [mean + half for mean, half in zip(means, wide, strict=True)]
        if panel.log_y:  # a band cannot reach below zero there
            low = [max(value, mean / 10) for value, mean in zip(low, means, strict=True)]
        axis.fill_between(xs, low, high, color=style["color"], alpha=0.13, linewidth=0)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_label or panel.x)
    axis.set_ylabel(panel.y_label or panel.y)
    if panel.log_y:
        axis.set_yscale("log")
    if panel.log_x:
        ticks = sorted({x for line in lines_of(panel, rows).values() for x, _ in line})
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axis.legend(title=panel.by, title_fontsize=7.5)
