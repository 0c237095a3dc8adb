"""Liang et al., tables 2 and 3, figures 3 to 5: a CNN on SVHN and an LSTM on Shakespeare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from reproduction.case import Case, Certified, Claimed, Label, Noise, Without
from reproduction.claims.liang import paper_liang_epsilon
from reproduction.experiment import Experiment, Panel, Scale
from reproduction.pages.liang_tasks import (
    PRINTED,
    SHAKESPEARE_DIFFERENCES,
    SHAKESPEARE_SETTING,
    SHAKESPEARE_TABLE,
    SVHN_DIFFERENCES,
    SVHN_SETTING,
    SVHN_TABLE,
    Task,
    shakespeare,
    svhn,
)
from reproduction.summary import Row

_PAPERS = ((100, 200), (195, 100))  # cohort and rounds of its two tables
SMOOTHINGS = (0.0, 0.5, 1.0, 1.5)
SAMPLINGS = ("fixed", "poisson")
_NAMES = {"fixed": "uniform sampling", "poisson": "Poisson sampling"}
SHORT_STEP = (
    0.52  # sqrt((1 + 2 s) / (1 + 4 s)^1.5): what smoothing of strength s = 1 leaves of noise
)


def case_of(
    task: Task,
    sampling: str,
    z: float,
    smoothing: float,
    kind: str = "paper",
    *,
    published: float | None = None,
    every: int | None = None,
    learning_rate: float | None = None,
    step: float = 1.0,
) -> Case:
    """One run. A server `step` below 1 shrinks the noise as smoothing does, and nothing else."""
    values: dict[str, Any] = {
        "model.name": task.model,
        "training.method": "laplacian-smoothing" if smoothing else "dp-fed",
        "training.rounds": task.rounds,
        "training.sampling": sampling,
        "training.rate": task.rate,
        "training.local_epochs": task.epochs,
        "training.batch_size": task.batch,
        "training.learning_rate": learning_rate or task.learning_rate,
        "training.schedule": "exponential",
        "training.decay": -1 / math.log(0.99),
        "training.weight_decay": 4e-5,
        "privacy.clip_norm": task.clip,
    }
    values |= dict(task.more)
    if smoothing:
        values["server.smoothing"] = smoothing
    if step != 1:
        values["server.learning_rate"] = step
    labels: list[tuple[str, Label]] = [
        ("sampling", sampling),
        ("noise", kind),
        ("z", z),
        ("smoothing", smoothing if step == 1 else f"none, step {step:g}"),
    ]
    if learning_rate is not None:
        labels.append(("learning rate", learning_rate))
    return Case(
        labels=tuple(labels),
        data=task.data,
        values=tuple(values.items()),
        noise=noise_of(task, sampling, z, kind),
        published=published,
        every=task.every or every,
    )


def noise_of(task: Task, sampling: str, z: float, kind: str) -> Noise:
    if kind == "none":
        return Without()
    epsilon, delta = _claimed(task, sampling, z), task.clients**-1.1
    if kind == "certified":
        return Certified(epsilon, delta)
    return Claimed(epsilon, delta, z * task.cohort / task.paper_cohort)


@cache
def _claimed(task: Task, sampling: str, z: float) -> float:
    """The epsilon that the paper prints, or that its accountant would have printed."""
    printed = PRINTED.get((task.clients, sampling), {}).get(z)
    if printed is not None and (task.cohort, task.rounds) in _PAPERS:
        return printed
    return paper_liang_epsilon(
        noise_multiplier=z * task.cohort / task.paper_cohort,
        clients=task.clients,
        cohort=task.cohort,
        rounds=task.rounds,
        delta=task.clients**-1.1,
        sampling=sampling,
    ).value


def table_cases(
    task: Task, table: Mapping[tuple[str, float], tuple[float, ...]], scale: Scale
) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    multipliers = task.multipliers
    cases = []
    for sampling in SAMPLINGS[1:] if quick else SAMPLINGS:
        for kind in ("paper", "certified"):
            for z in multipliers if kind == "paper" else task.proved or multipliers:
                for smoothing in (0.0, 1.0) if quick else SMOOTHINGS:
                    known = table.get((sampling, smoothing))
                    # The tables run from the largest noise to the smallest.
                    at = len(multipliers) - 1 - multipliers.index(z)
                    published = known[at] if known and kind == "paper" and not quick else None
                    cases.append(case_of(task, sampling, z, smoothing, kind, published=published))
        if quick:  # what smoothing itself costs
            cases += [case_of(task, sampling, 0.0, smoothing, "none") for smoothing in (0.0, 1.0)]
    return tuple(cases)


def curve_cases(task: Task, fixed_z: float, poisson_z: float, scale: Scale) -> tuple[Case, ...]:
    some = (("poisson", poisson_z),)
    both = (("fixed", fixed_z), *some)
    return tuple(
        case_of(task, sampling, z, smoothing, every=2)
        for sampling, z in (some if scale is Scale.QUICK else both)
        for smoothing in ((0.0, 1.0) if scale is Scale.QUICK else SMOOTHINGS)
    )


def loud_cases(scale: Scale) -> tuple[Case, ...]:
    """Figure 4: large noise, other learning rates; and steps that shrink noise like smoothing."""
    quick = scale is Scale.QUICK
    return tuple(
        case_of(svhn(scale), "poisson", z, smoothing, every=2, learning_rate=rate, step=step)
        for z in ((2.0,) if quick else (2.0, 2.5, 3.0))
        for rate in ((0.25, 0.5) if quick else (0.05, 0.1, 0.125))
        for smoothing, step in ((0.0, 1.0), (1.0, 1.0), (0.0, SHORT_STEP))
    )


def gaps(rows: Sequence[Row]) -> Sequence[str]:
    """What smoothing changes, and a shorter step, beside the plain method."""
    found = []
    for plain in rows:
        same = {name: value for name, value in plain.case.labels if name != "smoothing"}
        others = [row for row in rows if row is not plain and row.matches(**same)]
        if plain["smoothing"] == 0.0 and others:
            told = ", ".join(f"{name} {value}" for name, value in same.items())
            listed = "; ".join(
                f"{row['smoothing']}: {row.spread('accuracy')} "
                f"({row.mean('accuracy') - plain.mean('accuracy'):+.2f})"
                for row in others
            )
            found.append(f"{told}: none {plain.spread('accuracy')}; smoothing {listed}")
    return found


def _table_panels() -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"{_NAMES[sampling]}, {kind} noise",
            "z",
            "accuracy",
            "smoothing",
            (("sampling", sampling), ("noise", kind)),
            "noise multiplier z of the paper",
            "test accuracy (%)",
        )
        for kind in ("paper", "certified")
        for sampling in SAMPLINGS
    )


def _curve_panels() -> tuple[Panel, ...]:
    return tuple(
        Panel(_NAMES[sampling], "round", y, "smoothing", (("sampling", sampling),), "round", label)
        for sampling in SAMPLINGS
        for y, label in (("loss", "test loss"), ("accuracy", "test accuracy (%)"))
    )


def _loud_panels() -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"z = {z:g}, learning rate {rate:g}",
            "round",
            "accuracy",
            "smoothing",
            (("z", z), ("learning rate", rate)),
            "round",
            "test accuracy (%)",
        )
        for z in (2.0, 2.5, 3.0)
        for rate in (0.05, 0.1, 0.125, 0.25, 0.5)
    )


def _page(
    name: str, title: str, cases: Any, panels: tuple[Panel, ...], text: bool, minutes: float
) -> Experiment:
    return Experiment(
        name=name,
        paper="Liang et al.",
        title=title,
        setting=SHAKESPEARE_SETTING if text else SVHN_SETTING,
        differences=SHAKESPEARE_DIFFERENCES if text else SVHN_DIFFERENCES,
        cases=cases,
        metric="accuracy",
        unit="% of the test characters" if text else "% of the test images",
        panels=panels,
        findings=gaps,
        quick_seeds=2,
        quick_minutes=minutes,
        full_minutes=10_000,
    )


EXPERIMENTS = (
    _page("liang-table-2", "table 2: a CNN on SVHN",
          lambda scale: table_cases(svhn(scale), SVHN_TABLE, scale), _table_panels(), False, 5),
    _page("liang-figure-3", "figure 3: training curves on SVHN",
          lambda scale: curve_cases(svhn(scale), 1.5, 1.0, scale), _curve_panels(), False, 1),
    _page("liang-figure-4", "figure 4: large noise on SVHN; shorter steps besides", loud_cases,
          _loud_panels(), False, 3),
    _page("liang-table-3", "table 3: an LSTM on Shakespeare",
          lambda scale: table_cases(shakespeare(scale), SHAKESPEARE_TABLE, scale),
          _table_panels(), True, 6),
    _page("liang-figure-5", "figure 5: training curves on Shakespeare",
          lambda scale: curve_cases(shakespeare(scale), 1.0, 1.0, scale), _curve_panels(), True, 2),
)  # fmt: skip
