"""Methods side by side on one page: charts whose bars say what they are, tables that sort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.report.charts import drawing, same_axes
from fedveil.report.page import Cell, render
from fedveil.report.spread import Spread

VERSION = 1
DEVIATION = "standard deviation of single runs"


def point(x: float, spread: Spread, *, of_mean: bool = False) -> list[float]:
    """Return a chart's point for a figure over several runs.

    Args:
        x: its position on the x axis.
        spread: the figure; one run has no bar.
        of_mean: whether the bar is the standard error of the mean, not the deviation of runs.

    Returns:
        [x, mean] or [x, mean, half the length of the bar].
    """
    half = spread.error if of_mean else spread.deviation
    half_width = [float(f"{half:.4g}")] if spread.runs > 1 else []
    return [x, float(f"{spread.mean:.6g}"), *half_width]


def document_of(
    title: str,
    said: Mapping[str, Sequence[str]],
    charts: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> dict[str, Any]:
    """Return a comparison as plain values.

    Args:
        title: the heading of its page.
        said: sentences by heading; the first heading comes before the pictures.
        charts: see `charts.drawing`.
        columns: the names of the table's columns.
        rows: cells are texts, numbers, or a number and its deviation.
    """
    return {
        "version": VERSION,
        "title": title,
        "said": {heading: list(sentences) for heading, sentences in said.items()},
        "charts": {str(number): dict(chart) for number, chart in enumerate(charts)},
        "table": {"columns": list(columns), "rows": [list(row) for row in rows]},
    }


def comparison_page(document: Mapping[str, Any]) -> str:
    """Render the page of a comparison: what comes out, pictures, figures, then explanations.

    A name has one colour in all pictures, and pictures of the same quantities have the same axes.

    Args:
        document: what `document_of` returns. The page contains it.
    """
    charts, of = document["charts"], document["table"]
    names = dict.fromkeys(one["name"] for chart in charts.values() for one in chart["series"])
    colours = {name: number for number, name in enumerate(names)}
    boxes = same_axes(charts)
    return render(
        "comparison.html",
        document["title"],
        document,
        said=[(name, text) for name, text in document["said"].items() if text],
        charts=[drawing(one, f"charts/{key}", colours, boxes[key]) for key, one in charts.items()],
        columns=of["columns"],
        rows=[[cell(value) for value in row] for row in of["rows"]],
        deviation=DEVIATION,
    )


def cell(value: Any) -> Cell:
    if isinstance(value, (list, tuple)):
        mean, deviation = value
        more = "" if deviation is None else f" ± {deviation:.2g}"
        return cell(None) if mean is None else Cell(f"{mean:.4g}{more}", mean)
    if value is None:
        return Cell("–", float("inf"))
    return Cell(f"{value:.4g}" if isinstance(value, float) else str(value), value)
