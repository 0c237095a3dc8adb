"""Recipes side by side at equal epsilon and delta, over several seeds.

Every run is a simulation, kept as soon as it is finished: the same comparison asked for again goes
on where it stopped. Runs are known by what they are made from, so a changed recipe runs anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedveil.config import recipe as recipes
from fedveil.config.assemble import federation_of, plan_of
from fedveil.config.recipe import DataSection, Recipe
from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation
from fedveil.methods.registry import METHODS
from fedveil.report.spread import Spread, spread_of
from fedveil.report.store import Outcome, Store
from fedveil.run.run import Run, Speed

_FORMAT = 2  # of an outcome; a change of what runs are made of starts afresh
_PROMISE = (
    *("epsilon", "delta", "unit", "adjacency", "trust", "accountant", "certified", "reason"),
    *("rests_on", "not_covered"),
)

Tick = Callable[[float], None]  # share of a run's rounds that are done


@dataclass(frozen=True)
class Contender:
    """A recipe under a name of its own."""

    name: str
    recipe: Recipe

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
class Task:
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
class Cell:
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
        raise ConfigError("recipes: one is named twice")
    made = []
    for name, path in zip(names, paths, strict=True):
        recipe = recipes.parse(recipes.read(path), assignments)
        made.append(Contender(name, recipes.with_defaults(recipe)))
    return tuple(made)


def tasks(
    entered: Sequence[Contender], epsilons: Sequence[float], delta: float | None, seeds: int
) -> tuple[Task, ...]:
    """All runs, every contender once before any is repeated: a first answer comes early."""
    if seeds < 1:
        raise ConfigError(f"--seeds: must be at least 1, got {seeds}")
    return tuple(
        Task(contender, epsilon, delta, seed)
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


def missing(todo: Sequence[Task], store: Store) -> list[Task]:
    """Runs that are not in the store, each once."""
    seen: dict[str, Task] = {}
    for task in todo:
        if task.key not in seen and store.find(task.key) is None:
            seen[task.key] = task
    return list(seen.values())


def run_task(task: Task, tick: Tick = lambda share: None) -> Outcome:
    """Train to the end: final metrics, and what is promised to whom."""
    began = time.perf_counter()
    recipe = task.recipe
    plan = plan_of(recipe, _federation(recipe.data))
    speed = Speed(recipe.engine.name, chunk=recipe.engine.chunk)
    run = Run(plan, speed=speed, every=plan.method.rounds)
    try:
        for report in run:
            tick(report.round_number / plan.method.rounds)
        metrics = run.evaluate()
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


def cells(todo: Sequence[Task], store: Store) -> list[Cell]:
    """Finished runs by contender and epsilon, in the order of the tasks."""
    found: dict[tuple[str, float | None], list[Outcome]] = {}
    who = {task.contender.name: task.contender for task in todo}
    for task in todo:
        outcome = store.find(task.key)
        if outcome is not None:
            found.setdefault((task.contender.name, task.epsilon), []).append(outcome)
    return [Cell(who[name], epsilon, tuple(seen)) for (name, epsilon), seen in found.items()]


def differences(table: Sequence[Cell]) -> Iterator[str]:
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


def draw(table: Sequence[Cell], figure: str, label: str) -> bytes:
    """Mean and deviation against epsilon, one line for each contender, as PNG."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(6.0, 4.0))
    names = list(dict.fromkeys(cell.contender.name for cell in table))
    epsilons = sorted({cell.epsilon for cell in table if cell.epsilon is not None})
    for place, name in enumerate(names):
        own = [cell for cell in table if cell.contender.name == name]
        colour = f"C{place}"
        points = sorted((cell.epsilon, cell.spread(figure)) for cell in own if cell.epsilon)
        points = [point for point in points if point[1].runs]
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
    axes.set_xlabel("epsilon")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture.tight_layout()
    buffer = io.BytesIO()
    picture.savefig(buffer, dpi=150, metadata={"Software": None})
    pyplot.close(picture)
    return buffer.getvalue()


def to_document(table: Sequence[Cell], figure: str) -> list[dict[str, Any]]:
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
