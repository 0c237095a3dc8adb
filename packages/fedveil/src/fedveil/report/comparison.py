"""Recipes side by side at equal epsilon and delta, over several seeds.

Every run is a simulation, kept as soon as it is finished: the same comparison asked for again goes
on where it stopped. Runs are known by what they are made from, so a changed recipe runs anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedveil.core.arguments import count
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

LABELS = {"accuracy": "accuracy", "rmse": "root mean squared error", "loss": "loss"}

_FORMAT = 2  # of an outcome; a change of what runs are made of starts afresh
_PROMISE = (
    *("epsilon", "delta", "unit", "adjacency", "trust", "accountant", "certified", "reason"),
    *("rests_on", "not_covered"),
)


@dataclass(frozen=True)
class ComparedRun:
    """One run: a recipe by its name, at one epsilon (None: no noise, or its own), with one seed."""

    name: str
    epsilon: float | None
    recipe: Recipe

    @property
    def key(self) -> str:
        """Return what the run is known by: a digest of everything that changes its result."""
        table = recipes.to_table(self.recipe)
        table.pop("engine", None)
        document = json.dumps([_FORMAT, table], sort_keys=True)
        return hashlib.sha256(document.encode()).hexdigest()[:24]


def contenders(paths: Sequence[Path], assignments: Sequence[str] = ()) -> dict[str, Recipe]:
    """Read recipes, by their file names; equal names get their folder's too.

    Raises:
        ConfigError: Two recipes have the same name, or use different data sets.
    """
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.stem}" for path in paths]
    if len(set(names)) < len(names):
        raise ConfigError("recipes: two have the same name; give each once, or rename one")
    entered = {
        name: recipes.with_defaults(recipes.parse(recipes.read(path), assignments))
        for name, path in zip(names, paths, strict=True)
    }
    sets = {name: _data_name(recipe.data) for name, recipe in entered.items()}
    if len(set(sets.values())) > 1:
        listed = "; ".join(f"{name}: {data}" for name, data in sets.items())
        raise ConfigError(
            f"recipes: they use different data sets ({listed}), whose scores cannot be compared. "
            "Compare recipes for one data set, or set it for all with --set data.source=NAME"
        )
    return entered


def _data_name(data: DataSection) -> str:
    label = "" if data.label is None else f", {data.label}"
    return f"{data.source if data.file is None else Path(data.file).name}{label}"


def _private(recipe: Recipe) -> bool:
    return METHODS[recipe.training.method].private


def tasks(
    entered: Mapping[str, Recipe], epsilons: Sequence[float], delta: float | None, seeds: int
) -> list[ComparedRun]:
    """Return all runs, every recipe once before any is repeated: a first answer comes early."""
    count("--seeds", seeds)
    todo = []
    for seed in range(seeds):
        for name, recipe in entered.items():
            for epsilon in epsilons if _private(recipe) and epsilons else (None,):
                privacy = recipe.privacy
                if epsilon is not None:
                    privacy = replace(privacy, epsilon=epsilon, noise_multiplier=None)
                if delta is not None and _private(recipe):
                    privacy = replace(privacy, delta=delta)
                changed = replace(recipe, privacy=privacy, seed=seed)
                todo.append(ComparedRun(name, epsilon, changed))
    return todo


def common_delta(entered: Mapping[str, Recipe]) -> float | None:
    """Return the strictest delta of all: equal epsilon means little at different ones."""
    plans = [
        plan_of(replace(recipe, seed=0), _federation(recipe.data))
        for recipe in entered.values()
        if _private(recipe)
    ]
    deltas = [plan.guarantee.delta for plan in plans if plan.guarantee is not None]
    return min(deltas, default=None) if all(deltas) else 0.0


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
    number = metrics.accuracy is None
    outcome: Outcome = {
        "accuracy": metrics.accuracy,
        "loss": metrics.loss if math.isfinite(metrics.loss) else None,
        "rmse": metrics.rmse if number and metrics.loss >= 0 else None,
        "seconds": round(time.perf_counter() - began, 3),
        "noise_multiplier": plan.noise_multiplier,
    }
    if plan.guarantee is not None:
        document = plan.guarantee.to_dict()
        outcome["guarantee"] = {word: document[word] for word in _PROMISE}
    return outcome


def comparison_of(todo: Sequence[ComparedRun], store: Store) -> dict[str, Any]:
    """Gather finished runs by recipe and epsilon, in the order of the tasks.

    Returns:
        The document that `--json` prints: the data set, the figure that all runs are measured by,
        a row for each recipe and epsilon, and in what promises differ though numbers are equal.
    """
    found: dict[tuple[str, float | None], list[Outcome]] = {}
    for task in todo:
        if (outcome := store.find(task.key)) is not None:
            found.setdefault((task.name, task.epsilon), []).append(outcome)
    outcomes = [one for seeds in found.values() for one in seeds]
    figure = next(
        (name for name in LABELS if all(one.get(name) is not None for one in outcomes)), "loss"
    )
    methods = {task.name: task.recipe.training.method for task in todo}
    rows, promises = [], dict[str, dict[str, None]]()
    for (name, epsilon), seeds in found.items():
        spread = spread_of([one.get(figure) for one in seeds])
        row: dict[str, Any] = {
            "recipe": name,
            "method": methods[name],
            "epsilon": epsilon,
            "figure": figure,
        }
        row |= {
            "figure": figure,
            "mean": spread.mean,
            "deviation": spread.deviation,
            "runs": spread.runs,
        }
        row |= {key: seeds[0].get(key) for key in ("guarantee", "noise_multiplier")}
        rows.append(row | {"diverged": spread.lost})
        if (promise := row["guarantee"]) is not None:
            words = f"one {promise['unit']}, {promise['adjacency']}, {promise['trust']} trust"
            promises.setdefault(words, {})[name] = None
    differ = [f"{', '.join(names)}: {words}" for words, names in promises.items()]
    return {
        "data": _data_name(todo[0].recipe.data),
        "figure": figure,
        "rows": rows,
        "promises_differ": differ if len(differ) > 1 else [],
    }


def page_document(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison for its page and for the terminal."""
    label = LABELS[made["figure"]]
    columns = ["recipe", "method", "epsilon", label, "runs", "diverged", "noise multiplier"]
    rows = []
    for row in made["rows"]:
        mean = row["mean"] if row["runs"] else None
        deviation = row["deviation"] if row["runs"] > 1 else None
        rows.append([row["recipe"], row["method"], row["epsilon"], [mean, deviation]])
        rows[-1] += [row["runs"], row["diverged"], row["noise_multiplier"]]
    sections = {
        "Equal numbers, different promises": made["promises_differ"],
        "What these runs are": ["Simulations with known seeds: none of them is certified."],
    }
    names = {row["recipe"] for row in made["rows"]}
    title = f"{label[:1].upper()}{label[1:]} of {len(names)} recipes on {made['data']}"
    return compared.document_of(title, sections, _charts(made["rows"], label), columns, rows)


def _charts(rows: Sequence[Mapping[str, Any]], label: str) -> list[dict[str, Any]]:
    """Return one chart: against epsilon, or by name where no budget was set."""
    finished = [row for row in rows if row["runs"]]
    if not finished:
        return []
    chart: dict[str, Any] = {"title": f"{label}, mean of all seeds", "y": label, "zoom": True}
    if any(row["runs"] + row["diverged"] > 1 for row in rows):
        chart["bars"] = compared.DEVIATION
    epsilons = [row["epsilon"] for row in rows if row["epsilon"] is not None]
    if not epsilons:
        points = [_point(at, row) for at, row in enumerate(finished)]
        names = [row["recipe"] for row in finished]
        series = [{"name": label, "points": points}]
        return [chart | {"x": "recipe", "x_names": names, "series": series}]
    lines: dict[str, list[list[float]]] = {}
    for row in finished:
        level = row["epsilon"] is None  # a line across the whole chart
        name = f"{row['recipe']}, no budget set" if level else row["recipe"]
        ends = sorted({min(epsilons), max(epsilons)}) if level else [row["epsilon"]]
        lines.setdefault(name, []).extend(_point(x, row) for x in ends)
    series = [{"name": name, "points": sorted(points)} for name, points in lines.items()]
    return [chart | {"x": "epsilon", "log_x": True, "series": series}]


def _point(x: float, row: Mapping[str, Any]) -> list[float]:
    return compared.point(x, Spread(row["mean"], row["deviation"], row["runs"]))


@lru_cache(maxsize=4)
def _federation(data: DataSection) -> Federation:
    return federation_of(data)
