"""The runs of an experiment: which are missing, and what the finished ones say over their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedveil.report.spread import Spread, spread_of
from fedveil.report.store import Outcome, Store
from fedveil_lab.reproduction.case import Case, Label
from fedveil_lab.reproduction.experiment import Experiment, Scale
from fedveil_lab.reproduction.run_case import Tick, probe_of, run_case, same_probe

RunCase = Callable[[Case, int, Tick], Outcome]
Show = Callable[[str, int, int], None]  # what runs now, rounds done, rounds in all
Task = tuple[Case, int]  # one run to be done: a case and a seed


def tasks(experiment: Experiment, scale: Scale, seeds: int | None = None) -> tuple[Task, ...]:
    """Return all runs, every case once before any is repeated, so that a first answer is early."""
    cases = experiment.cases(scale)
    return tuple(
        (case, seed)
        for seed in range(seeds or experiment.seeds(scale))
        for case in cases
        if case.seeds is None or seed < case.seeds
    )


def finished(task: Task, store: Store) -> Outcome | None:
    """Return the stored outcome of a run, unless today's code trains differently."""
    case, seed = task
    outcome = store.find(case.key(seed))
    if outcome is None or ("probe" in outcome and not same_probe(outcome["probe"], probe_of(case))):
        return None
    return outcome


def pending(todo: tuple[Task, ...], store: Store) -> Iterator[Task]:
    """Yield runs that are not in the store or are stale; those that cases share come once."""
    seen: set[str] = set()
    for case, seed in todo:
        key = case.key(seed)
        if key not in seen and finished((case, seed), store) is None:
            seen.add(key)
            yield case, seed


def finish(
    todo: tuple[Task, ...],
    store: Store,
    show: Show = lambda what, done, of: None,
    run: RunCase | None = None,
) -> int:
    """Run what is missing and keep each outcome as soon as it is there.

    Args:
        todo: All runs of an experiment.
        store: Where outcomes are kept, and runs that were interrupted.
        show: Called as the rounds go by.
        run: Runs one; `run_case` unless given, which goes on with an interrupted run.

    Returns:
        How many were run.
    """
    missing = list(pending(todo, store))
    total, done = sum(_rounds(case) for case, _ in missing), 0
    for case, seed in missing:
        what = f"{case.described()}, seed {seed}: round"

        def tick(share: float, before: int = done, case: Case = case, what: str = what) -> None:
            show(what, before + round(share * _rounds(case)), total)

        halfway = store.directory / f"{case.key(seed)}.halfway"
        outcome = run_case(case, seed, tick, halfway) if run is None else run(case, seed, tick)
        store.keep(case.key(seed), outcome)
        done += _rounds(case)
    return len(missing)


def _rounds(case: Case) -> int:
    return int(dict(case.values).get("training.rounds", 1))


@dataclass(frozen=True)
class Row:
    """A case with the outcomes of its seeds."""

    case: Case
    outcomes: tuple[Outcome, ...]

    def __getitem__(self, label: str) -> Label:
        return self.case[label]

    def matches(self, **labels: Label) -> bool:
        return all(self.case.get(name) == value for name, value in labels.items())

    def spread(self, figure: str) -> Spread:
        """Return mean and deviation of a figure at the end of the runs."""
        return spread_of([outcome["final"].get(figure) for outcome in self.outcomes])

    def mean(self, figure: str) -> float:
        """Return the mean of a figure; infinite if every run diverged."""
        found = self.spread(figure)
        return found.mean if found.runs else math.inf

    @property
    def cost(self) -> Mapping[str, Any]:
        cost: Mapping[str, Any] = self.outcomes[0]["cost"]
        return cost

    def curve(self, figure: str) -> list[tuple[int, Spread]]:
        """Return (round, spread) pairs for the rounds in which the figure was measured."""
        by_round: dict[int, list[float | None]] = {}
        for outcome in self.outcomes:
            for point in outcome["curve"]:
                if figure in point:
                    by_round.setdefault(point["round"], []).append(point[figure])
        return [(number, spread_of(values)) for number, values in sorted(by_round.items())]


def paired(row: Row, base: Row, figure: str) -> Spread:
    """Return a figure minus that of another case, seed by seed: cohorts and noise cancel."""
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
    """Return every case of which at least one run is finished, in the page's order."""
    cases = {case.labels: case for case in experiment.cases(scale)}
    found: dict[Any, list[Outcome]] = {labels: [] for labels in cases}
    for case, seed in tasks(experiment, scale, seeds):
        outcome = finished((case, seed), store)
        if outcome is not None:
            found[case.labels].append(outcome)
    return tuple(Row(cases[name], tuple(outcomes)) for name, outcomes in found.items() if outcomes)
