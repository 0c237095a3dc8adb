"""Pictures as inline SVG: line charts, whose values the page's script shows on hover, and who
sees what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

from fedveil.core.units import Trust

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40  # margins
COLOURS = 8  # that the page's style knows; a ninth line looks like the first


@dataclass(frozen=True)
class Box:
    """The values at the edges of a chart, and where in the picture others are."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log_x: bool = False
    log_y: bool = False

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = _share(self.x_low, self.x_high, x, self.log_x) * (WIDTH - LEFT - RIGHT)
        up = _share(self.y_low, self.y_high, y, self.log_y) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up


def _share(low: float, high: float, value: float, log: bool) -> float:
    """How far from `low` to `high` a value is; what is below the axis stands on its edge."""
    if log:
        low, high, value = math.log(low), math.log(high), math.log(max(value, low))
    return (value - low) / (high - low)


def line_chart(
    chart: Mapping[str, Any],
    key: str,
    colours: Mapping[str, int] | None = None,
    box: Box | None = None,
) -> str:
    """One chart; `key` says where in the page's document its values are. `colours` has a number for
    each name where neighbouring charts share names; left out, series are numbered as they come.
    `box` is that of `same_axes`; left out, the chart's own.

    A point is [x, y], or [x, y, half of the bar] where `bars` says what the bars are. `x_names`
    stand at 0, 1, ... in the place of numbers; `zoom` lets y begin above zero; `log_x` and `log_y`
    are logarithmic where all values are positive; `by` is what names the series.
    """
    names = chart.get("x_names")
    box = box or _box(chart)
    parts = [_axes(box, chart, names)]
    kinds = [
        f"s{(number if colours is None else colours[series['name']]) % COLOURS}"
        for number, series in enumerate(chart["series"])
    ]
    for kind, series in zip(kinds, chart["series"], strict=True):
        parts += _series(box, series["points"], kind, joined=not names)
    title = escape(chart["title"])
    told = escape(f"{chart['title']}: {chart['y']} by {chart['x']}. Arrow keys read the values.")
    legend = f"<li>{escape(chart['by'])}:</li>" if chart.get("by") else ""
    legend += "".join(
        f'<li><span class="key {kind}" aria-hidden="true"></span>{escape(series["name"])}</li>'
        for kind, series in zip(kinds, chart["series"], strict=True)
    )
    ranges = ",".join(f"{v:.12g}" for v in (box.x_low, box.x_high, box.y_low, box.y_high))
    bars = f'<p class="note">Bars: {escape(chart["bars"])}.</p>' if chart.get("bars") else ""
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{told}" '
        f'data-chart="{escape(key)}" data-box="{ranges}" data-log="{int(box.log_x)}" '
        f'data-margins="{LEFT},{RIGHT},{TOP},{BOTTOM}">{"".join(parts)}'
        '<line class="cursor" y1="0" y2="0"/></svg>'
        f'<ul class="legend">{legend}</ul>{bars}<p class="read" aria-live="polite"></p>'
        f"{_values(chart)}</figure>"
    )


def same_axes(charts: Mapping[str, Mapping[str, Any]]) -> dict[str, Box]:
    """A box for each chart; those that show the same quantities are compared, and share one."""
    boxes = {key: _box(chart) for key, chart in charts.items()}
    alike: dict[Any, list[str]] = {}
    for key, chart in charts.items():
        what = chart["x"], chart["y"], tuple(chart.get("x_names", ()))
        alike.setdefault((*what, boxes[key].log_x, boxes[key].log_y), []).append(key)
    for keys in alike.values():
        found = [boxes[key] for key in keys]
        ends = {
            one.name: (max if one.name.endswith("high") else min)(
                getattr(box, one.name) for box in found
            )
            for one in fields(Box)
        }
        boxes |= dict.fromkeys(keys, Box(**ends))
    return boxes


def _box(chart: Mapping[str, Any]) -> Box:
    points = [p for series in chart["series"] for p in series["points"] if p[1] is not None]
    reach = [y for _, y, *half in points for y in (y - sum(half), y + sum(half))]
    top, bottom = max(reach, default=1.0), min(reach, default=0.0)
    if chart["x"] == "false-positive rate":
        return Box(0, 1, 0, 1)
    places, log = [p[0] for p in points] or [1.0], False
    x_low, x_high = 0.0, max(places) or 1.0
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


def _series(box: Box, points: Sequence[Any], kind: str, joined: bool) -> Iterator[str]:
    known = [point for point in points if point[1] is not None]
    places = [box.place(x, y) for x, y, *_ in known]
    if joined:
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        yield f'<polyline class="line {kind}" points="{path}"/>'
    for (x, y), (at, mean, *half) in zip(places, known, strict=True):
        if half and half[0]:
            (_, low), (_, high) = (box.place(at, mean + sign * half[0]) for sign in (-1, 1))
            yield f'<path class="bar {kind}" d="M{x:.2f} {low:.2f}V{high:.2f}"/>'
        if len(places) <= 25 or not joined:
            yield f'<circle class="dot {kind}" cx="{x:.2f}" cy="{y:.2f}" r="2.5"/>'


def _axes(box: Box, chart: Mapping[str, Any], names: Sequence[str] | None) -> str:
    parts = []
    for value in _ticks(box.y_low, box.y_high, box.log_y):
        _, y = box.place(box.x_low, value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" class="end">{value:g}</text>')
    marks: list[tuple[float, str]]
    if names:
        marks = [(at, name) for at, name in enumerate(names)]
    elif box.log_x:
        found = sorted({p[0] for series in chart["series"] for p in series["points"]})
        marks = [(value, f"{value:g}") for value in found[:: math.ceil(len(found) / 8)]]
    else:
        marks = [(value, f"{value:g}") for value in _ticks(box.x_low, box.x_high)]
    slanted = sum(len(text) + 2 for _, text in marks) * 7 > WIDTH - LEFT - RIGHT
    for value, text in marks:
        x, _ = box.place(value, box.y_low)
        y = HEIGHT - BOTTOM + (11 if slanted else 15)
        if slanted:  # the table of values has long names in full
            text = text if len(text) < 13 else f"{text[:11]}…"
            where = f'transform="translate({x:.1f} {y}) rotate(-25)" class="end small"'
        else:
            where = f'x="{x:.1f}" y="{y}" class="middle"'
        parts.append(f"<text {where}>{escape(text)}</text>")
    middle, across = (TOP + HEIGHT - BOTTOM) / 2, (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{across}" y="{HEIGHT - 6}" class="middle">{escape(chart["x"])}</text>')
    turned = f'transform="translate(12 {middle}) rotate(-90)"'
    parts.append(f'<text {turned} class="middle">{escape(chart["y"])}</text>')
    return "".join(parts)


def _ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Four or so round numbers between `low` and `high`; powers of ten where they are many."""
    if log and high / low > 100:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        return [10.0**k for k in range(first, last + 1, math.ceil((last - first + 1) / 5))]
    wide = high - low
    step = 10.0 ** math.floor(math.log10(wide / 5.5))
    step *= next(k for k in (1, 2, 5, 10) if wide / (step * k) <= 5.5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * k:.6g}") for k in range(first, last + 1)]


def _values(chart: Mapping[str, Any]) -> str:
    """The same values as a table, for print, for screen readers and for copying."""
    names = [series["name"] for series in chart["series"]]
    at = [{x: rest for x, *rest in series["points"]} for series in chart["series"]]
    words = chart.get("x_names")
    rows = "".join(
        f'<tr><th scope="row">{escape(words[int(x)]) if words else f"{x:g}"}</th>'
        + "".join(f"<td>{_value(one.get(x, [None]))}</td>" for one in at)
        + "</tr>"
        for x in sorted({x for one in at for x in one})
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (chart["x"], *names))
    return (
        "<details><summary>Values</summary><div class='wide' tabindex='0' role='group' "
        f"aria-label='Values: {escape(chart['title'])}'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _value(found: Sequence[float | None]) -> str:
    value, *half = found
    if value is None:
        return ""
    return repr(value) + (f" ± {half[0]!r}" if half and half[0] is not None else "")


# Per trust mode: what clients send, what the server gets, and how many of the boxes see values
# without noise.
_DIAGRAMS = {
    Trust.CENTRAL: ("they send updates, clipped", "it adds noise to their sum", 2),
    Trust.LOCAL: ("they add noise to what they send", "it gets noisy updates", 1),
    Trust.DISTRIBUTED: ("each adds a share of the noise", "it gets one secure, noisy sum", 1),
}


def trust_diagram(trust: Trust, told: str) -> str:
    """Clients, server and everybody else: who sees values without noise, and who only after it."""
    sent, got, trusted = _DIAGRAMS[trust]
    server = "Server: trusted, sees all" if trusted > 1 else "Server: sees noisy values only"
    boxes = (
        ("own", "Clients: protected", sent),
        ("sees" if trusted > 1 else "kept", server, got),
        ("kept", "Everybody else: sees noisy values only", "they get the released models"),
    )
    parts = []
    for number, (kind, name, text) in enumerate(boxes):
        y = 6 + 84 * number
        parts.append(f'<rect class="{kind}" x="10" y="{y}" width="300" height="58" rx="6"/>')
        parts.append(f'<text class="middle strong" x="160" y="{y + 24}">{name}</text>')
        parts.append(f'<text class="middle" x="160" y="{y + 45}">{text}</text>')
        if number:
            noisy = "with noise" if number >= trusted else "without noise"
            parts.append(f'<path class="arrow" d="M160 {y - 26}v20m-6 -7l6 7l6 -7"/>')
            parts.append(f'<text x="172" y="{y - 11}">{noisy}</text>')
    return (
        f'<svg class="diagram" viewBox="0 0 320 240" role="img" aria-label="{escape(told)}">'
        f"{''.join(parts)}</svg>"
    )
