"""Liang et al., table 1 again: is smoothing more than a shorter step of the server?

Smoothing shrinks the noise and, where neighbouring weights do not agree, the update too. A server
that multiplies the noisy average by a number below 1 does the same without looking at neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedveil.experiments.case import Case
from fedveil.experiments.experiment import Difference, Experiment, Panel, Scale
from fedveil.experiments.pages import liang_mnist
from fedveil.experiments.summary import Row

EPSILON = 6
# What smoothing of strength s leaves of independent noise, as a standard deviation.
LEFT = {s: ((1 + 2 * s) / (1 + 4 * s) ** 1.5) ** 0.5 for s in (1, 2, 3)}
NONE, SMOOTHED, SHORTER = "none", "smoothing", "shorter step"


def cases(scale: Scale) -> tuple[Case, ...]:
    strengths = (2,) if scale is Scale.QUICK else tuple(LEFT)
    return tuple(
        case
        for sampling in liang_mnist.SAMPLINGS
        for case in (
            _case(sampling, NONE, 0),
            *(_case(sampling, SMOOTHED, strength) for strength in strengths),
            *(_case(sampling, SHORTER, strength) for strength in strengths),
        )
    )


def _case(sampling: str, method: str, strength: int) -> Case:
    smoothing = strength if method == SMOOTHED else 0
    case = liang_mnist.case_of(sampling, EPSILON, smoothing, "paper")
    left = round(LEFT.get(strength, 1.0), 3)
    values = case.values
    if method == SHORTER:
        values = (*values, ("server.learning_rate", left))
    labels = (
        ("sampling", sampling),
        ("method", method),
        ("strength", strength),
        ("noise left", left),
    )
    return replace(case, labels=labels, values=values, published=None)


def compared(rows: Sequence[Row]) -> Sequence[str]:
    found = []
    for sampling in liang_mnist.SAMPLINGS:
        for row in rows:
            if row.matches(sampling=sampling) and row["method"] == SMOOTHED:
                same = {"sampling": sampling, "strength": row["strength"]}
                other = next((r for r in rows if r.matches(method=SHORTER, **same)), None)
                plain = next((r for r in rows if r.matches(method=NONE, sampling=sampling)), None)
                if other and plain:
                    found.append(
                        f"{sampling}, noise shrunk to {row['noise left']}: smoothing "
                        f"{row['strength']} {row.spread('accuracy')}, shorter step "
                        f"{other.spread('accuracy')}, neither {plain.spread('accuracy')}"
                    )
    return found


EXPERIMENTS = (
    Experiment(
        name="liang-control",
        paper="Liang et al.",
        title="table 1 at epsilon 6 with a shorter step in the place of smoothing",
        setting=liang_mnist.SETTING,
        differences=(
            Difference(
                "shorter step",
                "not tried",
                "the noisy average times the share of noise that smoothing would leave",
            ),
            *liang_mnist.DIFFERENCES,
        ),
        cases=cases,
        metric="accuracy",
        unit="% of the test images",
        panels=tuple(
            Panel(
                title=f"{'uniform' if sampling == 'fixed' else 'Poisson'}, paper's noise at ε = 6",
                x="noise left",
                y="accuracy",
                by="method",
                where=(("sampling", sampling),),
                x_label="noise that is left (share of its deviation)",
                y_label="test accuracy (%)",
            )
            for sampling in liang_mnist.SAMPLINGS
        ),
        findings=compared,
        full_seeds=3,
        quick_minutes=1,
        full_minutes=2,
    ),
)
