"""Runs what is missing of an experiment; what is finished is never run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedveil.report.store import Outcome, Store
from fedveil_lab.reproduction.case import Case
from fedveil_lab.reproduction.experiment import Experiment, Scale
from fedveil_lab.reproduction.run_case import Tick, probe_of, run_case, same_probe


@dataclass(frozen=True)
class Task:
    """One run to be done: a case and a seed."""

    case: Case
    seed: int

    @property
    def key(self) -> str:
        return self.case.key(self.seed)

    @property
    def rounds(self) -> int:
        """How much work it is, for the time left."""
        return int(dict(self.case.values).get("training.rounds", 1))


RunCase = Callable[[Case, int, Tick], Outcome]
Show = Callable[[float, float, str], None]  # rounds done, rounds in all, what runs now


def tasks(experiment: Experiment, scale: Scale, seeds: int | None = None) -> tuple[Task, ...]:
    """All runs, every case once before any of them is repeated: a first answer comes early."""
    cases = experiment.cases(scale)
    count = seeds or experiment.seeds(scale)
    return tuple(
        Task(case, seed)
        for seed in range(count)
        for case in cases
        if case.seeds is None or seed < case.seeds
    )


def finished(task: Task, store: Store) -> Outcome | None:
    """Return the stored outcome of a run, unless today's code trains differently."""
    outcome = store.find(task.key)
    if outcome is None or (
        "probe" in outcome and not same_probe(outcome["probe"], probe_of(task.case))
    ):
        return None
    return outcome


def pending(todo: tuple[Task, ...], store: Store) -> Iterator[Task]:
    """Yield runs that are not in the store or are stale; those that cases share come once."""
    seen: set[str] = set()
    for task in todo:
        if task.key not in seen and finished(task, store) is None:
            seen.add(task.key)
            yield task


def finish(
    todo: tuple[Task, ...],
    store: Store,
    show: Show = lambda done, total, what: None,
    run: RunCase | None = None,
) -> int:
    """Run what is missing, keeping each outcome as soon as it is there; how many were run.

    `run_case`, which runs them unless another way is given, also keeps those that are not finished.
    """
    missing = list(pending(todo, store))
    total, done = float(sum(task.rounds for task in missing)), 0.0
    for task in missing:
        what = ", ".join(f"{name} {value}" for name, value in task.case.labels)
        what = f"{what}, seed {task.seed}"

        def tick(share: float, before: float = done, task: Task = task, what: str = what) -> None:
            show(before + share * task.rounds, total, what)

        tick(0.0)
        outcome = (
            run_case(task.case, task.seed, tick, store.directory / f"{task.key}.halfway")
            if run is None
            else run(task.case, task.seed, tick)
        )
        store.keep(task.key, outcome)
        done += task.rounds
    if missing:
        show(total, total, "done")
    return len(missing)
