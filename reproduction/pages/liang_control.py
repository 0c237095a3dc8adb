"""Liang et al., table 1 again, and a CNN: is smoothing more than a shorter step of the server?

Smoothing shrinks the noise and, where neighbouring weights do not agree, the update too. A server
that multiplies the noisy average by a number below 1 does the same without looking at neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reproduction.case import Case, Data
from reproduction.experiment import Difference, Experiment, Panel, Scale
from reproduction.pages import liang_mnist
from reproduction.pages.liang_networks import case_of
from reproduction.pages.liang_tasks import SVHN_SETTING, Task, svhn
from reproduction.summary import Row

EPSILON = 6
# What smoothing of strength s leaves of independent noise, as a standard deviation.
LEFT = {s: ((1 + 2 * s) / (1 + 4 * s) ** 1.5) ** 0.5 for s in (1, 2, 3)}
NONE, SMOOTHED, SHORTER = "none", "smoothing", "shorter step"
TRANSPOSED = "smoothing, TensorFlow's order"


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


def _cnn() -> Task:
    """The quick CNN of SVHN on MNIST, where it has learnt all it can within 100 rounds."""
    return replace(
        svhn(Scale.QUICK),
        data=Data("mnist", (("clients", 2000), ("cap", 3)), "iid"),
        rounds=100,
    )


def network_cases(scale: Scale) -> tuple[Case, ...]:
    return tuple(
        _network_case(z, method)
        for z in (0.0, 1.0, 3.0)
        for method in (NONE, SMOOTHED, TRANSPOSED, SHORTER)
    )


def _network_case(z: float, method: str) -> Case:
    smoothing = 1.0 if method in (SMOOTHED, TRANSPOSED) else 0.0
    step = round(LEFT[1], 3) if method == SHORTER else 1.0
    case = case_of(_cnn(), "poisson", z, smoothing, "paper" if z else "none", step=step)
    values = case.values
    if method == TRANSPOSED:  # neighbours are weights of one place and other filters
        values = (*values, ("server.smoothing_order", "kernel-in-out"))
    return replace(case, labels=(("z", z), ("method", method)), values=values)


def network_findings(rows: Sequence[Row]) -> Sequence[str]:
    found = []
    for z in (0.0, 1.0, 3.0):
        chosen = [row for row in rows if row.matches(z=z)]
        listed = ", ".join(f"{row['method']} {row.spread('accuracy')}" for row in chosen)
        if chosen:
            found.append(f"z = {z:g}: {listed}")
    return found


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
    Experiment(
        name="liang-control-cnn",
        paper="Liang et al.",
        title="a CNN on MNIST with smoothing, with a shorter step, and with neither",
        setting=SVHN_SETTING,
        differences=(
            Difference(
                "data",
                "SVHN",
                "MNIST, 2,000 clients of 3 images: a small CNN learns it within 100 rounds",
            ),
            Difference(
                "network and local training",
                "3.4 M weights, E = 10 epochs, learning rate 0.1",
                "7x7x16 with stride 4, 3x3x32 with stride 2, then the classes, 10,570 weights; one "
                "step, learning rate 0.5",
            ),
            Difference(
                "order of the weights", "not said", "as torch stores them, and as TensorFlow does"
            ),
            Difference(
                "shorter step", "not tried", "the noisy average times 0.518, what smoothing leaves"
            ),
        ),
        cases=network_cases,
        metric="accuracy",
        unit="% of the test images",
        panels=tuple(
            Panel(
                title="no noise" if z == 0 else f"z = {z:g}",
                x="round",
                y="accuracy",
                by="method",
                where=(("z", z),),
                x_label="round",
                y_label="test accuracy (%)",
            )
            for z in (0.0, 1.0, 3.0)
        ),
        findings=network_findings,
        quick_seeds=2,
        full_seeds=2,
        quick_minutes=6,
        full_minutes=6,
    ),
)
