"""Fu et al., table IV and figures 2, 4 and 6: a CNN on FEMNIST, Gaussian noise on every upload."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedveil.experiments.case import Case, Certified, Claimed, Data, Label, Noise, Without
from fedveil.experiments.experiment import Difference, Experiment, Panel, Scale
from fedveil.experiments.summary import Row
from fedveil.privacy.papers.fu import paper_fu_participations

DELTA, CLIP, NO_NOISE = 1e-4, 3.0, "∞"
EPSILONS = (10, 20, 30)
# Table IV: epsilon -> (E*, accuracy there, worst), in percent.
TABLE_4: dict[Label, tuple[int, float, float]] = {
    10: (24, 46.63, 5.09),
    20: (12, 63.47, 5.21),
    30: (12, 67.81, 35.00),
    NO_NOISE: (2, 74.70, 70.88),
}

SETTING = (
    "FEMNIST, 3,500 writers; 90 % for training; CNN of 214,590 weights; b = 350 in turn",
    "gradients clipped to 3 in L1; Gaussian noise by Theorem 2, delta 1e-4; means of 20 runs",
)
DIFFERENCES = (
    Difference("writers", "3,500, b = 350", "300, b = 30: 12 times the noise variance"),
    Difference("clip", "L1", "L2, the order of the noise"),
    Difference("c2 of Theorem 2", "not given", "1"),
    Difference("learning rate", "not given", "0.1"),
    Difference("T", "250 and 240, in two places 50", "as the text says, not the captions"),
    Difference(
        "size",
        "T = 240 to 500",
        "quick: 100 writers of at most 30 images, b = 50, T = 24",
        only=Scale.QUICK,
    ),
)


def case_of(
    *,
    scale: Scale,
    kind: str,
    epsilon: Label,
    steps: int,
    local: int,
    labels: tuple[tuple[str, Label], ...] = (),
    published: float | None = None,
    every: int | None = None,
) -> Case:
    quick = scale is Scale.QUICK
    clients, cohort = (100, 50) if quick else (300, 30)
    rounds = max(1, round(steps / local))
    settings = (("clients", 100), ("cap", 30)) if quick else ()
    values: dict[str, Any] = {
        "model.name": "fu-cnn",
        "training.method": "fu",
        "training.rounds": rounds,
        "training.sampling": "round-robin",
        "training.cohort": cohort,
        "training.local_steps": local,
        "training.learning_rate": 0.1,
        "privacy.clip_norm": CLIP,
    }
    noise: Noise = Without()
    if epsilon != NO_NOISE:
        uses = paper_fu_participations(clients=clients, cohort=cohort, rounds=rounds).value
        noise = Certified(float(epsilon), DELTA)
        if kind == "paper":
            ratio = math.sqrt(uses * math.log(1 / DELTA)) / float(epsilon)
            noise = Claimed(float(epsilon), DELTA, ratio)
    return Case(
        labels=(("noise", kind), ("epsilon", epsilon), *labels),
        data=Data("femnist", settings, "owner" if quick else None),
        values=tuple(values.items()),
        noise=noise,
        published=published,
        every=every,
    )


def _grid(scale: Scale) -> list[tuple[str, Label]]:
    epsilons = (30, NO_NOISE) if scale is Scale.QUICK else (*EPSILONS, NO_NOISE)
    return [(kind, epsilon) for kind in ("paper", "certified") for epsilon in epsilons]


def curve_cases(scale: Scale) -> tuple[Case, ...]:
    steps, local = (24, 4) if scale is Scale.QUICK else (250, 5)
    return tuple(
        case_of(scale=scale, kind=kind, epsilon=epsilon, steps=steps, local=local, every=1)
        for kind, epsilon in _grid(scale)
    )


def steps_cases(scale: Scale) -> tuple[Case, ...]:
    points, local = ((8, 24), 4) if scale is Scale.QUICK else (tuple(range(50, 501, 50)), 5)
    return tuple(
        case_of(
            scale=scale,
            kind=kind,
            epsilon=epsilon,
            steps=steps,
            local=local,
            labels=(("T", steps),),
        )
        for kind, epsilon in _grid(scale)
        for steps in points
    )


def local_cases(scale: Scale) -> tuple[Case, ...]:
    quick = scale is Scale.QUICK
    return tuple(
        case_of(
            scale=scale,
            kind=kind,
            epsilon=epsilon,
            steps=24 if quick else 240,
            local=local,
            labels=(("E", local),),
            published=TABLE_4[epsilon][1]
            if TABLE_4[epsilon][0] == local and kind == "paper"
            else None,
        )
        for kind, epsilon in _grid(scale)
        for local in ((1, 4, 12) if quick else (1, 2, 3, 4, 6, 8, 12, 24))
    )


def best_local(rows: Sequence[Row]) -> Sequence[str]:
    found = []
    for kind in ("paper", "certified"):
        for epsilon, said in TABLE_4.items():
            chosen = [row for row in rows if row.matches(noise=kind, epsilon=epsilon)]
            if chosen:
                best = max(chosen, key=lambda row: row.mean("accuracy"))
                found.append(
                    f"epsilon {epsilon}, {kind} noise: E* = {best['E']} with "
                    f"{best.mean('accuracy'):.2f} % (paper: E* = {said[0]}, {said[1]} %)"
                )
    return found


def _panels(x: str, label: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            f"{kind} noise",
            x,
            "accuracy",
            "epsilon",
            (("noise", kind),),
            label,
            "test accuracy (%)",
        )
        for kind in ("paper", "certified")
    )


def _page(name: str, title: str, cases: Any, panels: tuple[Panel, ...], **more: Any) -> Experiment:
    settings: dict[str, Any] = {"quick_seeds": 1, "quick_minutes": 10, "full_minutes": 3000, **more}
    return Experiment(
        name=name,
        paper="Fu et al.",
        title=title,
        setting=SETTING,
        differences=DIFFERENCES,
        cases=cases,
        metric="accuracy",
        unit="% of the test images",
        panels=panels,
        **settings,
    )


EXPERIMENTS = (
    _page("fu-figure-2", "figure 2: accuracy in each iteration, FEMNIST", curve_cases,
          _panels("round", "round")),
    _page("fu-figure-4", "figure 4: accuracy after T iterations, FEMNIST", steps_cases,
          _panels("T", "iterations T")),
    _page("fu-table-4", "table IV and figure 6: accuracy against local iterations, FEMNIST",
          local_cases, _panels("E", "local iterations E"), findings=best_local),
)  # fmt: skip
