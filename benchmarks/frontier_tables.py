"""What was measured of the best recipes, as curves and tables: results/frontier.md, and the
tables of docs/frontier.md, which stand between comments that name them.

It comes from results/frontier.json (the best recipes) and from the pages of the papers' tables
beside it (the papers' methods, run at certified noise).
"""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frontier import RESULTS, best_recipes, ceiling_of, epsilon_of, name_of
from benchmarks.frontier_proxies import PROXIES
from fedveil.training.models.whitening import DIRECTIONS

PAGE = Path(__file__).parent.parent / "docs" / "frontier.md"


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
    pages: tuple[str, ...] = ()  # of results/, with the papers' methods on this federation
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
        ("liang-table-1",),
        points=(Point("Liang et al.", 85.3, 9.0, 0.5), Point("Liang et al.", 83.3, 6.0, 0.27)),
    ),
    "mnist-writers": Federation("MNIST by its 539 writers", "MNIST\n539 writers"),
    "femnist": Federation(
        "FEMNIST, 300 writers, 62 classes",
        "FEMNIST\n300 writers",
        ("cheng-table-1", "cheng-own-size"),
        points=(Point("Cheng et al., 3,400 writers", 78.1, 8.0, 56.0),),
    ),
    "cifar-even": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 1",
        "CIFAR-10, α = 1\n2,000 clients",
        ("cheng-table-2",),
        (("alpha", 1.0),),
        (Point("Cheng et al.", 63.7, 8.0, 1039.0),),
    ),
    "cifar-uneven": Federation(
        "CIFAR-10, 2,000 clients of 25, Dirichlet 0.1",
        "CIFAR-10, α = 0.1\n2,000 clients",
        ("cheng-table-2",),
        (("alpha", 0.1),),
        (Point("Cheng et al.", 59.0, 8.0, 1039.0),),
    ),
    "svhn": Federation(
        "SVHN subset, 2,000 clients of 2 or 3 images",
        "SVHN subset\n2,000 clients",
        ("liang-table-2",),
        points=(
            Point("Liang et al., 604,388 images", 87.3, 5.07, 3.70),
            Point("Liang et al., 604,388 images", 84.7, 2.56, 1.82),
        ),
        opens=False,
    ),
    "shakespeare": Federation(
        "Shakespeare, 975 roles, next character",
        "Shakespeare\n975 roles",
        ("liang-table-3",),
        points=(Point("Liang et al.", 43.8, 14.04, 11.22), Point("Liang et al.", 39.5, 6.78, 5.20)),
        opens=False,
    ),
    "digits": Federation("Digits, 100 clients of 14 images", "Digits\n100 clients"),
    "adult": Federation("Adult, 16 devices, one record", "Adult\none record", ("hu-figure-7",)),
    "lending-club-local": Federation(
        "Lending Club, 5,000 clients, nobody trusted",
        "Lending Club",
        ("fu-table-2",),
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
    rows = [row for page in federation.pages for row in _rows(page)]
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


def _rows(page: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{page}.json").read_text())["rows"]
    return rows


def _method(labels: dict[str, Any]) -> str:
    if "smoothing" in labels:
        return "DP-Fed, smoothed" if labels["smoothing"] else "DP-Fed"
    return str(labels.get("method", "client noise"))


def opening_keys(found: dict[str, Any]) -> tuple[str, ...]:
    """The federations in the picture of them all."""
    lines = {
        key: own(key, found)
        for key, one in FEDERATIONS.items()
        if one.pages and one.opens and not one.loss
    }
    return tuple(key for key, line in lines.items() if line is not None and len(line.values) > 1)


def shown(keys: tuple[str, ...], found: dict[str, Any]) -> str:
    """A digest of what a picture of these federations shows."""
    digest = hashlib.sha256()
    for key in keys:
        top = ceiling(key, found)
        for curve in (own(key, found), *papers_methods(FEDERATIONS[key])):
            if curve is not None:
                numbers = [*(value for point in curve.values for value in point), *curve.spread]
                digest.update(f"{curve.label} {[f'{one:.4f}' for one in numbers]}".encode())
        digest.update(f"{key} {top and f'{top:.4f}'} {FEDERATIONS[key].points}".encode())
    return digest.hexdigest()[:16]


def _entry(key: str, name: str, found: dict[str, Any], places: int) -> str:
    """Mean and deviation of single runs; a dash if there was none."""
    if name not in found:
        return "–"
    values = _values(key, found[name])
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{places}f}{spread}"


def every_run(found: dict[str, Any]) -> str:
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
                unit = "" if federation.loss else " %"
                epsilon = f"{epsilon_of(name):g}" if name in names else "no noise"
                mean, seeds = _entry(key, name, found, 2), len(found[name]["seeds"])
                rows.append(f"| {federation.title} | {epsilon} | {mean}{unit} | {seeds} |")
    return "\n".join(rows) + "\n"


COLUMNS = ("0.5", "1", "2", "4", "8")


def measured_table(found: dict[str, Any]) -> str:
    """Accuracies by recipe and epsilon."""
    heads = " | ".join(f"ε = {epsilon}" for epsilon in COLUMNS)
    rows = [f"| recipe `best/NAME-epsilon-E` | {heads} | no noise |", "|---" * 7 + "|"]
    for key, federation in FEDERATIONS.items():
        places = 2 if federation.loss else 1
        names = [*(f"best/{key}-epsilon-{epsilon}" for epsilon in COLUMNS), ceiling_of(key)]
        cells = " | ".join(_entry(key, name, found, places) for name in names)
        rows.append(f"| `{key}`: {federation.title} | {cells} |")
    return "\n".join(rows)


@dataclass(frozen=True)
class Goal:
    """What a federation is held against. `asked`: by epsilon; None is as far as it goes."""

    key: str
    paper: str
    methods: str
    asked: tuple[tuple[str, float | None], ...]


GOALS = (
    Goal(
        "mnist", "83.3 (6), 85.3 (9)", "85.5 at 6",
        (("0.5", None), ("1", 96.0), ("4", 97.0)),
    ),
    Goal("mnist-writers", "–", "90.4 at 8 (pixels)", (("2", 95.0), ("8", 96.5))),
    Goal(
        "femnist", "78.1 (8), of 3,400 writers", "57.6 at 8; with the paper's own network 66.7",
        (("2", 73.0), ("8", 81.0)),
    ),
    Goal(
        "cifar-even", "63.7 (8; its noise is worth 1,039)", "32.9 at 8",
        (("2", 55.0), ("8", 61.0)),
    ),
    Goal("cifar-uneven", "59.0 (8; the same)", "24.7 at 8", (("2", None), ("8", 52.0))),
    Goal(
        "svhn", "86.4, of 604,388 images", "42.4 at 5.07, of 5,000",
        (("4", None), ("8", None)),
    ),
    Goal(
        "shakespeare", "43.8 (14.0; its noise is worth 11.2), 39.5 (6.8; 5.2)",
        "22.1 at 1.25, an LSTM", (("1", None), ("2", None), ("8", None)),
    ),
    Goal("adult", "figures", "81.1 at 1, 83.1 at 4", (("1", 84.0), ("4", 84.2))),
    Goal("lending-club", "–", "–", (("1", 3.8),)),
    Goal(
        "lending-club-local", "27.4 (1), 23.6 (3), 23.1 (5), other loans",
        "113 at 1, 18.4 at 3, 12.4 at 5; with settings of a grid 57 at 1, 11.4 at 3, 6.3 at 5",
        (("1", 57.0), ("3", 11.4), ("5", 6.3)),
    ),
)  # fmt: skip


def goals_table(found: dict[str, Any]) -> str:
    """Beside the papers and what was asked for; what is reached is bold."""
    rows = [
        "| federation | paper, at its claimed epsilon | its methods at certified noise | asked for "
        "| here | no noise |",
        "|---" * 6 + "|",
    ]
    for goal in GOALS:
        federation = FEDERATIONS[goal.key]
        asked = [f"{value:g} at {epsilon}" for epsilon, value in goal.asked if value is not None]
        here = ", ".join(_against(goal.key, *one, found) for one in goal.asked)
        title = f"{federation.title}{', squared error' if federation.loss else ''}"
        top = _entry(goal.key, ceiling_of(goal.key), found, 2 if federation.loss else 1)
        wanted = "; ".join(asked) or "as far as it goes"
        rows.append(f"| {title} | {goal.paper} | {goal.methods} | {wanted} | {here} | {top} |")
    return "\n".join(rows)


def _against(key: str, epsilon: str, wanted: float | None, found: dict[str, Any]) -> str:
    name, loss = f"best/{key}-epsilon-{epsilon}", FEDERATIONS[key].loss
    text = f"{_entry(key, name, found, 2 if loss else 1)} at {epsilon}"
    if wanted is None or name not in found:
        return text
    mean = statistics.mean(_values(key, found[name]))
    return f"**{text}**" if (mean <= wanted if loss else mean >= wanted) else text


def search_table(_: dict[str, Any]) -> str:
    """Which data gave the settings, and which these are (`frontier_search`)."""
    heads = " | ".join(f"ε = {epsilon}" for epsilon in COLUMNS)
    rows = [f"| recipe | found on | trials | at all ε | {heads} |", "|---" * 9 + "|"]
    every = json.loads((RESULTS / "frontier-search.json").read_text())
    for key in (key for key in FEDERATIONS if key in every):
        one = every[key]
        cells = " | ".join(_settings(one["chosen"][epsilon]) for epsilon in COLUMNS)
        found_on = f"{PROXIES[key].words} | {len(one['trials'])} | {_kind(one['chosen']['2'])}"
        rows.append(f"| `{key}` | {found_on} | {cells} |")
    return "\n".join(rows)


def _kind(chosen: dict[str, Any]) -> str:
    """What was asked at one epsilon only: features, tables of texts, local steps."""
    whitened = chosen.get("model.whiten") is not None
    words = (
        chosen.get("model.features"),
        "mirrored" if chosen.get("model.mirror") else None,
        chosen.get("model.whiten"),
        f"{chosen.get('model.directions') or DIRECTIONS} directions" if whitened else None,
        f"{chosen['model.patches']} patches" if chosen.get("model.patches") else None,
        f"J {chosen['model.scales']}" if "model.scales" in chosen else None,
        f"rows {chosen['model.hidden']}" if "model.hidden" in chosen else None,
        f"cohort {chosen['training.cohort']}" if "model.hidden" in chosen else None,
        f"{chosen['training.local_steps']} steps" if "training.local_steps" in chosen else None,
        f"momentum {chosen['server.momentum']:g}" if "server.momentum" in chosen else None,
        f"average {chosen['server.average']}" if "server.average" in chosen else None,
    )
    return ", ".join(word for word in words if word) or "–"


def _settings(chosen: dict[str, Any]) -> str:
    """Clip, local rate, rounds and server's rate, as far as they were looked for."""
    words = {
        "S": chosen["privacy.clip_norm"],
        "rate": chosen["training.learning_rate"],
        "T": chosen.get("training.rounds"),
        "server": chosen.get("server.learning_rate"),
        "norm": chosen.get("model.input_norm"),
    }
    return ", ".join(f"{name} {value:g}" for name, value in words.items() if value is not None)


TABLES = {"measured": measured_table, "goals": goals_table, "search": search_table}


def page_with_tables(page: str, found: dict[str, Any]) -> str:
    """The page with its tables as they are now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: written by --draw -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        if not after:
            raise ValueError(f"the page has no place for the table {name}")
        page = before + begin + table(found) + end + after
    return page
