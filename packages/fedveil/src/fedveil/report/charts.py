"""The geometry of line charts: where axes, ticks and points are. A template draws them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40  # margins
COLOURS = 8  # that the page's style defines; a ninth line looks like the first
_MOST_DOTS = 25  # points that a line marks one by one


@dataclass(frozen=True)
class Box:
    """The values at the edges of a chart."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log_x: bool = False
    log_y: bool = False

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a value in the picture, to a hundredth of its unit."""
        across = _share(self.x_low, self.x_high, x, self.log_x) * (WIDTH - LEFT - RIGHT)
        up = _share(self.y_low, self.y_high, y, self.log_y) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 2), round(HEIGHT - BOTTOM - up, 2)


def _share(low: float, high: float, value: float, log: bool) -> float:
    """Return how far a value is from `low` to `high`. A value below the axis is at its edge."""
    if log:
        low, high, value = math.log(low), math.log(high), math.log(max(value, low))
    return (value - low) / (high - low)


def drawing(
    chart: Mapping[str, Any],
    key: str,
    colours: Mapping[str, int] | None = None,
    box: Box | None = None,
) -> dict[str, Any]:
    """Compute everything that the template `line_chart` needs to draw a chart.

    Args:
        chart: `title`, `x`, `y` and `series`, each with a `name` and `points`. A point is [x, y],
            or [x, y, half of the bar] where `bars` says what the bars are. Optional: `x_names`
            replace the numbers 0, 1, ... on the x axis; `zoom` lets y begin above zero; `log_x`
            and `log_y` ask for logarithmic axes, used where all values are positive; `from_least`
            lets x begin at its least value; `y_range` is to be seen; `by` says what distinguishes
            the series.
        key: the path of the chart in the page's document, where the script reads its values.
        colours: a number for each series name, where neighbouring charts share names.
        box: the axes from `same_axes`; by default the chart's own.

    Returns:
        The chart with positions of ticks, lines, bars and dots, and its values as table rows.
    """
    names = chart.get("x_names")
    box = box or _box(chart)
    marks = _x_marks(box, chart, names)
    lines = []
    for number, series in enumerate(chart["series"]):
        colour = number if colours is None else colours[series["name"]]
        present = [point for point in series["points"] if point[1] is not None]
        places = [box.place(x, y) for x, y, *_ in present]
        bars = [
            (box.place(x, y)[0], *(box.place(x, y + sign * half[0])[1] for sign in (-1, 1)))
            for x, y, *half in present
            if half and half[0]
        ]
        lines.append(
            {
                "name": series["name"],
                "kind": f"s{colour % COLOURS}",
                "path": "" if names else " ".join(f"{x},{y}" for x, y in places),
                "bars": bars,
                "dots": places if names or len(places) <= _MOST_DOTS else [],
            }
        )
    at = [{x: rest for x, *rest in series["points"]} for series in chart["series"]]
    rows = [
        (names[int(x)] if names else f"{x:g}", [_value(one.get(x, [None])) for one in at])
        for x in sorted({x for one in at for x in one})
    ]
    ends = (box.x_low, box.x_high, box.y_low, box.y_high)
    return {
        "chart": chart,
        "key": key,
        "width": WIDTH,
        "height": HEIGHT,
        "margins": (LEFT, RIGHT, TOP, BOTTOM),
        "ranges": ",".join(f"{end:.12g}" for end in ends),
        "log": int(box.log_x),
        "y_ticks": [
            (box.place(box.x_low, value)[1], f"{value:g}")
            for value in _ticks(box.y_low, box.y_high, box.log_y)
        ],
        "x_ticks": [(box.place(value, box.y_low)[0], text) for value, text in marks],
        "slanted": sum(len(text) + 2 for _, text in marks) * 7 > WIDTH - LEFT - RIGHT,
        "lines": lines,
        "rows": rows,
    }


def same_axes(charts: Mapping[str, Mapping[str, Any]]) -> dict[str, Box]:
    """Return the axes of each chart. Charts of the same quantities share theirs."""
    boxes = {key: _box(chart) for key, chart in charts.items()}
    alike: dict[Any, list[str]] = {}
    for key, chart in charts.items():
        axes = chart["x"], chart["y"], tuple(chart.get("x_names", ()))
        alike.setdefault((*axes, boxes[key].log_x, boxes[key].log_y), []).append(key)
    for keys in alike.values():
        ends = {
            one.name: (max if one.name.endswith("high") else min)(
                getattr(boxes[key], one.name) for key in keys
            )
            for one in fields(Box)
        }
        boxes |= dict.fromkeys(keys, Box(**ends))
    return boxes


def _box(chart: Mapping[str, Any]) -> Box:
    points = [p for series in chart["series"] for p in series["points"] if p[1] is not None]
    reach = [y for _, y, *half in points for y in (y - sum(half), y + sum(half))]
    reach += chart.get("y_range", [])
    top, bottom = max(reach, default=1.0), min(reach, default=0.0)
    if chart["x"] == "false-positive rate":
        return Box(0, 1, 0, 1)
    places, log = [p[0] for p in points] or [1.0], False
    x_low, x_high = 0.0, max(places) or 1.0
    if chart.get("from_least"):
        x_low, x_high = min(places), max(places)
    if names := chart.get("x_names"):
        x_low, x_high = -0.5, len(names) - 0.5
    elif chart.get("log_x") and 0 < min(places) < max(places):
        x_low, x_high, log = min(places) / 1.1, max(places) * 1.1, True
    edge = 0.05 * (top - bottom) or abs(top) * 0.05 or 1.0
    least = min((p[1] for p in points), default=0.0)
    if chart.get("log_y") and 0 < least < top:
        return Box(x_low, x_high, max(bottom, least / 10) / 1.2, top * 1.2, log, True)
    if chart.get("zoom") or bottom < 0:
        y_low, y_high = bottom - edge, top + edge
    else:
        y_low, y_high = 0.0, (1.0 if chart["y"].startswith("accuracy") else top * 1.05 or 1.0)
    return Box(x_low, x_high, y_low, y_high, log)


def _x_marks(
    box: Box, chart: Mapping[str, Any], names: Sequence[str] | None
) -> list[tuple[float, str]]:
    if names:
        return [(float(at), name) for at, name in enumerate(names)]
    values = _ticks(box.x_low, box.x_high)
    if box.log_x:  # the values themselves, eight at most
        points = sorted({p[0] for series in chart["series"] for p in series["points"]})
        values = points[:: math.ceil(len(points) / 8)]
    return [(value, f"{value:g}") for value in values]


def _ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Return about four round numbers between `low` and `high`, or powers of ten over a wide
    logarithmic range."""
    if log and high / low > 100:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        return [10.0**k for k in range(first, last + 1, math.ceil((last - first + 1) / 5))]
    wide = high - low
    step = 10.0 ** math.floor(math.log10(wide / 5.5))
    step *= next(k for k in (1, 2, 5, 10) if wide / (step * k) <= 5.5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * k:.6g}") for k in range(first, last + 1)]


def _value(point: Sequence[float | None]) -> str:
    value, *half = point
    if value is None:
        return ""
    return repr(value) + (f" ± {half[0]!r}" if half and half[0] is not None else "")
