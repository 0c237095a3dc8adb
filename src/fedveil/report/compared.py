"""Methods side by side on one page: charts whose bars say what they are, tables that sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedveil.report.charts import line_chart, same_axes
from fedveil.report.page import Cell, filled, listed, section, table
from fedveil.report.spread import Spread

VERSION = 1
DEVIATION = "standard deviation of single runs"


def point(x: float, spread: Spread, *, of_mean: bool = False) -> list[float]:
    """A place in a chart with half the length of its bar; one run has none."""
    half = spread.error if of_mean else spread.deviation
    known = [float(f"{half:.4g}")] if spread.runs > 1 else []
    return [x, float(f"{spread.mean:.6g}"), *known]


def document_of(
    title: str,
    said: Mapping[str, Sequence[str]],
    charts: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> dict[str, Any]:
    """A comparison as plain values. `said` is sentences by heading; a cell of a row is a text, a
    number, or a number and its deviation."""
    return {
        "version": VERSION,
        "title": title,
        "said": {heading: list(sentences) for heading, sentences in said.items()},
        "charts": {str(number): dict(chart) for number, chart in enumerate(charts)},
        "table": {"columns": list(columns), "rows": [list(row) for row in rows]},
    }


def comparison_page(document: Mapping[str, Any]) -> str:
    """The page of a comparison: what comes out, pictures and figures, then all that explains them.

    A name has one colour in all pictures, and pictures of the same quantities have the same axes.
    The document is inside.
    """
    charts = document["charts"]
    names = dict.fromkeys(one["name"] for chart in charts.values() for one in chart["series"])
    colours = {name: number for number, name in enumerate(names)}
    boxes = same_axes(charts)
    drawn = "".join(
        line_chart(one, f"charts/{key}", colours, boxes[key]) for key, one in charts.items()
    )
    of = document["table"]
    cells = [[_cell(value) for value in row] for row in of["rows"]]
    note = f"<p class='note'>±: {DEVIATION}. A click on a heading sorts by it.</p>"
    first, *rest = [
        section(name, listed(text), 2) for name, text in document["said"].items() if text
    ]
    pictures = section("Pictures", f'<div class="charts">{drawn}</div>', 2) if drawn else ""
    figures = section("Figures", table(of["columns"], cells, "Figures") + note, 2)
    body = f"<article>{first}{pictures}{figures}{''.join(rest)}</article>"
    return filled(document["title"], body, document)


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell("–", float("inf"))
    if isinstance(value, (list, tuple)):
        mean, deviation = value
        shown = "" if deviation is None else f" ± {deviation:.2g}"
        return _cell(None) if mean is None else Cell(f"{mean:.4g}{shown}", mean)
    if isinstance(value, str):
        return Cell(escape(value), value)
    return Cell(f"{value:.4g}" if isinstance(value, float) else str(value), value)
