"""The panels of an experiment as plain values: what is drawn, and what results/NAME.json keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedveil.report.compared import DEVIATION, point
from fedveil.report.spread import Spread
from fedveil_lab.reproduction.case import Label
from fedveil_lab.reproduction.experiment import Experiment, Panel
from fedveil_lab.reproduction.summary import Row, paired

Chart = dict[str, Any]
Line = list[tuple[float, Spread]]


def charts_of(experiment: Experiment, rows: Sequence[Row]) -> list[Chart]:
    """Every panel with lines in it, in the form that pages and pictures draw."""
    made = (_chart(panel, rows) for panel in experiment.panels if not panel.ridges)
    return [chart for chart in made if chart["series"]]


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
