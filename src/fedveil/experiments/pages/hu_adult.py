"""Hu et al., figures 3 to 8: noisy gradients on Adult, secure sum or not, against DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedveil.experiments.case import Case, Certified, Claimed, Data, Label, Noise
from fedveil.experiments.experiment import Difference, Experiment, Panel, Scale
from fedveil.experiments.summary import Row
from fedveil.privacy.papers.hu import (
    paper_hu_epsilon,
    paper_hu_noise_std,
    zcdp_rho,
)

CLIENTS, COHORT, RECORDS, BATCH = 16, 10, 2442, 32
DELTA = 1e-4
METHODS = ("secure sum", "no secure sum", "DP-SGD")
MODELS: dict[str, dict[str, Label]] = {
    "logistic": {
        "model.name": "logistic",
        "model.input_norm": 3.0,
        "training.learning_rate": 0.35,
        "privacy.clip_norm": 2.0,
    },
    "network": {
        "model.name": "hu-mlp",
        "training.learning_rate": 0.5,
        "privacy.clip_norm": 1.0,
    },
}

SETTING = (
    "Adult, 48,842 records dealt evenly to n = 16 devices; 80 % train, 10 % test, 10 % validation",
    "logistic regression, and a 3-layer ReLU network, softmax cross-entropy",
    "r = 10 devices a round, tau noisy steps each; (epsilon, 1e-4) by Theorem 1 for one record; "
    "means of 5 runs",
    "DP-SGD: one step a round, epsilon by the formula of section VII-C",
)
DIFFERENCES = (
    Difference(
        "batch, clip, learning rate",
        "not said",
        "gamma = 32 (of 2,442); logistic: G = 2, rate 0.35; network: G = 1, rate 0.5; larger "
        "batches leave nothing of the noise to be seen, smaller clips slow 40 steps down",
    ),
    Difference("network", "3 layers, widths not said", "105-64-32-2"),
    Difference(
        "inputs of the logistic model",
        "not said; losses near 7 suggest raw numbers",
        "standardised numbers, one-hot categories, shortened to length 3: the proof for several "
        "steps under a secure sum needs a bound",
    ),
    Difference(
        "delta", "1e-4, above one over the 39,072 records", "the same, for the comparison only"
    ),
    Difference("participations", "C = T r / n, 12.5 of 20", "claims use 12.5, proofs 13"),
)


def participations(rounds: int) -> float:
    return rounds * COHORT / CLIENTS


def claimed_multiplier(method: str, epsilon: float, steps: int, rounds: int) -> float:
    """Noise on a mean gradient over G / gamma, as the paper computes it for each method."""
    if method == "DP-SGD":  # divided by all n
        return math.sqrt(2 * participations(rounds) / (CLIENTS * zcdp_rho(epsilon, DELTA)))
    claim = paper_hu_noise_std(
        epsilon=epsilon,
        delta=DELTA,
        participations=participations(rounds),
        local_steps=steps,
        gradient_bound=1.0,
        cohort=COHORT if method == "secure sum" else 1,
        records=RECORDS,
        batch_size=BATCH,
    )
    return claim.value * BATCH


def claimed_epsilon(std: float, clip: float, steps: int, rounds: int) -> float:
    """Theorem 1 for noise of this std."""
    return paper_hu_epsilon(
        delta=DELTA,
        participations=participations(rounds),
        local_steps=steps,
        gradient_bound=clip,
        cohort=COHORT,
        records=RECORDS,
        batch_size=BATCH,
        noise_std=std,
    ).value


def case_of(
    *,
    model: str,
    method: str,
    steps: int,
    rounds: int,
    noise: Noise,
    labels: tuple[tuple[str, Label], ...],
    every: int | None = None,
    measures: tuple[Any, ...] = (),
) -> Case:
    values: dict[str, Any] = {
        **MODELS[model],
        "training.method": "dp-sgd" if method == "DP-SGD" else "hu",
        "training.rounds": rounds,
        "training.sampling": "balanced",
        "training.cohort": COHORT,
        "training.local_steps": 1 if method == "DP-SGD" else steps,
        "training.batch_size": BATCH,
        "privacy.trust": "local" if method == "no secure sum" else "distributed",
    }
    return Case(
        labels=labels,
        data=Data("adult"),
        values=tuple(values.items()),
        noise=noise,
        every=every,
        measures=measures,
    )


def convergence_cases(
    model: str, stds: tuple[float, ...], taus: tuple[int, ...], measure: Any, scale: Scale
) -> tuple[Case, ...]:
    """Figures 3 and 4: the noise is given, epsilon is what it comes to."""
    quick = scale is Scale.QUICK
    rounds = 40 if quick else 100
    clip = float(MODELS[model]["privacy.clip_norm"])
    return tuple(
        case_of(
            model=model,
            method="secure sum",
            steps=steps,
            rounds=rounds,
            noise=Claimed(claimed_epsilon(std, clip, steps, rounds), DELTA, std * BATCH / clip),
            labels=(("sigma", std), ("tau", steps)),
            every=5,
            measures=(measure,),
        )
        for std in (stds[1::2] if quick else stds)
        for steps in (taus[::2] if quick else taus)
    )


def _noise(kind: str, method: str, epsilon: float, steps: int, rounds: int) -> Noise:
    if kind == "certified":
        return Certified(epsilon, DELTA)
    return Claimed(epsilon, DELTA, claimed_multiplier(method, epsilon, steps, rounds))


def budget_cases(
    model: str,
    steps: int,
    rounds: int,
    epsilons: tuple[float, ...],
    methods: tuple[str, ...] = METHODS,
    every: int | None = None,
    measures: tuple[Any, ...] = (),
) -> tuple[Case, ...]:
    """Figures 5 to 8: the epsilon is given."""
    return tuple(
        case_of(
            model=model,
            method=method,
            steps=steps,
            rounds=rounds,
            noise=_noise(kind, method, epsilon, steps, rounds),
            labels=(("method", method), ("noise", kind), ("epsilon", epsilon)),
            every=every,
            measures=measures,
        )
        for kind in ("paper", "certified")
        for method in methods
        for epsilon in epsilons
    )


def gap_findings(rows: Sequence[Row]) -> Sequence[str]:
    """Who is ahead at equal epsilon, at the paper's noise and at proved noise."""
    found = []
    for kind in ("paper", "certified"):
        for epsilon in sorted({float(row["epsilon"]) for row in rows}):
            chosen = {
                row["method"]: row for row in rows if row.matches(noise=kind, epsilon=epsilon)
            }
            if len(chosen) == len(METHODS):
                listed = ", ".join(f"{m} {chosen[m].spread('accuracy')}" for m in METHODS)
                proved = ", ".join(f"{chosen[m].cost['certified']:.2f}" for m in METHODS)
                more = f"; proved epsilons {proved}" if kind == "paper" else ""
                found.append(f"epsilon {epsilon:g}, {kind} noise: {listed}{more}")
    return found


def convergence_findings(rows: Sequence[Row]) -> Sequence[str]:
    return [
        f"sigma {row['sigma']:g}, tau {row['tau']}: accuracy {row.spread('accuracy')}, claimed "
        f"epsilon {row.cost['claimed']:.3g}, proved {row.cost['certified']:.3g}"
        for row in rows
    ]


def _convergence_panels(
    stds: tuple[float, ...], figure: str, label: str, log_y: bool
) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title=f"σ = {std:g}",
            x="round",
            y=y,
            by="tau",
            where=(("sigma", std),),
            x_label="communication round",
            y_label=text,
            log_y=log,
        )
        for y, text, log in (("accuracy", "test accuracy (%)", False), (figure, label, log_y))
        for std in stds
    )


def _curve_panels(figure: str, label: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title=f"ε = 10, {kind} noise",
            x="round",
            y=y,
            by="method",
            where=(("noise", kind),),
            x_label="communication round",
            y_label=text,
        )
        for kind in ("paper", "certified")
        for y, text in (("accuracy", "test accuracy (%)"), (figure, label))
    )


_TRADE_OFF = tuple(
    Panel(
        title=f"{kind} noise",
        x="epsilon",
        y="accuracy",
        by="method",
        where=(("noise", kind),),
        x_label="ε (claimed)" if kind == "paper" else "ε (certified)",
        y_label="test accuracy (%)",
    )
    for kind in ("paper", "certified")
)
_LOGISTIC_STDS, _LOGISTIC_TAUS = (1e-5, 1e-4, 5e-4, 1e-3), (1, 5, 10, 40)
_NETWORK_STDS, _NETWORK_TAUS = (1e-4, 1e-3, 5e-3, 1e-2), (1, 5, 10, 20)
_EPSILONS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0)


def _some(scale: Scale) -> tuple[float, ...]:
    return (1.0, 4.0, 10.0) if scale is Scale.QUICK else _EPSILONS


def _page(name: str, title: str, cases: Any, panels: tuple[Panel, ...], **more: Any) -> Experiment:
    settings: dict[str, Any] = {"full_seeds": 5, "findings": gap_findings, **more}
    return Experiment(
        name=name,
        paper="Hu et al.",
        title=title,
        setting=SETTING,
        differences=DIFFERENCES,
        cases=cases,
        metric="accuracy",
        unit="% of the test records",
        panels=panels,
        **settings,
    )


EXPERIMENTS = (
    _page(
        "hu-figure-3",
        "figure 3: convergence of logistic regression",
        lambda scale: convergence_cases(
            "logistic", _LOGISTIC_STDS, _LOGISTIC_TAUS, "train_loss", scale
        ),
        _convergence_panels(_LOGISTIC_STDS, "train_loss", "training loss", False),
        findings=convergence_findings,
        full_minutes=12,
    ),
    _page(
        "hu-figure-4",
        "figure 4: convergence of the network",
        lambda scale: convergence_cases(
            "network", _NETWORK_STDS, _NETWORK_TAUS, "gradient_norm", scale
        ),
        _convergence_panels(_NETWORK_STDS, "gradient_norm", "norm of the gradient", True),
        findings=convergence_findings,
        full_minutes=25,
    ),
    _page(
        "hu-figure-5",
        "figure 5: logistic regression against DP-SGD, tau = 10, T = 20, epsilon 10",
        lambda scale: budget_cases("logistic", 10, 20, (10.0,), every=1, measures=("train_loss",)),
        _curve_panels("train_loss", "training loss"),
        full_minutes=2,
    ),
    _page(
        "hu-figure-6",
        "figure 6: the network against DP-SGD, tau = 5, T = 50, epsilon 10",
        lambda scale: budget_cases("network", 5, 50, (10.0,), every=2, measures=("gradient_norm",)),
        _curve_panels("gradient_norm", "norm of the gradient"),
        full_minutes=5,
    ),
    _page(
        "hu-figure-7",
        "figure 7: privacy against accuracy, logistic regression, tau = 2, T = 20",
        lambda scale: budget_cases("logistic", 2, 20, _some(scale)),
        _TRADE_OFF,
        full_minutes=4,
    ),
    _page(
        "hu-figure-8",
        "figure 8: privacy against accuracy, network, tau = 5, T = 50",
        lambda scale: budget_cases("network", 5, 50, _some(scale)),
        _TRADE_OFF,
        full_minutes=12,
    ),
)
