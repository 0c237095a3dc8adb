"""Hu et al., figures 3 and 4 under other readings: do they give what the paper saw?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reproduction.case import Case, Claimed, Data
from reproduction.experiment import Difference, Experiment, Panel, Scale
from reproduction.pages.hu_adult import (
    BATCH,
    DELTA,
    DIFFERENCES,
    MODELS,
    SETTING,
    case_of,
    claimed_epsilon,
)
from reproduction.summary import Row

RAW = Data("adult", (("numbers", "raw"),))
RATES = (1e-5, 1e-4)
NOISES = (("gradient", 1e-5), ("gradient", 1e-3), ("model", 1e-3))
CLIPS = (1.0, 4.0, 16.0)


def raw_cases(scale: Scale) -> tuple[Case, ...]:
    """Figure 3 with numbers as they were counted, tau = 40.

    Noise on the gradient is the algorithm's; noise on the model itself is what a loss that rises
    again at 1e-3 might mean, and is that on the gradient divided by the learning rate.
    """
    clip = float(MODELS["logistic"]["privacy.clip_norm"])
    rounds = 40 if scale is Scale.QUICK else 100
    cases = []
    for rate in RATES:
        for place, sigma in NOISES:
            std = sigma if place == "gradient" else sigma / rate
            epsilon = claimed_epsilon(std, clip, 40, rounds)
            cases.append(
                case_of(
                    model="logistic",
                    method="secure sum",
                    steps=40,
                    rounds=rounds,
                    noise=Claimed(epsilon, DELTA, std * BATCH / clip),
                    labels=(("learning rate", rate), ("noise", f"{sigma:g} on the {place}")),
                    every=5,
                    measures=("train_loss",),
                    data=RAW,
                    changes={"model.input_norm": None, "training.learning_rate": rate},
                )
            )
    return tuple(cases)


def clip_cases(scale: Scale) -> tuple[Case, ...]:
    """Figure 4, sigma = 1e-4, tau = 5, with other bounds G on an example's gradient."""
    rounds = 50 if scale is Scale.QUICK else 100
    return tuple(
        case_of(
            model="network",
            method="secure sum",
            steps=5,
            rounds=rounds,
            noise=Claimed(claimed_epsilon(1e-4, clip, 5, rounds), DELTA, 1e-4 * BATCH / clip),
            labels=(("G", clip), ("learning rate", rate)),
            every=5,
            measures=("gradient_norm",),
            changes={"privacy.clip_norm": clip, "training.learning_rate": rate},
        )
        for clip in CLIPS
        for rate in (0.5, 0.1)
    )


def _lowest(rows: Sequence[Row], figure: str) -> Sequence[str]:
    found = []
    for row in rows:
        curve = [(number, spread) for number, spread in row.curve(figure) if spread.runs]
        number, low = min(curve, key=lambda point: point[1].mean)
        told = ", ".join(f"{name} {value}" for name, value in row.case.labels)
        found.append(
            f"{told}: {figure.replace('_', ' ')} {curve[0][1].mean:.3g} at first, lowest "
            f"{low.mean:.3g} in round {number}, {curve[-1][1].mean:.3g} at the end; accuracy "
            f"{row.spread('accuracy')}"
        )
    return found


def _panels(by: str, rates: tuple[float, ...], figure: str, label: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title=f"learning rate {rate:g}",
            x="round",
            y=figure,
            by=by,
            where=(("learning rate", rate),),
            x_label="communication round",
            y_label=label,
            log_y=True,
        )
        for rate in rates
    )


def _page(name: str, title: str, what: Difference, **more: Any) -> Experiment:
    return Experiment(
        name=name,
        paper="Hu et al.",
        title=title,
        setting=SETTING,
        differences=(what, *DIFFERENCES),
        metric="accuracy",
        unit="% of the test records",
        quick_seeds=1,
        quick_minutes=2,
        full_seeds=2,
        full_minutes=8,
        **more,
    )


EXPERIMENTS = (
    _page(
        "hu-figure-3-readings",
        "figure 3 with attributes as raw numbers, tau = 40",
        Difference(
            "inputs", "not said", "the six numbers as they were counted, at any length; no proof"
        ),
        cases=raw_cases,
        panels=_panels("noise", RATES, "train_loss", "training loss"),
        findings=lambda rows: _lowest(rows, "train_loss"),
    ),
    _page(
        "hu-figure-4-readings",
        "figure 4 with other clips, sigma = 1e-4, tau = 5",
        Difference("G", "not said", "1 (as in hu-figure-4), 4 and 16"),
        cases=clip_cases,
        panels=_panels("G", (0.5, 0.1), "gradient_norm", "norm of the gradient"),
        findings=lambda rows: _lowest(rows, "gradient_norm"),
    ),
)
