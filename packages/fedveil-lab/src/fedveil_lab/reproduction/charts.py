"""The panels of an experiment: as plain values, which results/NAME.json keeps, and as NAME.svg.

Pictures are readable without colour. Panels that show the same quantity have the same axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Template

from fedveil.core.errors import ConfigError
from fedveil.report.charts import COLOURS, WIDTH, drawing, same_axes
from fedveil.report.compared import DEVIATION, point
from fedveil.report.spread import Spread
from fedveil_lab.reproduction.case import Label
from fedveil_lab.reproduction.experiment import Experiment, Panel
from fedveil_lab.reproduction.runs import Row, paired

_SYMBOLS = {"lambda": "λ", "tau": "τ"}
_GAP = 24  # left of each panel, for the name of its axis

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
    """Draw all panels of an experiment in one picture, each line with a dash and a mark of its own.

    Args:
        document: The experiment as `results/NAME.json` has it.

    Returns:
        An SVG.

    Raises:
        ConfigError: Every run diverged.
    """
    charts = {str(number): chart for number, chart in enumerate(document["charts"])}
    if not charts:
        raise ConfigError(f"{document['experiment']}: every run diverged; there is nothing to draw")
    columns = min(len(charts), 4 if len(charts) > 6 else 2 if len(charts) in (2, 4) else 3)
    # One look for a line in all panels that tell lines apart by the same label.
    looks: dict[str, dict[str, int]] = {}
    for chart in charts.values():
        names = looks.setdefault(chart["by"], {})
        for series in chart["series"]:
            names.setdefault(series["name"], len(names) % COLOURS)
    boxes = same_axes(charts)
    panels = [drawing(chart, key, looks[chart["by"]], boxes[key]) for key, chart in charts.items()]
    zeros = [
        box.place(box.x_low, 0)[1] if not box.log_y and box.y_low < 0 < box.y_high else None
        for box in (boxes[key] for key in charts)
    ]
    legend = list(_legend(looks, columns * (WIDTH + _GAP)))
    template = resources.files("fedveil_lab.reproduction") / "panels.svg"
    page = Template(template.read_text("utf-8"), autoescape=True, trim_blocks=True)
    drawn: str = page.render(
        title=document["title"],
        legend=legend,
        panels=list(zip(panels, zeros, strict=True)),
        bars=_bars(document["charts"]),
        columns=columns,
        gap=_GAP,
    )
    return drawn.encode()


def _legend(
    looks: Mapping[str, Mapping[str, int]], width: int
) -> Iterator[tuple[int, int, int | None, str]]:
    """Yield place, look and text of each entry; a label's own name comes without a look."""
    x, y = 8, 16
    for by, names in looks.items():
        for kind, name in ((None, _SYMBOLS.get(by, by)), *((k, n) for n, k in names.items())):
            long = 7 * len(name) + (14 if kind is None else 44)
            if x > 8 and (x + long > width or kind is None):
                x, y = 8, y + 18
            yield x, y, kind, name
            x += long


def _bars(charts: Sequence[Chart]) -> str:
    """Return a sentence that says what bars are."""
    kinds = {chart["y"].partition(" (")[0]: chart["bars"] for chart in charts if "bars" in chart}
    if not kinds:
        return "Single runs: no bars."
    if len(set(kinds.values())) == 1:
        return f"Bars: {next(iter(kinds.values()))}."
    return f"Bars: of {'; '.join(f'{y}, {bars}' for y, bars in kinds.items())}."
