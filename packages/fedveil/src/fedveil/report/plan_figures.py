"""Plots of what a budget buys. Black, grey and line styles only: they survive a printer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from fedveil.tune.advice import Advice
    from fedveil.tune.feasible import Row
    from fedveil.tune.trials import Outcome, Trial

_OPTIONS = {
    "recommended": ("o", "black"),
    "as it stands": ("D", "0.7"),
    "more private": ("s", "white"),
    "cheaper": ("^", "white"),
}


def _panels() -> tuple[Figure, Axes, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")  # no window system is asked
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure, left, right


def _save(figure: Figure, path: Path) -> None:
    """Write a picture as what the ending of the file's name says: .png, .pdf or .svg."""
    left, right = figure.axes
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        write_out(axis)
    names = left.get_legend_handles_labels()
    figure.legend(*names, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=200)


def write_out(axis: Axis) -> None:
    """Write 1, 2 and 5 as numbers on a logarithmic axis with few powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high / low < 200:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def draw_feasible(rows: Sequence[Row], path: Path) -> None:
    """Draw noise and signal-to-noise against rounds, one line for every way and cohort."""
    lines: dict[Any, list[Row]] = {}
    for row in rows:
        lines.setdefault((row.trust, row.sampling, row.cohort), []).append(row)
    several = len({cohort for _, _, cohort in lines}) > 1
    figure, left, right = _panels()
    for number, ((trust, sampling, cohort), drawn) in enumerate(lines.items()):
        rounds = [row.rounds for row in drawn]
        style = {
            "color": ("black", "0.45", "0.7")[number % 3],
            "linestyle": ("-", "--", ":", "-.")[number % 4],
            "marker": "os^Dv"[number % 5],
            "markersize": 4,
            "label": f"{trust}, {sampling}" + (f", cohort {cohort}" if several else ""),
        }
        left.loglog(rounds, [row.noise_multiplier for row in drawn], **style)
        right.loglog(rounds, [row.run_signal_to_noise for row in drawn], **style)
    right.axhline(1, color="0.6", linewidth=0.6)
    edge = right.get_yaxis_transform()
    right.text(1, 0.97, "nothing is learnt", ha="right", va="top", transform=edge, fontsize=7)
    left.set(xlabel="rounds", ylabel="noise multiplier")
    right.set(xlabel="rounds", ylabel="signal-to-noise over the run")
    _save(figure, path)


def draw_search(found: Advice, outcomes: Mapping[tuple[int, Trial], Outcome], path: Path) -> None:
    """Draw the errors of all trials, darker the more clients they had; the options stand out."""
    worst = 2 * max(found.trivial, 1e-9)
    clouds: dict[float, list[tuple[Any, float]]] = {}
    for (_, trial), outcome in outcomes.items():
        asked = trial.epsilon == found.recommended.epsilon and trial.noise == 1
        if asked and math.isfinite(outcome.error):
            clouds.setdefault(trial.share, []).append((trial.candidate, min(worst, outcome.error)))
    figure, left, right = _panels()
    for axes, name in ((left, "local_steps"), (right, "rounds")):
        for number, share in enumerate(sorted(clouds)):
            grey = str(round(0.85 - 0.5 * number / max(1, len(clouds) - 1), 2))
            places = [getattr(candidate, name) for candidate, _ in clouds[share]]
            axes.loglog(places, [e for _, e in clouds[share]], ".", color=grey, markersize=3)
        for option in found.options:
            marker, face = _OPTIONS[option.name]
            place, look = getattr(option.candidate, name), {"mfc": face, "mec": "black"}
            axes.loglog([place], [option.expected.error], marker, label=option.name, **look)
        axes.axhline(found.trivial, color="0.6", linewidth=0.6, linestyle="--")
        axes.set_xlabel(name.replace("_", " "))
    accuracy = found.recommended.expected.accuracy
    left.set_ylabel("loss" if accuracy is None else "share of wrong answers")
    right.sharey(left)
    left.autoscale(axis="y")
    _save(figure, path)
