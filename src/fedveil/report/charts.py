"""Pictures as inline SVG: line charts, whose values the page's script shows on hover, and who
sees what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from fedveil.core.units import Trust

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 40  # margins


def line_chart(chart: Mapping[str, Any], key: str) -> str:
    """One chart; `key` says where in the page's document its values are."""
    points = [
        point for series in chart["series"] for point in series["points"] if None not in point
    ]
    rate = chart["x"].endswith("rate")
    x_low, x_high = (0, 1) if rate else (0, max(x for x, _ in points))
    top = max((y for _, y in points), default=1)
    y_high = 1 if rate or (chart["y"].startswith("accuracy")) else top * 1.05 or 1
    box = (x_low, x_high or 1, 0, y_high)
    parts = [_axes(box, chart["x"], chart["y"])]
    for number, series in enumerate(chart["series"]):
        places = [_place(box, *point) for point in series["points"] if None not in point]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        parts.append(f'<polyline class="line s{number}" points="{path}"/>')
        if len(places) <= 25:
            parts += [
                f'<circle class="dot s{number}" cx="{x:.2f}" cy="{y:.2f}" r="2.5"/>'
                for x, y in places
            ]
    title = escape(chart["title"])
    told = escape(f"{chart['title']}: {chart['y']} by {chart['x']}. Arrow keys read the values.")
    legend = "".join(
        f'<li><span class="key s{number}" aria-hidden="true"></span>{escape(series["name"])}</li>'
        for number, series in enumerate(chart["series"])
    )
    ranges = ",".join(f"{value:.12g}" for value in box)
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{told}" '
        f'data-chart="{escape(key)}" data-box="{ranges}" '
        f'data-margins="{LEFT},{RIGHT},{TOP},{BOTTOM}">{"".join(parts)}'
        '<line class="cursor" y1="0" y2="0"/></svg>'
        f'<ul class="legend">{legend}</ul><p class="read" aria-live="polite"></p>'
        f"{_values(chart)}</figure>"
    )


def _place(box: tuple[float, ...], x: float, y: float) -> tuple[float, float]:
    x_low, x_high, y_low, y_high = box
    across = (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
    up = (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
    return LEFT + across, HEIGHT - BOTTOM - up


def _axes(box: tuple[float, ...], x_name: str, y_name: str) -> str:
    x_low, x_high, y_low, y_high = box
    parts = []
    for value in _ticks(y_high):
        _, y = _place(box, x_low, value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" class="end">{value:g}</text>')
    for value in _ticks(x_high):
        x, _ = _place(box, value, y_low)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" class="middle">{value:g}</text>'
        )
    middle, across = (TOP + HEIGHT - BOTTOM) / 2, (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{across}" y="{HEIGHT - 6}" class="middle">{escape(x_name)}</text>')
    turned = f'transform="translate(12 {middle}) rotate(-90)"'
    parts.append(f'<text {turned} class="middle">{escape(y_name)}</text>')
    return "".join(parts)


def _ticks(high: float) -> list[float]:
    """Four or so round numbers from 0 to `high`."""
    step = 10.0 ** math.floor(math.log10(high / 2))
    step *= next(k for k in (1, 2, 5, 10) if high / (step * k) <= 5.5)
    return [float(f"{step * k:.6g}") for k in range(int(high / step + 1e-9) + 1)]


def _values(chart: Mapping[str, Any]) -> str:
    """The same values as a table, for print, for screen readers and for copying."""
    names = [series["name"] for series in chart["series"]]
    at = [dict(series["points"]) for series in chart["series"]]
    rows = "".join(
        f'<tr><th scope="row">{x:g}</th>'
        + "".join(f"<td>{'' if one.get(x) is None else repr(one[x])}</td>" for one in at)
        + "</tr>"
        for x in sorted({x for one in at for x in one})
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in (chart["x"], *names))
    return (
        "<details><summary>Values</summary><div class='wide' tabindex='0' role='region' "
        f"aria-label='Values: {escape(chart['title'])}'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>"
    )


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
