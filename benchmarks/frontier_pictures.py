"""Pictures of how far a budget goes: one for each federation, one of them all, and a table.

What is drawn comes from results/frontier.json (the best recipes) and from the pages of the papers'
tables beside it (the papers' methods, run at certified noise).
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.frontier import RESULTS, best_recipes, ceiling_of, epsilon_of, kept, name_of
from fedveil.report.plan_figures import write_out

OPENING = Path(__file__).parent.parent / "docs" / "images" / "frontier.svg"
EPSILONS = (0.5, 1, 2, 4, 8, 30, 100, 300, 1000)  # that are written on an axis
OURS, PAPER, METHODS, CEILING = "#0b5fa5", "#c23b22", "0.35", "0.6"


@dataclass(frozen=True)
class Point:
    """A paper's result: at the epsilon it claims, and at the one that its noise is worth here
    (docs/results.md; Cheng's with c2 = 1, which the paper leaves open)."""

    label: str
    value: float
    claimed: float
    true: float


@dataclass(frozen=True)
class Federation:
    title: str
    short: str
    page: str | None = None  # of results/, with the papers' methods on this federation
    where: tuple[tuple[str, Any], ...] = ()  # labels of its rows that belong here
    points: tuple[Point, ...] = ()
    loss: bool = False  # mean squared error, the lower the better, instead of accuracy
    opens: bool = True  # is in the picture of them all


_LENDING = (
    Point("Fu et al.", 27.4, 1.0, 2.0),
    Point("Fu et al.", 23.6, 3.0, 6.0),
    Point("Fu et al.", 23.1, 5.0, 10.0),
)
FEDERATIONS = {
    "mnist": Federation(
        "MNIST, 1,000 clients of 50 images",
        "MNIST\n1,000 clients",
        "liang-table-1",
        points=(Point("Liang et al.", 85.3, 9.0, 0.5), Point("Liang et al.", 83.3, 6.0, 0.27)),
    ),
    "mnist-writers": Federation("MNIST by its 539 writers", "MNIST\n539 writers"),
    "femnist": Federation(
        "FEMNIST, 300 writers, 62 classes",
        "FEMNIST\n300 writers",
        "cheng-table-1",
        points=(Point("Cheng et al., 3,400 writers", 78.1, 8.0, 56.0),),
    ),
    "cifar-even": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 1",
        "CIFAR-10, α = 1\n2,000 clients",
        "cheng-table-2",
        (("alpha", 1.0),),
        (Point("Cheng et al.", 63.7, 8.0, 1039.0),),
    ),
    "cifar-uneven": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 0.1",
        "CIFAR-10, α = 0.1\n2,000 clients",
        "cheng-table-2",
        (("alpha", 0.1),),
        (Point("Cheng et al.", 59.0, 8.0, 1039.0),),
    ),
    "svhn": Federation(
        "SVHN subset, 2,000 clients of 2 or 3 images",
        "SVHN subset\n2,000 clients",
        "liang-table-2",
        points=(
            Point("Liang et al., 604,388 images", 87.3, 5.07, 3.70),
            Point("Liang et al., 604,388 images", 84.7, 2.56, 1.82),
        ),
        opens=False,
    ),
    "shakespeare": Federation(
        "Shakespeare, 975 roles, next character",
        "Shakespeare\n975 roles",
        "liang-table-3",
        points=(Point("Liang et al.", 43.8, 14.04, 11.22), Point("Liang et al.", 39.5, 6.78, 5.20)),
        opens=False,
    ),
    "digits": Federation("Digits, 100 clients of 14 images", "Digits\n100 clients"),
    "adult": Federation("Adult, 16 devices, one record", "Adult\none record", "hu-figure-7"),
    "lending-club-local": Federation(
        "Lending Club, 5,000 clients, nobody trusted",
        "Lending Club",
        "fu-table-2",
        (("clients", 5000),),
        _LENDING,
        loss=True,
    ),
    "lending-club": Federation(
        "Lending Club, 5,000 clients, a secure sum", "Lending Club", loss=True
    ),
}


@dataclass(frozen=True)
class Curve:
    """A method's mean result by certified epsilon."""

    label: str
    values: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()


def own(key: str, found: dict[str, Any]) -> Curve | None:
    """The best recipes of a federation, as far as they were measured."""
    values, spread = [], []
    for name in best_recipes():
        if name_of(name) == key and name in found:
            seeds = _values(key, found[name])
            values.append((epsilon_of(name), statistics.mean(seeds)))
            spread.append(statistics.stdev(seeds) if len(seeds) > 1 else 0.0)
    return Curve("best recipe", tuple(values), tuple(spread)) if values else None


def ceiling(key: str, found: dict[str, Any]) -> float | None:
    entry = found.get(ceiling_of(key))
    return None if entry is None else statistics.mean(_values(key, entry))


def _values(key: str, entry: dict[str, Any]) -> list[float]:
    """In percent, or as squared errors: the loss is half of them."""
    if FEDERATIONS[key].loss:
        return [2 * run["loss"] for run in entry["seeds"].values()]
    return [100 * run["accuracy"] for run in entry["seeds"].values()]


def papers_methods(federation: Federation) -> list[Curve]:
    """What the papers' methods reach at certified noise, each at its best other settings."""
    if federation.page is None:
        return []
    rows = json.loads((RESULTS / f"{federation.page}.json").read_text())["rows"]
    best: dict[str, dict[float, float]] = {}
    better = min if federation.loss else max
    for row in rows:
        labels = row["labels"]
        if labels["noise"] != "certified" or row["epsilon_certified"] is None:
            continue
        if any(labels.get(key) != value for key, value in federation.where):
            continue
        values = best.setdefault(_method(labels), {})
        epsilon, mean = round(row["epsilon_certified"], 3), row["ours"]["mean"]
        values[epsilon] = better(values.get(epsilon, mean), mean)
    return [Curve(label, tuple(sorted(values.items()))) for label, values in best.items()]


def _method(labels: dict[str, Any]) -> str:
    if "smoothing" in labels:
        return "DP-Fed, smoothed" if labels["smoothing"] else "DP-Fed"
    return str(labels.get("method", "client noise"))


def draw() -> None:
    found = kept()
    matplotlib.rcParams.update({"svg.hashsalt": "fedveil", "svg.fonttype": "none"})
    for key in FEDERATIONS:
        if own(key, found) is not None:
            _one(key, found)
    _opening(found)
    (RESULTS / "frontier.md").write_text(_table(found))


def _table(found: dict[str, Any]) -> str:
    """All that was measured, in Markdown."""
    rows = [
        "# How far a budget goes: every run",
        "",
        "Again with `python -m benchmarks.frontier --seeds 3`. Simulated; epsilon as the same plan",
        "would certify it. ± is the standard deviation of single runs.",
        "",
        "| federation | epsilon | result | seeds |",
        "|---|---|---|---|",
    ]
    for key, federation in FEDERATIONS.items():
        names = [name for name in best_recipes() if name_of(name) == key]
        for name in (*names, ceiling_of(key)):
            if name in found:
                values, unit = _values(key, found[name]), "" if federation.loss else " %"
                spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
                epsilon = f"{epsilon_of(name):g}" if name in names else "no noise"
                mean = f"{statistics.mean(values):.2f}{spread}{unit}"
                rows.append(f"| {federation.title} | {epsilon} | {mean} | {len(values)} |")
    return "\n".join(rows) + "\n"


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
    write_out(axis.yaxis)
    axis.title.set_fontsize(10)
    axis.legend(fontsize=6.5, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        RESULTS / f"frontier-{key}.png",
        dpi=130,
        bbox_inches="tight",
        metadata={"Software": None},
    )
    pyplot.close(figure)


def _opening(found: dict[str, Any]) -> None:
    """Accuracy by certified epsilon, a small picture for each federation: our recipes, the best of
    the papers' methods, and what there is to be had without noise."""
    rivals = {
        key: one for key, one in FEDERATIONS.items() if one.page and one.opens and not one.loss
    }
    lines = {key: own(key, found) for key in rivals}
    keys = [key for key, line in lines.items() if line is not None and len(line.values) > 1]
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
    figure.savefig(OPENING, metadata={"Date": None})
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
