"""Fu et al., tables II and III, figures 1, 3, 5 and 7: linear regression on Lending Club."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.case import Label
from reproduction.experiment import Panel, pages_of
from reproduction.pages.fu_lending import (
    DIFFERENCES,
    EPSILONS,
    NO_NOISE,
    POPULATIONS,
    SETTING,
    TABLE_2,
    TABLE_3,
    curve_cases,
    local_cases,
    power_cases,
    reading_cases,
    steps_cases,
)
from reproduction.summary import Row


def best_findings(
    rows: Sequence[Row], name: str, table: dict[Label, tuple[int, float, float]]
) -> Sequence[str]:
    """The best T or E for each epsilon, its loss and the worst loss, beside the paper's."""
    found = []
    for clients in POPULATIONS:
        for kind in ("paper", "certified"):
            for epsilon in (*EPSILONS, NO_NOISE):
                chosen = [
                    row for row in rows if row.matches(clients=clients, noise=kind, epsilon=epsilon)
                ]
                if not chosen or (epsilon == NO_NOISE and kind == "certified"):
                    continue
                best = min(chosen, key=lambda row: row.mean("mse"))
                worst = max(row.mean("mse") for row in chosen)
                said = table[epsilon]
                shown = "no noise" if epsilon == NO_NOISE else f"epsilon {epsilon}, {kind} noise"
                found.append(
                    f"{clients} clients, {shown}: {name}* = {best[name]} with loss "
                    f"{best.mean('mse'):.2f}, worst {worst:.1f} (paper: {name}* = {said[0]}, "
                    f"{said[1]}, worst {said[2]})"
                )
    return found


def power_findings(rows: Sequence[Row]) -> Sequence[str]:
    found = []
    for kind in ("paper", "certified"):
        last = max((row["T"] for row in rows if row["noise"] == kind), default=None, key=float)
        chosen = [row for row in rows if row.matches(noise=kind, T=last or 0)]
        if chosen:
            order = sorted(chosen, key=lambda row: row.mean("mse"))
            listed = ", ".join(f"{row['E']} {row.mean('mse'):.2f}" for row in order)
            found.append(f"{kind} noise, T = {last}: {listed} (paper: T^2/3 lowest)")
    return found


def _panels(x: str, label: str) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title=f"{clients:,} clients, {kind} noise",
            x=x,
            y="mse",
            by="epsilon",
            where=(("clients", clients), ("noise", kind)),
            x_label=label,
            y_label="squared error on test loans",
            log_y=True,
        )
        for clients in POPULATIONS
        for kind in ("paper", "certified")
    )


_page = pages_of(
    paper="Fu et al.",
    setting=SETTING,
    differences=DIFFERENCES,
    metric="mse",
    unit="squared error, percent points squared",
    full_seeds=5,
    quick_minutes=1,
    full_minutes=15,
)


_STEPS, _LOCAL = "iterations T", "local iterations E, T = 120"
_BY_STEPS = {"findings": lambda rows: best_findings(rows, "T", TABLE_2)}
_BY_LOCAL = {"findings": lambda rows: best_findings(rows, "E", TABLE_3)}

EXPERIMENTS = (
    _page(
        "fu-table-2",
        "table II and figure 3: loss after T iterations",
        steps_cases,
        _panels("T", _STEPS),
        **_BY_STEPS,
    ),
    _page(
        "fu-table-3",
        "table III and figure 5: loss against local iterations",
        local_cases,
        _panels("E", _LOCAL),
        **_BY_LOCAL,
    ),
    _page(
        "fu-figure-1",
        "figure 1: loss in each iteration, T = 100",
        curve_cases,
        _panels("round", "iteration k"),
        full_minutes=4,
    ),
    _page(
        "fu-figure-7",
        "figure 7: E as a power of T, epsilon 3, everybody in every round",
        power_cases,
        tuple(
            Panel(
                title=f"ε = 3, {kind} noise",
                x="T",
                y="mse",
                by="E",
                where=(("noise", kind),),
                x_label=_STEPS,
                y_label="squared error on test loans",
                log_y=True,
            )
            for kind in ("paper", "certified")
        ),
        findings=power_findings,
        full_seeds=3,
    ),
    _page(
        "fu-readings",
        "table II under other readings of what the paper leaves open",
        reading_cases,
        tuple(
            Panel(
                title=f"ε = {epsilon}, paper's noise",
                x="T",
                y="mse",
                by="reading",
                where=(("epsilon", epsilon),),
                x_label=_STEPS,
                y_label="squared error on test loans",
                log_y=True,
            )
            for epsilon in (1, 5, NO_NOISE)
        ),
        full_seeds=3,
        full_minutes=4,
    ),
)
