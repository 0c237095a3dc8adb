"""Distributions over the rounds of a run: one hill for each round, the next one above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedveil_lab.reproduction.experiment import Experiment
from fedveil_lab.reproduction.summary import Row

_BINS = 40
_OVERLAP = 1.6  # height of the highest hill, in distances between two

Ridges = dict[str, Any]


def ridges_of(experiment: Experiment, rows: Sequence[Row]) -> list[Ridges]:
    """Panels of update norms before clipping as plain values: shares of norms in equal bins.

    All panels have the same bins. Seeds of the rows that match are taken together.
    """
    panels = [panel for panel in experiment.panels if panel.ridges]
    if not panels:
        return []
    top = float(np.quantile(np.concatenate(list(hills_of(rows).values())), 0.998))
    made = []
    for panel in panels:
        chosen = [row for row in rows if row.matches(**dict(panel.where))]
        hills = {
            str(number): (np.histogram(norms, _BINS, (0.0, top))[0] / len(norms)).round(5).tolist()
            for number, norms in hills_of(chosen).items()
        }
        words = {"title": panel.title, "x": panel.x_label, "y": panel.y_label}
        clips = sorted({row["clip"] for row in chosen})
        made.append({**words, "top": top, "clips": clips, "hills": hills})
    return made


def draw_ridges(axis: Any, ridges: Ridges, highest: float) -> None:
    """`highest` is the largest share of all panels, so that their hills can be compared."""
    hills, top = ridges["hills"], ridges["top"]
    edges = np.linspace(0.0, top, _BINS + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    for place, shares in reversed(list(enumerate(hills.values()))):
        height = place + _OVERLAP * np.array(shares) / highest
        axis.fill_between(middles, place, height, color="#c9d6e2", linewidth=0, zorder=-place)
        axis.plot(middles, height, color="black", linewidth=0.7, zorder=-place)
    for clip in ridges["clips"]:
        axis.axvline(clip, color="#c23b22", linestyle="--", linewidth=1.0)
        axis.text(
            clip, 1.0, f" clip {clip:g}", color="#c23b22", va="bottom", fontsize=7.5,
            transform=axis.get_xaxis_transform(),
        )  # fmt: skip
    axis.set_yticks(range(len(hills)), list(hills))
    axis.set_xlim(0.0, top)
    axis.set_ylim(-0.2, len(hills) - 1 + _OVERLAP + 0.2)
    axis.set_title(ridges["title"], fontsize=9, pad=12)
    axis.set_xlabel(ridges["x"])
    axis.set_ylabel(ridges["y"])


def highest_of(ridges: Sequence[Ridges]) -> float:
    return float(max(max(hill) for one in ridges for hill in one["hills"].values()))


def hills_of(rows: Sequence[Row]) -> dict[int, np.ndarray[Any, np.dtype[np.float64]]]:
    """Norms by round, in the order of rounds; those that are not finite are left out."""
    found: dict[int, list[float]] = {}
    for row in rows:
        for outcome in row.outcomes:
            for number, norms in outcome.get("norms", {}).items():
                found.setdefault(int(number), []).extend(norms)
    pairs = ((number, np.asarray(found[number])) for number in sorted(found))
    return {number: norms[np.isfinite(norms)] for number, norms in pairs}
