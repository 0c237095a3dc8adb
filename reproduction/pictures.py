"""results/NAME.png: panels as in a paper, readable without colour.

Panels that show the same quantity have the same axis, and legends stand beside the data.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedveil.core.errors import ConfigError
from reproduction.charts import Chart, charts_of
from reproduction.experiment import Experiment
from reproduction.ridges import draw_ridges
from reproduction.summary import Row

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
_STYLE = {
    "font.family": "serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
}

Painter = Callable[[Any], None]  # fills one axis


def draw(experiment: Experiment, rows: Sequence[Row]) -> bytes:
    """All panels of an experiment in one picture, as PNG."""
    hills: list[Painter] = [
        lambda axis, panel=panel: draw_ridges(axis, panel, rows)  # type: ignore[misc]
        for panel in experiment.panels
        if panel.ridges
    ]
    return paint(experiment.name, charts_of(experiment, rows), hills)


def paint(name: str, charts: Sequence[Chart], before: Sequence[Painter] = ()) -> bytes:
    """Charts in one picture, behind panels that are painted by functions of their own."""
    count = len(before) + len(charts)
    if not count:
        raise ConfigError(f"{name}: every run diverged; there is nothing to draw")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(count, 4 if count > 6 else 2 if count in (2, 4) else 3)
    height = math.ceil(count / columns)
    looks = _looks(charts)
    with rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.7 * columns, 2.9 * height + 0.5), layout="constrained")
        axes = figure.subplots(height, columns, squeeze=False)
        for painter, axis in zip(before, axes.flat, strict=False):
            painter(axis)
        rest = list(axes.flat[len(before) :])
        for chart, axis in zip(charts, rest, strict=False):
            _panel(axis, chart, looks[chart["by"]])
            if len(looks) > 1:
                axis.legend(title=chart["by"], loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _equal_axes(charts, rest)
        for axis in rest[len(charts) :]:
            axis.set_visible(False)
        if len(looks) == 1:
            found = (axis.get_legend_handles_labels() for axis in rest)
            known = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
            shown = [name for name in looks[charts[0]["by"]] if name in known]
            handles, title = [known[name] for name in shown], charts[0]["by"]
            fit = int(3.7 * columns * 14 / (max(map(len, shown)) + 8))  # about 14 letters an inch
            many = max(1, min(6, fit))
            figure.legend(handles, shown, title=title, loc="outside upper center", ncols=many)
        if said := _bars(charts):
            figure.supxlabel(f"Bands and bars: {said}.", fontsize=7.5)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def _looks(charts: Sequence[Chart]) -> dict[str, dict[str, int]]:
    """A line looks the same in every panel that tells lines apart by the same thing."""
    found: dict[str, dict[str, int]] = {}
    for chart in charts:
        names = found.setdefault(chart["by"], {})
        for series in chart["series"]:
            names.setdefault(series["name"], len(names) % len(_COLOURS))
    return found


def _bars(charts: Sequence[Chart]) -> str:
    kinds = dict.fromkeys((chart["bars"], chart["y"]) for chart in charts if "bars" in chart)
    if len({bars for bars, _ in kinds}) == 1:
        return str(next(iter(kinds))[0])
    return "; ".join(f"{bars} ({y})" for bars, y in kinds)


def _equal_axes(charts: Sequence[Chart], axes: Sequence[Any]) -> None:
    """Panels with the same quantity on an axis are compared by eye: the same range for all."""
    for side in ("x", "y"):
        alike: dict[tuple[Any, ...], list[Any]] = {}
        for chart, axis in zip(charts, axes, strict=False):
            key = (
                chart[side],
                chart[f"log_{side}"],
                side == "x" and tuple(chart.get("x_names", ())),
            )
            alike.setdefault(key, []).append(axis)
        for group in alike.values():
            ends = [getattr(axis, f"get_{side}lim")() for axis in group]
            for axis in group:
                limits = min(low for low, _ in ends), max(high for _, high in ends)
                getattr(axis, f"set_{side}lim")(*limits)


def _panel(axis: Any, chart: Chart, looks: Mapping[str, int]) -> None:
    names = chart.get("x_names")
    if names:
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7.5)
    if "difference" in chart.get("bars", "") or "gain" in chart["y"]:
        axis.axhline(0.0, color="0.6", linewidth=0.8)
    for series in chart["series"]:
        number, places = looks[series["name"]], series["points"]
        xs, means = [p[0] for p in places], [p[1] for p in places]
        wide = [p[2] if len(p) > 2 else 0.0 for p in places]
        colour, marker = _COLOURS[number], _MARKERS[number]
        if names:  # words have no order: marks with bars, and nothing in between
            style = {"color": colour, "fmt": marker}
            axis.errorbar(xs, means, wide, label=series["name"], capsize=2.5, **style)
            continue
        axis.plot(
            xs,
            means,
            label=series["name"],
            marker=marker,
            markersize=3,
            markevery=max(1, len(xs) // 8),
            linewidth=1.3,
            color=colour,
            linestyle=_DASHES[number],
        )
        low = [mean - half for mean, half in zip(means, wide, strict=True)]
        high = [mean + half for mean, half in zip(means, wide, strict=True)]
        if chart["log_y"]:  # a band cannot reach below zero there
            low = [max(value, mean / 10) for value, mean in zip(low, means, strict=True)]
        axis.fill_between(xs, low, high, color=colour, alpha=0.13, linewidth=0)
    axis.set_title(chart["title"], fontsize=9)
    axis.set_xlabel(chart["x"])
    axis.set_ylabel(chart["y"])
    if chart["log_y"]:
        axis.set_yscale("log")
    if chart["log_x"]:
        ticks = sorted({p[0] for series in chart["series"] for p in series["points"]})
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
