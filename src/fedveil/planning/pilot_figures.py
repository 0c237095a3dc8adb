"""What a pilot tried, and how it went: against local steps, and against rounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.planning.figures import STYLE, legend_above, new_figure, save
from fedveil.planning.recommend import Findings
from fedveil.planning.trials import Trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = {
    "recommended": ("o", "black"),
    "more private": ("s", "white"),
    "cheaper": ("^", "white"),
}


def draw_pilot(found: Findings, trials: Trials, path: Path) -> None:
    """Errors of all trials, darker the more clients they had; the options stand out."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(7.2, 3.2)
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, name in ((left, "local_steps"), (right, "rounds")):
            _cloud(axes, found, trials, name)
            for option in found.options:
                marker, face = _MARKERS[option.name]
                axes.plot(
                    [getattr(option.candidate, name)],
                    [option.expected.error],
                    marker,
                    markerfacecolor=face,
                    markeredgecolor="black",
                    linestyle="none",
                    markersize=6,
                    label=option.name,
                    zorder=3,
                )
            axes.axhline(found.trivial, color="0.6", linewidth=0.6, linestyle="--")
            axes.set_xlabel(name.replace("_", " "))
        accuracy = found.recommended.expected.accuracy
        left.set_ylabel("loss" if accuracy is None else "share of wrong answers")
        legend_above(left)
        save(figure, path)


def _cloud(axes: Axes, found: Findings, trials: Trials, name: str) -> None:
    epsilon, worst = found.recommended.epsilon, 2 * max(found.trivial, 1e-9)
    shares = sorted({trial.share for trial, _ in trials.items()})
    for share in shares:
        grey = 0.85 - 0.5 * shares.index(share) / max(1, len(shares) - 1)
        seen = [
            (getattr(t.candidate, name), min(worst, o.error))
            for t, o in trials.items()
            if t.share == share and t.epsilon == epsilon and t.noise == 1 and math.isfinite(o.error)
        ]
        if seen:
            axes.plot(*zip(*seen, strict=True), ".", color=str(round(grey, 2)), markersize=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
