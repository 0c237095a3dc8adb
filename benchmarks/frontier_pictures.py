"""Pictures of how far a budget goes: one for each federation, and one of them all.

Each bears a digest of what it shows (`shown`), so that a test can tell when it is out of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.frontier import RESULTS, current
from benchmarks.frontier_tables import (
    FEDERATIONS,
    PAGE,
    ceiling,
    every_run,
    opening_keys,
    own,
    page_with_tables,
    papers_methods,
    shown,
)

OPENING = Path(__file__).parent.parent / "docs" / "images" / "frontier.svg"
EPSILONS = (0.5, 1, 2, 4, 8, 30, 100, 300, 1000)  # that are written on an axis
OURS, PAPER, METHODS, CEILING = "#0b5fa5", "#c23b22", "0.35", "0.6"


def draw() -> None:
    found = current()
    matplotlib.rcParams.update({"svg.hashsalt": "fedveil", "svg.fonttype": "none"})
    for key in FEDERATIONS:
        if own(key, found) is not None:
            _one(key, found)
    _opening(found)
    (RESULTS / "frontier.md").write_text(every_run(found))
    PAGE.write_text(page_with_tables(PAGE.read_text(), found))


def _one(key: str, found: dict[str, Any]) -> None:
    federation = FEDERATIONS[key]
    figure, axis = pyplot.subplots(figsize=(5.2, 3.4))
    for curve, marker in zip(papers_methods(federation), "sD^vP*X<>ph", strict=False):
        at = zip(*curve.values, strict=True)
        axis.plot(*at, marker=marker, ms=4, lw=0.8, ls=":", color=METHODS, label=curve.label)
    for place, point in enumerate(federation.points):
        axis.annotate(
            "", (point.true, point.value), (point.claimed, point.value),
            arrowprops={"arrowstyle": "->", "color": PAPER, "lw": 0.8, "shrinkA": 3, "shrinkB": 3},
        )  # fmt: skip
        axis.plot(
            point.claimed, point.value, "o", color=PAPER, mfc="none", ms=5,
            label=f"{point.label}, as claimed" if place == 0 else None,
        )  # fmt: skip
        axis.plot(
            point.true, point.value, "o", color=PAPER, ms=5,
            label="the same noise, as proved" if place == 0 else None,
        )  # fmt: skip
    line = own(key, found)
    assert line is not None
    epsilons, means = zip(*line.values, strict=True)
    axis.errorbar(epsilons, means, line.spread, fmt="o-", color=OURS, label=line.label, zorder=5)
    top = ceiling(key, found)
    if top is not None:
        axis.axhline(top, color=CEILING, ls="--", lw=1, label="the same model, no noise")
    bars = "\nbars: standard deviation of single runs" if any(line.spread) else ""
    axis.set(
        xscale="log",
        yscale="log" if federation.points and federation.loss else "linear",
        xlabel=f"epsilon (certified, unless claimed){bars}",
        ylabel="squared error" if federation.loss else "test accuracy, %",
        title=federation.title,
    )
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, 0.4), max(high, 12.0))
    ticks = [tick for tick in EPSILONS if tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.minorticks_off()
    _write_out(axis.yaxis)
    axis.title.set_fontsize(10)
    axis.legend(fontsize=6.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        RESULTS / f"frontier-{key}.png",
        dpi=130,
        bbox_inches="tight",
        metadata={"Software": None, "Description": shown((key,), found)},
    )
    pyplot.close(figure)


def _write_out(axis: Any) -> None:
    """Write 1, 2 and 5 as numbers on a logarithmic axis with few powers of ten."""
    low, high = axis.get_view_interval()
    if axis.get_scale() == "log" and high / low < 200:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def _opening(found: dict[str, Any]) -> None:
    """Accuracy by certified epsilon, a small picture for each federation: our recipes, the best of
    the papers' methods, and what there is to be had without noise."""
    keys = opening_keys(found)
    figure, axes = pyplot.subplots(1, len(keys), figsize=(1.65 * len(keys), 2.3), squeeze=False)
    for axis, key in zip(axes[0], keys, strict=True):
        _small(axis, key, found)
    axes[0][0].set_ylabel("test accuracy, %")
    marks = (
        *axes[0][0].plot([], [], "o-", color=OURS, ms=4, label="best recipe"),
        *axes[0][0].plot([], [], "D:", color=PAPER, ms=4, label="best of the papers' methods"),
        *axes[0][0].plot([], [], "--", color=CEILING, label="no noise"),
    )
    figure.legend(handles=marks, ncol=3, frameon=False, fontsize=9, loc="upper center")
    figure.supxlabel("certified epsilon", fontsize=9, y=0.01, va="bottom")
    figure.tight_layout(rect=(0, 0.02, 1, 0.92), w_pad=0.6)
    OPENING.parent.mkdir(exist_ok=True)
    figure.savefig(OPENING, metadata={"Date": None, "Description": shown(keys, found)})
    pyplot.close(figure)


def _small(axis: Axes, key: str, found: dict[str, Any]) -> None:
    line, top = own(key, found), ceiling(key, found)
    assert line is not None
    best: dict[float, float] = {}
    for curve in papers_methods(FEDERATIONS[key]):
        for epsilon, value in curve.values:
            best[epsilon] = max(value, best.get(epsilon, value))
    if best:
        axis.plot(*zip(*sorted(best.items()), strict=True), "D:", color=PAPER, ms=4)
    axis.plot(*zip(*line.values, strict=True), "o-", color=OURS, ms=4)
    if top is not None:
        axis.axhline(top, color=CEILING, ls="--", lw=1)
    axis.set(xscale="log", xlim=(0.4, 12))
    axis.margins(y=0.12)
    axis.set_xticks([0.5, 1, 2, 4, 8], ["½", "1", "2", "4", "8"], fontsize=8)
    axis.minorticks_off()
    axis.tick_params(axis="y", labelsize=8)
    axis.set_title(FEDERATIONS[key].short, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
