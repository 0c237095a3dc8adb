"""Hu et al., figures 3 to 8: noisy gradients on Adult, secure sum or not, against DP-SGD."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.experiment import Panel, Scale, pages_of
from reproduction.pages.hu_adult import (
    DIFFERENCES,
    METHODS,
    SETTING,
    budget_cases,
    convergence_cases,
)
from reproduction.summary import Row


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


_page = pages_of(
    paper="Hu et al.",
    setting=SETTING,
    differences=DIFFERENCES,
    metric="accuracy",
    unit="% of the test records",
    full_seeds=5,
    findings=gap_findings,
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
