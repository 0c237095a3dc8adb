"""Recipes side by side at equal epsilon and delta, over several seeds.

Every run is a simulation, kept as soon as it is finished: the same comparison asked for again goes
on where it stopped. Runs are known by what they are made from, so a changed recipe runs anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.methods.registry import METHODS
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import DataSection, Recipe
from fedveil.report import compared
from fedveil.report.spread import Spread, spread_of
from fedveil.report.store import Outcome, Store
from fedveil.run.run import Run, Speed

_FORMAT = 2  # of an outcome; a change of what runs are made of starts afresh
_PROMISE = (
    *("epsilon", "delta", "unit", "adjacency", "trust", "accountant", "certified", "reason"),
    *("rests_on", "not_covered"),
)


@dataclass(frozen=True)
class Contender:
    """A recipe under a name of its own."""

    name: str
    recipe: Recipe

    @property
    def data(self) -> str:
        """The name of the data set, with the label of a table."""
        data = self.recipe.data
        label = "" if data.label is None else f", {data.label}"
        return f"{data.source if data.file is None else Path(data.file).name}{label}"

    @property
    def private(self) -> bool:
        return METHODS[self.recipe.training.method].private

    def at(self, epsilon: float | None, delta: float | None, seed: int) -> Recipe:
        """The recipe of one run: this budget, this seed."""
        privacy = self.recipe.privacy
        if epsilon is not None and self.private:
            privacy = replace(privacy, epsilon=epsilon, noise_multiplier=None)
        if delta is not None and self.private:
            privacy = replace(privacy, delta=delta)
        return replace(self.recipe, privacy=privacy, seed=seed)


@dataclass(frozen=True)
class ComparedRun:
    """One run: who, at which epsilon (None: no noise, or the recipe's own), with which seed."""

    contender: Contender
    epsilon: float | None
    delta: float | None
    seed: int

    @property
    def recipe(self) -> Recipe:
        return self.contender.at(self.epsilon, self.delta, self.seed)

    @property
    def key(self) -> str:
        table = recipes.to_table(self.recipe)
        table.pop("engine", None)  # speed changes no result
        document = json.dumps([_FORMAT, table], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class ComparedCell:
    """All seeds of one contender at one epsilon."""

    contender: Contender
    epsilon: float | None
    outcomes: tuple[Outcome, ...]

    def spread(self, figure: str) -> Spread:
        return spread_of([outcome.get(figure) for outcome in self.outcomes])


def contenders(paths: Sequence[Path], assignments: Sequence[str] = ()) -> tuple[Contender, ...]:
    """Recipes by their file names; equal names get their folder's too."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.stem}" for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError("recipes: two have the same name; give each once, or rename one")
    made = []
    for name, path in zip(names, paths, strict=True):
        recipe = recipes.parse(recipes.read(path), assignments)
        made.append(Contender(name, recipes.with_defaults(recipe)))
    sets = {one.name: one.data for one in made}
    if len(set(sets.values())) > 1:
        listed = "; ".join(f"{name}: {data}" for name, data in sets.items())
        raise ConfigError(
            f"recipes: they use different data sets ({listed}), whose scores cannot be compared. "
            "Compare recipes for one data set, or set it for all with --set data.source=NAME"
        )
    return tuple(made)


def tasks(
    entered: Sequence[Contender], epsilons: Sequence[float], delta: float | None, seeds: int
) -> tuple[ComparedRun, ...]:
    """All runs, every contender once before any is repeated: a first answer comes early."""
    if seeds < 1:
        raise ConfigError(f"--seeds: must be at least 1, got {seeds}")
    return tuple(
        ComparedRun(contender, epsilon, delta, seed)
        for seed in range(seeds)
        for contender in entered
        for epsilon in (epsilons if contender.private and epsilons else (None,))
    )


def common_delta(entered: Sequence[Contender]) -> float | None:
    """The strictest delta of all: equal epsilon means little at different ones."""
    deltas = []
    for contender in entered:
        if contender.private:
            guarantee = plan_of(contender.at(None, None, 0), _federation(contender.recipe.data))
            if guarantee.guarantee is not None:
                deltas.append(guarantee.guarantee.delta)
    positive = [delta for delta in deltas if delta > 0]
    return min(positive, default=None) if len(positive) == len(deltas) else 0.0


def missing(todo: Sequence[ComparedRun], store: Store) -> list[ComparedRun]:
    """Runs that are not in the store, each once."""
    seen: dict[str, ComparedRun] = {}
    for task in todo:
        if task.key not in seen and store.find(task.key) is None:
            seen[task.key] = task
    return list(seen.values())


def run_task(task: ComparedRun) -> Outcome:
    """Train to the end: final metrics, and what is promised to whom."""
    began = time.perf_counter()
    recipe = task.recipe
    plan = plan_of(recipe, _federation(recipe.data))
    speed = Speed(recipe.engine.name, chunk=recipe.engine.chunk)
    run = Run(plan, speed=speed, every=plan.method.rounds)
    try:
        metrics = run.finish()
    finally:
        run.close()
    outcome: Outcome = {
        "accuracy": metrics.accuracy,
        "loss": metrics.loss if math.isfinite(metrics.loss) else None,
        "rmse": metrics.rmse if metrics.accuracy is None and metrics.loss >= 0 else None,
        "seconds": round(time.perf_counter() - began, 3),
        "noise_multiplier": plan.noise_multiplier,
    }
    if plan.guarantee is not None:
        document = plan.guarantee.to_dict()
        outcome["guarantee"] = {word: document[word] for word in _PROMISE}
    return outcome


def cells(todo: Sequence[ComparedRun], store: Store) -> list[ComparedCell]:
    """Finished runs by contender and epsilon, in the order of the tasks."""
    found: dict[tuple[str, float | None], list[Outcome]] = {}
    who = {task.contender.name: task.contender for task in todo}
    for task in todo:
        outcome = store.find(task.key)
        if outcome is not None:
            found.setdefault((task.contender.name, task.epsilon), []).append(outcome)
    return [
        ComparedCell(who[name], epsilon, tuple(seen)) for (name, epsilon), seen in found.items()
    ]


def differences(table: Sequence[ComparedCell]) -> Iterator[str]:
    """In what the contenders' promises differ though their numbers are equal: one line each."""
    promises: dict[tuple[str, ...], list[str]] = {}
    for cell in table:
        promise = cell.outcomes[0].get("guarantee")
        if promise is not None:
            words = tuple(str(promise[word]) for word in ("unit", "adjacency", "trust"))
            names = promises.setdefault(words, [])
            if cell.contender.name not in names:
                names.append(cell.contender.name)
    if len(promises) > 1:
        for (unit, adjacency, trust), names in promises.items():
            yield f"{', '.join(names)}: one {unit}, {adjacency}, {trust} trust"


def draw(table: Sequence[ComparedCell], figure: str, label: str) -> bytes:
    """Mean and deviation against epsilon, one line for each contender, as PNG."""
    import io

    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.0, 4.3), layout="constrained")
    axes = picture.subplots()
    epsilons = sorted({cell.epsilon for cell in table if cell.epsilon is not None})
    for place, (name, own) in enumerate(_by_name(table).items()):
        colour = f"C{place}"
        points = [(cell.epsilon, cell.spread(figure)) for cell in own if cell.epsilon]
        points = sorted((point for point in points if point[1].runs), key=lambda point: point[0])
        if points:
            x, spreads = zip(*points, strict=True)
            middle = [spread.mean for spread in spreads]
            width = [spread.deviation for spread in spreads]
            marker = "osD^vPX*"[place % 8]
            axes.errorbar(x, middle, yerr=width, marker=marker, capsize=3, color=colour, label=name)
        for cell in own:
            spread = cell.spread(figure)
            if cell.epsilon is None and spread.runs:
                axes.axhline(spread.mean, linestyle="--", color=colour, label=name)
    if len(epsilons) > 1:
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    axes.set_xlabel("epsilon; bars: standard deviation of single runs; dashed: no budget set")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(loc="outside upper center", ncols=3, frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def page_document(table: Sequence[ComparedCell], figure: str, label: str) -> dict[str, Any]:
    """The comparison for its page."""
    columns = ["recipe", "method", "epsilon", label, "runs", "diverged", "noise multiplier"]
    rows = []
    for row in to_document(table, figure):
        mean = row["mean"] if row["runs"] else None
        deviation = row["deviation"] if row["runs"] > 1 else None
        rows.append([row["recipe"], row["method"], row["epsilon"], [mean, deviation]])
        rows[-1] += [row["runs"], row["diverged"], row["noise_multiplier"]]
    said = {
        "Equal numbers, different promises": list(differences(table)),
        "What these runs are": ["Simulations with known seeds: none of them is certified."],
    }
    title = f"{label[:1].upper()}{label[1:]} of {len(_by_name(table))} recipes on {data_of(table)}"
    return compared.document_of(title, said, _charts(table, figure, label), columns, rows)


def _charts(table: Sequence[ComparedCell], figure: str, label: str) -> list[dict[str, Any]]:
    """One chart: against epsilon, or by name where no budget was set."""
    chart: dict[str, Any] = {"title": f"{label}, mean of all seeds", "y": label, "zoom": True}
    if any(len(cell.outcomes) > 1 for cell in table):
        chart["bars"] = compared.DEVIATION
    epsilons = [cell.epsilon for cell in table if cell.epsilon is not None]
    known = [cell for cell in table if cell.spread(figure).runs]
    if not known:
        return []
    if not epsilons:
        points = [compared.point(at, cell.spread(figure)) for at, cell in enumerate(known)]
        names = [cell.contender.name for cell in known]
        series = [{"name": label, "points": points}]
        return [chart | {"x": "recipe", "x_names": names, "series": series}]
    series = []
    for name, own in _by_name(known).items():
        ends = (min(epsilons), max(epsilons))
        points = [
            compared.point(x, cell.spread(figure))
            for cell in own
            for x in (sorted(set(ends)) if cell.epsilon is None else [cell.epsilon])
        ]
        told = name if own[0].epsilon is not None else f"{name}, no budget set"
        series.append({"name": told, "points": sorted(points)})
    return [chart | {"x": "epsilon", "log_x": True, "series": series}]


def data_of(table: Sequence[ComparedCell]) -> str:
    """Return the name of the data set that all recipes use."""
    return table[0].contender.data if table else "no data"


def _by_name(table: Sequence[ComparedCell]) -> dict[str, list[ComparedCell]]:
    found: dict[str, list[ComparedCell]] = {}
    for cell in table:
        found.setdefault(cell.contender.name, []).append(cell)
    return found


def to_document(table: Sequence[ComparedCell], figure: str) -> list[dict[str, Any]]:
    """The table for scripts."""
    rows = []
    for cell in table:
        spread = cell.spread(figure)
        rows.append(
            {
                "recipe": cell.contender.name,
                "method": cell.contender.recipe.training.method,
                "epsilon": cell.epsilon,
                "figure": figure,
                "mean": spread.mean,
                "deviation": spread.deviation,
                "runs": spread.runs,
                "diverged": spread.lost,
                "guarantee": cell.outcomes[0].get("guarantee"),
                "noise_multiplier": cell.outcomes[0].get("noise_multiplier"),
            }
        )
    return rows


@lru_cache(maxsize=4)
def _federation(data: DataSection) -> Federation:
    return federation_of(data)
