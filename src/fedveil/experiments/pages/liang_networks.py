"""Liang et al., tables 2 and 3, figures 3 to 5: a CNN on SVHN and an LSTM on Shakespeare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedveil.experiments.case import Case, Certified, Claimed, Data, Label, Noise
from fedveil.experiments.experiment import Difference, Experiment, Panel, Scale
from fedveil.privacy.papers.liang import paper_liang_epsilon

SMOOTHINGS = (0.0, 0.5, 1.0, 1.5)
SAMPLINGS = ("fixed", "poisson")


@dataclass(frozen=True)
class Task:
    """One data set at one scale."""

    data: Data
    clients: int
    rate: float
    rounds: int
    epochs: int
    batch: int
    clip: float
    learning_rate: float
    model: str
    paper_cohort: int
    multipliers: tuple[float, ...]

    @property
    def cohort(self) -> int:
        return round(self.rate * self.clients)


def svhn(scale: Scale) -> Task:
    if scale is Scale.QUICK:
        return Task(Data("svhn", (("clients", 100),), "iid"), 100, 0.3, 30, 2, 25, 0.7, 0.1,
                    "cnn", 100, (1.0, 1.5))  # fmt: skip
    return Task(Data("svhn-extra"), 2000, 0.05, 200, 10, 50, 0.7, 0.1, "liang-cnn", 100,
                (1.0, 1.1, 1.3, 1.5))  # fmt: skip


def shakespeare(scale: Scale) -> Task:
    if scale is Scale.QUICK:
        return Task(Data("shakespeare", (("clients", 40), ("at_least", 64), ("cap", 64),
                                         ("stride", 20)), "owner"),
                    40, 0.25, 10, 1, 32, 5.0, 1.47, "lstm", 195, (1.0,))  # fmt: skip
    return Task(Data("shakespeare", (("at_least", 64),), "owner"), 975, 0.2, 100, 5, 50, 5.0, 1.47,
                "lstm", 195, (1.0, 1.2, 1.4, 1.6))  # fmt: skip


# The paper's own epsilons: (clients, sampling) -> z -> epsilon.
PRINTED: dict[tuple[int, str], dict[float, float]] = {
    (2000, "fixed"): {1.0: 8.66, 1.1: 7.84, 1.3: 6.34, 1.5: 5.23},
    (2000, "poisson"): {1.0: 5.07, 1.1: 4.24, 1.3: 3.19, 1.5: 2.56},
    (975, "fixed"): {1.0: 27.24, 1.2: 22.43, 1.4: 17.69, 1.6: 14.94},
    (975, "poisson"): {1.0: 14.04, 1.2: 10.41, 1.4: 8.22, 1.6: 6.78},
}

# Rows that can be read: (sampling, smoothing, z) -> accuracy.
SVHN_TABLE = {
    ("fixed", 0.5): (82.72, 84.65, 86.49, 86.32),
    ("fixed", 1.0): (82.39, 84.13, 85.88, 86.39),
    ("poisson", 0.5): (84.27, 85.47, 87.00, 87.50),
    ("poisson", 1.0): (84.65, 85.38, 86.37, 87.26),
}
SHAKESPEARE_TABLE = {
    ("fixed", 0.5): (39.14, 40.27, 41.95, 43.76),
    ("fixed", 1.0): (39.18, 40.94, 42.60, 43.90),
    ("fixed", 1.5): (40.16, 40.89, 42.50, 43.95),
    ("poisson", 0.5): (39.07, 40.02, 42.02, 43.59),
    ("poisson", 1.0): (39.45, 41.07, 42.09, 43.78),
    ("poisson", 1.5): (39.38, 40.99, 42.19, 43.67),
}

SVHN_SETTING = (
    "SVHN with its extra images, 2,000 clients of about 300; CNN of 3.4 M weights",
    "T = 200, rate 0.05, E = 10, batch 50, G = 0.7, learning rate 0.1 x 0.99^t, decay 4e-5",
    "noise multiplier z = 1, 1.1, 1.3, 1.5; epsilon by Rényi accountants; means of 3 runs",
)
SHAKESPEARE_SETTING = (
    "Shakespeare, 975 roles; two LSTM layers of 256; T = 100, rate 0.2, E = 5, batch 50, G = 5",
    "learning rate 1.47 x 0.99^t, decay 4e-5; z = 1, 1.2, 1.4, 1.6; means of 3 runs",
)
_SAME_NOISE = Difference(
    "noise",
    "z on the sum of the cohort",
    "quick: z in proportion to the smaller cohort, so that the noise on the average is the "
    "paper's; the epsilons say what that is worth with so few clients",
    only=Scale.QUICK,
)
SVHN_DIFFERENCES = (
    Difference(
        "images and network",
        "604,388 images, 3.4 M weights",
        "quick: 5,000 images, 100 clients of 50, a CNN of about 60,000 weights, T = 30, E = 2",
        only=Scale.QUICK,
    ),
    Difference("images", "604,388", "not at hand: full needs a download", only=Scale.FULL),
    _SAME_NOISE,
)
SHAKESPEARE_DIFFERENCES = (
    Difference("edition", "LEAF's", "Moby's: comparable only roughly"),
    Difference("size", "975 roles, T = 100", "quick: 40 roles, T = 10, E = 1", only=Scale.QUICK),
    _SAME_NOISE,
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
) -> Case:
    values: dict[str, Any] = {
        "model.name": task.model,
        "training.method": "dp-fed-ls" if smoothing else "dp-fed",
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
    if smoothing:
        values["server.smoothing"] = smoothing
    delta = task.clients**-1.1
    multiplier = z * task.cohort / task.paper_cohort
    epsilon = _claimed(task, sampling, z)
    noise: Noise = Claimed(epsilon, delta, multiplier)
    if kind == "certified":
        noise = Certified(epsilon, delta)
    labels: list[tuple[str, Label]] = [
        ("sampling", sampling),
        ("noise", kind),
        ("z", z),
        ("smoothing", smoothing),
    ]
    if learning_rate is not None:
        labels.append(("learning rate", learning_rate))
    return Case(
        labels=tuple(labels),
        data=task.data,
        values=tuple(values.items()),
        noise=noise,
        published=published,
        every=every,
    )


@cache
def _claimed(task: Task, sampling: str, z: float) -> float:
    """The epsilon that the paper prints, or that its accountant would have printed."""
    printed = PRINTED.get((task.clients, sampling), {}).get(z)
    if printed is not None:
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
            for z in multipliers:
                for smoothing in (0.0, 1.0) if quick else SMOOTHINGS:
                    known = table.get((sampling, smoothing))
                    # The tables run from the largest noise to the smallest.
                    at = len(multipliers) - 1 - multipliers.index(z)
                    published = known[at] if known and kind == "paper" and not quick else None
                    cases.append(case_of(task, sampling, z, smoothing, kind, published=published))
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
    """Figure 4: large noise, other learning rates."""
    quick = scale is Scale.QUICK
    return tuple(
        case_of(svhn(scale), "poisson", z, smoothing, every=2, learning_rate=rate)
        for z in ((3.0,) if quick else (2.0, 2.5, 3.0))
        for rate in ((0.1,) if quick else (0.05, 0.1, 0.125))
        for smoothing in (0.0, 1.0)
    )


def _table_panels() -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"{sampling}, {kind} noise",
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
        Panel(sampling, "round", y, "smoothing", (("sampling", sampling),), "round", label)
        for sampling in SAMPLINGS
        for y, label in (("loss", "test loss"), ("accuracy", "test accuracy (%)"))
    )


def _page(name: str, title: str, cases: Any, panels: tuple[Panel, ...], text: bool) -> Experiment:
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
        quick_seeds=1,
        quick_minutes=10,
        full_minutes=10_000,
    )


EXPERIMENTS = (
    _page("liang-table-2", "table 2: a CNN on SVHN",
          lambda scale: table_cases(svhn(scale), SVHN_TABLE, scale), _table_panels(), False),
    _page("liang-figure-3", "figure 3: training curves on SVHN",
          lambda scale: curve_cases(svhn(scale), 1.5, 1.0, scale), _curve_panels(), False),
    _page("liang-figure-4", "figure 4: large noise on SVHN", loud_cases,
          tuple(Panel(f"z = {z}", "round", "accuracy", "smoothing", (("z", z),), "round",
                      "test accuracy (%)") for z in (2.0, 2.5, 3.0)), False),
    _page("liang-table-3", "table 3: an LSTM on Shakespeare",
          lambda scale: table_cases(shakespeare(scale), SHAKESPEARE_TABLE, scale),
          _table_panels(), True),
    _page("liang-figure-5", "figure 5: training curves on Shakespeare",
          lambda scale: curve_cases(shakespeare(scale), 1.0, 1.0, scale), _curve_panels(), True),
)  # fmt: skip
