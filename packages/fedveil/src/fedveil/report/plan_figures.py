"""Plots of what a budget buys. Black, grey and line styles only: they survive a printer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from fedveil.tune.advice import Advice
    from fedveil.tune.feasible import Row
    from fedveil.tune.trials import Outcome, Trial

_STYLE: dict[Any, Any] = {
    "font.family": "serif",
    "mathtext.fontset": "dejavuserif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.1,
    "xtick.direction": "in",
    "ytick.direction": "in",
}
_OPTIONS = {
    "recommended": ("o", "black"),
    "as it stands": ("D", "0.7"),
    "more private": ("s", "white"),
    "cheaper": ("^", "white"),
}


def draw(path: Path, paint: Callable[[Figure, Axes, Axes], None], height: float = 3.2) -> None:
    """A picture of two panels; the ending of the file's name says as what: .png, .pdf, .svg."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")  # no window system is asked
        panels = figure.subplots(1, 2)
        paint(figure, *panels)
        for axis in (side for panel in panels for side in (panel.xaxis, panel.yaxis)):
            write_out(axis)
        figure.savefig(path, dpi=200)


def write_out(axis: Axis) -> None:
    """On a logarithmic axis with few powers of ten, 1, 2 and 5 are written as numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high / low < 200:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def draw_feasible(rows: Sequence[Row], path: Path) -> None:
    """Noise and signal-to-noise against rounds, one line for every way and cohort."""
    lines: dict[Any, list[Row]] = {}
    for row in rows:
        lines.setdefault((row.trust, row.sampling, row.cohort), []).append(row)
    several = len({cohort for _, _, cohort in lines}) > 1

    def paint(figure: Figure, left: Axes, right: Axes) -> None:
        for number, ((trust, sampling, cohort), drawn) in enumerate(lines.items()):
            rounds = [r.rounds for r in drawn]
            style = {
                "color": ("black", "0.45", "0.7")[number % 3],
                "linestyle": ("-", "--", ":", "-.")[number % 4],
                "marker": "os^Dv"[number % 5],
                "markersize": 4,
                "label": f"{trust}, {sampling}" + (f", cohort {cohort}" if several else ""),
            }
            left.loglog(rounds, [r.noise_multiplier for r in drawn], **style)
            right.loglog(rounds, [r.run_signal_to_noise for r in drawn], **style)
        left.set_ylabel("noise multiplier")
        right.set_ylabel("signal-to-noise over the run")
        right.axhline(1, color="0.6", linewidth=0.6)
        edge = right.get_yaxis_transform()
        right.text(
            1, 1, "below: nothing is learnt", ha="right", va="top", transform=edge, fontsize=7
        )
        for axes in (left, right):
            axes.set_xlabel("rounds")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)

    draw(path, paint, height=3.4)


def draw_search(found: Advice, outcomes: Mapping[tuple[int, Trial], Outcome], path: Path) -> None:
    """Draw the errors of all trials, darker the more clients they had; the options stand out."""
    worst = 2 * max(found.trivial, 1e-9)
    clouds: dict[float, list[tuple[Any, float]]] = {}
    for (_, trial), outcome in outcomes.items():
        asked = trial.epsilon == found.recommended.epsilon and trial.noise == 1
        if asked and math.isfinite(outcome.error):
            clouds.setdefault(trial.share, []).append((trial.candidate, min(worst, outcome.error)))

    def paint(figure: Figure, left: Axes, right: Axes) -> None:
        for axes, name in ((left, "local_steps"), (right, "rounds")):
            for number, share in enumerate(sorted(clouds)):
                grey = str(round(0.85 - 0.5 * number / max(1, len(clouds) - 1), 2))
                places = [getattr(candidate, name) for candidate, _ in clouds[share]]
                axes.loglog(places, [e for _, e in clouds[share]], ".", color=grey, markersize=3)
            for option in found.options:
                marker, face = _OPTIONS[option.name]
                place = getattr(option.candidate, name)
                mark(axes, place, option.expected.error, option.name, marker, face, 6)
            axes.axhline(found.trivial, color="0.6", linewidth=0.6, linestyle="--")
            axes.set_xlabel(name.replace("_", " "))
        accuracy = found.recommended.expected.accuracy
        right.sharey(left)
        left.autoscale(axis="y")
        left.set_ylabel("loss" if accuracy is None else "share of wrong answers")
        _legend_above(left)

    draw(path, paint)


def mark(
    axes: Axes, x: float, y: float, label: str, marker: str, face: str, size: float, order: int = 3
) -> None:
    """One point that stands out."""
    look: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": "black", "markersize": size}
    axes.plot([x], [y], marker, linestyle="none", label=label, zorder=order, **look)


def _legend_above(axes: Axes) -> None:
    """A legend that never covers a line."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2)
