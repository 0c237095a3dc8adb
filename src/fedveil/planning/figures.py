"""Plots of what a budget buys. Black, grey and line styles only: they survive a printer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.planning.advice import Advice
from fedveil.planning.bounds import FuBound
from fedveil.planning.iterations import Iterations, every_divisor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedveil.planning.feasible import Row

STYLE: dict[Any, Any] = {
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


def draw_iterations(advice: Advice, path: Path) -> None:
    """Score against local steps at the chosen total, and against the total for fixed choices."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(7.2, 3.2)
        left, right = figure.subplots(1, 2)
        _against_local_steps(left, advice)
        _against_total(right, advice)
        save(figure, path)


def draw_feasible(rows: Sequence[Row], path: Path) -> None:
    """Noise and signal-to-noise against rounds, one line for every way and cohort."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(7.2, 3.4)
        left, right = figure.subplots(1, 2)
        lines = dict.fromkeys((row.trust, row.sampling, row.cohort) for row in rows)
        cohorts = {cohort for _, _, cohort in lines}
        for number, (trust, sampling, cohort) in enumerate(lines):
            drawn = [
                r for r in rows if (r.trust, r.sampling, r.cohort) == (trust, sampling, cohort)
            ]
            rounds = [r.rounds for r in drawn]
            style = {
                "color": ("black", "0.45", "0.7")[number % 3],
                "linestyle": ("-", "--", ":", "-.")[number % 4],
                "marker": "os^Dv"[number % 5],
                "markersize": 4,
                "label": f"{trust}, {sampling}" + (f", {cohort}" if len(cohorts) > 1 else ""),
            }
            left.loglog(rounds, [r.noise_multiplier for r in drawn], **style)
            right.loglog(rounds, [r.run_signal_to_noise for r in drawn], **style)
        left.set_ylabel("noise multiplier")
        right.set_ylabel("signal-to-noise over the run")
        right.axhline(1, color="0.6", linewidth=0.6)
        for axes in (left, right):
            axes.set_xlabel("rounds")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
        save(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches that no window system is asked for."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write the figure; the ending of the file's name says as what: .png, .pdf, .svg."""
    figure.savefig(path, dpi=200)


def legend_above(axes: Axes) -> None:
    """A legend that never covers a line."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, columnspacing=1.2)


def _against_local_steps(axes: Axes, advice: Advice) -> None:
    total = advice.chosen.total_steps
    choices = every_divisor(advice.score, total)
    axes.loglog(
        [c.local_steps for c in choices],
        [c.bound for c in choices],
        color="0.55",
        marker=".",
        markersize=3,
        zorder=1,
    )
    _mark(axes, advice.best, "best divisor", "o", "black")
    _mark(axes, advice.asymptotic, "asymptotic rule", "s", "white")
    _mark(axes, advice.rule_of_thumb, "literal rule", "^", "white")
    if advice.chosen != advice.best:
        _mark(axes, advice.chosen, "as given", "D", "0.5")
    axes.set_xlabel(f"local steps $E$ ($T = {total}$)")
    axes.set_ylabel(_label(advice))
    legend_above(axes)


def _against_total(axes: Axes, advice: Advice) -> None:
    """Continuous in the total: divisibility matters for a choice, not for the shape."""
    chosen = advice.chosen
    totals = np.geomspace(max(1, chosen.local_steps), max(10, 20 * chosen.total_steps), 200)
    lines = [(1.0 + 0 * totals, "$E = 1$", "0.55", "-")]
    if chosen.local_steps > 1:
        lines.append((chosen.local_steps + 0 * totals, f"$E = {chosen.local_steps}$", "black", "-"))
    if isinstance(advice.score, FuBound):
        fu = advice.score
        constant = np.array([fu.asymptotic_local_steps(int(t)) for t in totals])
        literal = totals ** (fu.growth / (fu.growth + 1))
        lines.append((constant, "asymptotic rule", "black", "--"))
        lines.append((literal, "literal rule $T^{z/(z+1)}$", "black", ":"))
    for steps, label, colour, style in lines:
        inside = totals >= steps
        values = advice.score(steps[inside], totals[inside] / steps[inside])
        axes.loglog(totals[inside], values, color=colour, linestyle=style, label=label)
    axes.plot([chosen.total_steps], [chosen.bound], "o", color="black", markersize=5)
    axes.set_xlabel("total steps $T$")
    legend_above(axes)


def _mark(axes: Axes, choice: Iterations | None, label: str, marker: str, face: str) -> None:
    if choice is not None:
        axes.plot(
            [choice.local_steps],
            [choice.bound],
            marker,
            markerfacecolor=face,
            markeredgecolor="black",
            markersize=4 if face == "black" else 7,  # the best is seen inside the others
            linestyle="none",
            label=f"{label}: $E = {choice.local_steps}$",
            zorder=3 if face == "black" else 2,
        )


def _label(advice: Advice) -> str:
    if isinstance(advice.score, FuBound):
        return "bound on squared distance"
    return f"score ({advice.score.name}, heuristic)"
