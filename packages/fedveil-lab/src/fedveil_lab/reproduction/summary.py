"""Means and deviations over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.report.spread import Spread, spread_of
from fedveil.report.store import Outcome, Store
from fedveil_lab.reproduction.case import Case, Label
from fedveil_lab.reproduction.experiment import Experiment, Scale
from fedveil_lab.reproduction.runner import finished, tasks


@dataclass(frozen=True)
class Row:
    """One case with all its seeds."""

    case: Case
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, label: str) -> Label:
        return self.case[label]

    def matches(self, **labels: Label) -> bool:
        return all(self.case.get(name) == value for name, value in labels.items())

    def spread(self, figure: str) -> Spread:
        """A figure at the end of the run."""
        return spread_of([outcome["final"].get(figure) for outcome in self.outcomes])

    def mean(self, figure: str) -> float:
        """Its mean; infinite if every run diverged."""
        found = self.spread(figure)
        return found.mean if found.runs else math.inf

    @property
    def cost(self) -> Mapping[str, Any]:
        cost: Mapping[str, Any] = self.outcomes[0]["cost"]
        return cost

    def curve(self, figure: str) -> list[tuple[int, Spread]]:
        """(round, spread) along the run, where the figure was looked at."""
        by_round: dict[int, list[float | None]] = {}
        for outcome in self.outcomes:
            for point in outcome["curve"]:
                if figure in point:
                    by_round.setdefault(point["round"], []).append(point[figure])
        return [(number, spread_of(values)) for number, values in sorted(by_round.items())]


def paired(row: Row, base: Row, figure: str) -> Spread:
    """A figure minus that of another case, seed by seed: cohorts, batches and noise cancel."""
    other = {outcome["seed"]: outcome["final"].get(figure) for outcome in base.outcomes}
    differences: list[float | None] = []
    for outcome in row.outcomes:
        if outcome["seed"] in other:
            mine, its = outcome["final"].get(figure), other[outcome["seed"]]
            differences.append(None if mine is None or its is None else mine - its)
    return spread_of(differences)


def rows_of(
    experiment: Experiment, scale: Scale, store: Store, seeds: int | None = None
) -> tuple[Row, ...]:
    """Every case of which at least one run is finished, in the page's order."""
    cases = {case.labels: case for case in experiment.cases(scale)}
    found: dict[Any, list[Outcome]] = {labels: [] for labels in cases}
    for task in tasks(experiment, scale, seeds):
        outcome = finished(task, store)
        if outcome is not None:
            found[task.case.labels].append(outcome)
    return tuple(Row(cases[name], tuple(outcomes)) for name, outcomes in found.items() if outcomes)
