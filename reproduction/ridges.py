"""Distributions over the rounds of a run: one hill for each round, the next one above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reproduction.experiment import Panel
from reproduction.summary import Row

_BINS = 40
_OVERLAP = 1.6  # height of the highest hill, in distances between two


def draw_ridges(axis: Any, panel: Panel, rows: Sequence[Row]) -> None:
    """Update norms before clipping, all seeds of the rows that match together.

    The norms' axis is the same for all cases of the page, and the clip is marked.
    """
    chosen = [row for row in rows if row.matches(**dict(panel.where))]
    hills = hills_of(chosen)
    top = float(np.quantile(np.concatenate(list(hills_of(rows).values())), 0.998))
    edges = np.linspace(0.0, top, _BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    counts = [np.histogram(hill, edges)[0] / len(hill) for hill in hills.values()]
    highest = max(float(count.max()) for count in counts)
    for place, count in reversed(list(enumerate(counts))):
        height = place + _OVERLAP * count / highest
        axis.fill_between(middles, place, height, color="#c9d6e2", linewidth=0, zorder=-place)
        axis.plot(middles, height, color="black", linewidth=0.7, zorder=-place)
    for clip in {row["clip"] for row in chosen}:
        axis.axvline(clip, color="#c23b22", linestyle="--", linewidth=1.0, label=f"clip {clip:g}")
    axis.set_yticks(range(len(hills)), [str(number) for number in hills])
    axis.set_xlim(0.0, top)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.legend()


def hills_of(rows: Sequence[Row]) -> dict[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """Norms by round, in the order of rounds; those that are not finite are left out."""
    found: dict[int, list[float]] = {}
    for row in rows:
        for outcome in row.outcomes:
            for number, norms in outcome.get("norms", {}).items():
                found.setdefault(int(number), []).extend(norms)
    pairs = ((number, np.asarray(found[number])) for number in sorted(found))
    return {number: norms[np.isfinite(norms)] for number, norms in pairs}
