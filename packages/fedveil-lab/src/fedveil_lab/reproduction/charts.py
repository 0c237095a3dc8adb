"""The panels of an experiment: as plain values, which results/NAME.json keeps, and as NAME.png.

Pictures are readable without colour. Panels that show the same quantity have the same axis.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.report.compared import DEVIATION, point
from fedveil.report.spread import Spread
from fedveil_lab.reproduction.case import Label
from fedveil_lab.reproduction.experiment import Experiment, Panel
from fedveil_lab.reproduction.runs import Row, paired

# Lines differ by grey level, dash and marker, so that a black-and-white print tells them apart.
_COLOURS = ("#000000", "#c23b22", "#1f6fb4", "#7a9a01", "#8a5fbf", "#e0952c", "#5a5a5a", "#2a9d8f")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 1, 1, 1)))
_MARKERS = "osD^vPX*"
_SYMBOLS = {"lambda": "λ", "tau": "τ"}
_DPI = 110
_STYLE: Any = {
    "font.family": "serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
}

Chart = dict[str, Any]
Line = list[tuple[float, Spread]]


def charts_of(experiment: Experiment, rows: Sequence[Row]) -> list[Chart]:
    """Return every panel that has lines, as the plain values that are stored and drawn."""
    made = (_chart(panel, rows) for panel in experiment.panels)
    return [chart for chart in made if chart["series"]]


def lines_of(panel: Panel, rows: Sequence[Row]) -> dict[Label, Line]:
    """Return a panel's lines by the label value that tells them apart, points in order of x."""
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


def _chart(panel: Panel, rows: Sequence[Row]) -> Chart:
    of_mean = panel.minus is not None
    series = [
        {"name": _name(label), "points": [point(x, spread, of_mean=of_mean) for x, spread in line]}
        for label, line in lines_of(panel, rows).items()
        if line
    ]
    chart: Chart = {
        "title": panel.title,
        "x": panel.x_label.strip() or panel.x,
        "y": panel.y_label or panel.y,
        "by": panel.by,
        "zoom": True,
        "log_x": panel.log_x,
        "log_y": panel.log_y,
        "series": series,
    }
    if any(len(one) > 2 for line in series for one in line["points"]):
        difference = f"standard error of the mean difference to {panel.minus}, seed by seed"
        chart["bars"] = difference if of_mean else DEVIATION
    if panel.x != "round" and (names := _names(panel, rows)):
        chart["x_names"] = names
    return chart


def _name(label: Label) -> str:
    return f"{label:g}" if isinstance(label, float) else str(label)


def _names(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """Return the words along the x axis; none if it has numbers."""
    chosen = (row for row in rows if row.matches(**dict(panel.where)))
    found = dict.fromkeys(row.case.get(panel.x) for row in chosen)
    return [name for name in found if isinstance(name, str)]


def _place(panel: Panel, row: Row, rows: Sequence[Row]) -> float:
    value = row[panel.x]
    return float(_names(panel, rows).index(value) if isinstance(value, str) else value)


def _base(panel: Panel, row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row that is subtracted: the panel's `minus`, alike in all other labels."""
    wanted = {**dict(row.case.labels), panel.by: panel.minus}
    return next((other for other in rows if dict(other.case.labels) == wanted), None)


def draw(document: Mapping[str, Any]) -> bytes:
    """Draw all panels of an experiment in one picture.

    Args:
        document: The experiment as `results/NAME.json` has it.

    Returns:
        A PNG.

    Raises:
        ConfigError: Every run diverged.
    """
    charts = document["charts"]
    count = len(charts)
    if not count:
        raise ConfigError(f"{document['experiment']}: every run diverged; there is nothing to draw")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(count, 4 if count > 6 else 2 if count in (2, 4) else 3)
    height = math.ceil(count / columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(3.7 * columns, 2.9 * height + 0.5), layout="constrained")
        axes = list(figure.subplots(height, columns, squeeze=False).flat)
        # One look for a line in all panels that tell lines apart by the same label.
        looks: dict[str, dict[str, int]] = {}
        for chart, axis in zip(charts, axes, strict=False):
            names = looks.setdefault(chart["by"], {})
            for series in chart["series"]:
                names.setdefault(series["name"], len(names) % len(_COLOURS))
            _panel(axis, chart, names)
        _equal_axes(charts, axes)
        for axis in axes[:count]:
            write_out(axis.yaxis)
        for axis in axes[count:]:
            axis.set_visible(False)
        _legends(figure, charts, axes, looks, columns)
        figure.supxlabel(fill(_bars(charts), int(3.7 * columns * 14)), fontsize=7.5)
        whole, small = io.BytesIO(), io.BytesIO()
        figure.savefig(whole, dpi=_DPI)
    from PIL import Image

    # With a palette: a third of the size of a picture in full colour.
    Image.open(whole).convert("RGB").quantize(64).save(small, "png", optimize=True)
    return small.getvalue()


def _legends(
    figure: Any,
    charts: Sequence[Chart],
    axes: Sequence[Any],
    looks: Mapping[str, Mapping[str, int]],
    columns: int,
) -> None:
    """One legend above all panels, or one beside each where labels differ."""
    if len(looks) > 1:
        for chart, axis in zip(charts, axes, strict=False):
            title = _SYMBOLS.get(chart["by"], chart["by"])
            axis.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return
    ((by, names),) = looks.items()
    found = (axis.get_legend_handles_labels() for axis in axes)
    known = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    shown = [name for name in names if name in known]
    fit = int(3.7 * columns * 14 / (max(map(len, shown)) + 8))  # about 14 letters an inch
    figure.legend(
        [known[name] for name in shown],
        shown,
        title=_SYMBOLS.get(by, by),
        loc="outside upper center",
        ncols=max(1, min(6, fit)),
    )


def _bars(charts: Sequence[Chart]) -> str:
    """Return a sentence that says what bands and bars are."""
    kinds = {chart["y"].partition(" (")[0]: chart["bars"] for chart in charts if "bars" in chart}
    if not kinds:
        return "Single runs: no bands."
    if len(set(kinds.values())) == 1:
        return f"Bands and bars: {next(iter(kinds.values()))}."
    return f"Bands and bars: of {'; '.join(f'{y}, {bars}' for y, bars in kinds.items())}."


def _equal_axes(charts: Sequence[Chart], axes: Sequence[Any]) -> None:
    """Give panels with the same quantity on an axis the same range: they are compared by eye."""
    for side in ("x", "y"):
        alike: dict[str, Any] = {}
        for chart, axis in zip(charts, axes, strict=False):
            words = chart.get("x_names") if side == "x" else None
            first = alike.setdefault(f"{chart[side]} {chart[f'log_{side}']} {words}", axis)
            if first is not axis:
                getattr(axis, f"share{side}")(first)
                axis.autoscale(axis=side)


def _panel(axis: Any, chart: Chart, looks: Mapping[str, int]) -> None:
    from matplotlib.ticker import MaxNLocator

    names = chart.get("x_names")
    if "difference" in chart.get("bars", "") or "gain" in chart["y"]:
        axis.axhline(0.0, color="0.6", linewidth=0.8)
    for series in chart["series"]:
        number, points = looks[series["name"]], series["points"]
        xs, means = [p[0] for p in points], [p[1] for p in points]
        wide = [p[2] if len(p) > 2 else 0.0 for p in points]
        style = {"color": _COLOURS[number], "label": series["name"]}
        if names or len(points) == 1:  # marks with bars: there is nothing in between
            bars = wide if any(wide) else None
            size = 6 if names else 3
            axis.errorbar(
                xs, means, bars, capsize=2.5, fmt=_MARKERS[number], markersize=size, **style
            )
            continue
        axis.plot(
            xs,
            means,
            marker=_MARKERS[number],
            markersize=3,
            markevery=max(1, len(xs) // 8),
            linewidth=1.3,
            linestyle=_DASHES[number],
            **style,
        )
        low, high = np.subtract(means, wide), np.add(means, wide)
        if chart["log_y"]:  # a band cannot reach below zero there
            low = np.maximum(low, np.divide(means, 10))
        axis.fill_between(xs, low, high, color=_COLOURS[number], alpha=0.13, linewidth=0)
    axis.set_title(chart["title"], fontsize=9)
    axis.set(xlabel=chart["x"], ylabel=chart["y"], yscale="log" if chart["log_y"] else "linear")
    places = sorted({p[0] for series in chart["series"] for p in series["points"]})
    if names:
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7.5)
    elif chart["log_x"]:
        axis.set_xscale("log")
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off()
    elif max(places) > 2 and all(float(place).is_integer() for place in places):
        axis.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))


def write_out(axis: Any) -> None:
    """Write 1, 2 and 5 as numbers on a logarithmic axis with few powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high / low < 200:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())
