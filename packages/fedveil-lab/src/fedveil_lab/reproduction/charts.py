"""The panels of an experiment: as plain values, which results/NAME.json keeps, and as NAME.png.

Pictures are readable without colour. Panels that show the same quantity have the same axis.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.report.compared import DEVIATION, point
from fedveil.report.plan_figures import write_out
from fedveil.report.spread import Spread
from fedveil_lab.reproduction.case import Label
from fedveil_lab.reproduction.experiment import Experiment, Panel
from fedveil_lab.reproduction.runs import Row, paired

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
_DPI = 110
_MARKERS = "osD^vPX*"
_SYMBOLS = {"lambda": "λ", "tau": "τ"}
_STYLE = {
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
    looks = _looks(charts)
    with rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(3.7 * columns, 2.9 * height + 0.5), layout="constrained")
        axes = figure.subplots(height, columns, squeeze=False)
        rest = list(axes.flat)
        for chart, axis in zip(charts, rest, strict=False):
            _panel(axis, chart, looks[chart["by"]])
            if len(looks) > 1:
                title = _SYMBOLS.get(chart["by"], chart["by"])
                axis.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _equal_axes(charts, rest)
        for axis in rest[: len(charts)]:
            write_out(axis.yaxis)
        for axis in rest[len(charts) :]:
            axis.set_visible(False)
        if len(looks) == 1:
            found = (axis.get_legend_handles_labels() for axis in rest)
            known = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
            shown = [name for name in looks[charts[0]["by"]] if name in known]
            handles = [known[name] for name in shown]
            title = _SYMBOLS.get(charts[0]["by"], charts[0]["by"])
            fit = int(3.7 * columns * 14 / (max(map(len, shown)) + 8))  # about 14 letters an inch
            many = max(1, min(6, fit))
            figure.legend(handles, shown, title=title, loc="outside upper center", ncols=many)
        figure.supxlabel(fill(_bars(charts), int(3.7 * columns * 14)), fontsize=7.5)
        return _small_png(figure)


def _small_png(figure: Any) -> bytes:
    """Return a PNG with a palette: a third of the size of one in full colour."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, dpi=_DPI)
    Image.open(whole).convert("RGB").quantize(64).save(small, "png", optimize=True)
    return small.getvalue()


def _looks(charts: Sequence[Chart]) -> dict[str, dict[str, int]]:
    """Assign each line one look in all panels that tell lines apart by the same label."""
    found: dict[str, dict[str, int]] = {}
    for chart in charts:
        names = found.setdefault(chart["by"], {})
        for series in chart["series"]:
            names.setdefault(series["name"], len(names) % len(_COLOURS))
    return found


def _bars(charts: Sequence[Chart]) -> str:
    """Return a sentence that says what bands and bars are."""
    kinds = dict.fromkeys((chart["bars"], chart["y"]) for chart in charts if "bars" in chart)
    if not kinds:
        return "Single runs: no bands."
    if len({bars for bars, _ in kinds}) == 1:
        return f"Bands and bars: {next(iter(kinds))[0]}."
    told = "; ".join(f"{y.partition(' (')[0]}, {bars}" for bars, y in kinds)
    return f"Bands and bars: of {told}."


def _equal_axes(charts: Sequence[Chart], axes: Sequence[Any]) -> None:
    """Give panels with the same quantity on an axis the same range: they are compared by eye."""
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
    from matplotlib.ticker import MaxNLocator

    names = chart.get("x_names")
    if names:
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7.5)
    if "difference" in chart.get("bars", "") or "gain" in chart["y"]:
        axis.axhline(0.0, color="0.6", linewidth=0.8)
    for series in chart["series"]:
        number, points = looks[series["name"]], series["points"]
        xs, means = [p[0] for p in points], [p[1] for p in points]
        wide = [p[2] if len(p) > 2 else 0.0 for p in points]
        colour, marker = _COLOURS[number], _MARKERS[number]
        if names or len(points) == 1:  # marks with bars: there is nothing in between
            style = {"color": colour, "fmt": marker, "markersize": 6 if names else 3}
            axis.errorbar(
                xs, means, wide if any(wide) else None, label=series["name"], capsize=2.5, **style
            )
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
    places = {p[0] for series in chart["series"] for p in series["points"]}
    if not names and max(places) > 2 and all(float(place).is_integer() for place in places):
        axis.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
    if chart["log_x"]:
        ticks = sorted(places)
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
