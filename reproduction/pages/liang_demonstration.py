"""Liang et al., figure 1: noisy gradient descent in two dimensions, with and without smoothing."""

from __future__ import annotations

import numpy as np
import torch

from fedveil.models.flat import Layout, Slot
from fedveil.report.store import Outcome
from fedveil.server.smoothing import Smoothing
from reproduction.case import Case, Data
from reproduction.experiment import Difference, Experiment, Panel, Scale

STEPS, RATE, STD = 100, 0.1, 0.3
POINTS = 100  # of each class


def run_demonstration(case: Case, seed: int, tick: object = None) -> Outcome:
    """The path of W from (0, 0): along the diagonal lies the solution, across it only noise."""
    draw = np.random.default_rng(seed)
    labels = np.repeat([0.0, 1.0], POINTS)
    centres = np.where(labels[:, None] == 0, 1.0, -1.0)  # separated by any (c, c) with c < 0
    inputs = centres + 0.5 * draw.standard_normal((2 * POINTS, 2))
    smoothing = float(case["smoothing"])
    smooth = Smoothing(smoothing, True) if smoothing else None
    layout = Layout((Slot("weights", (2,), 0),))
    weights, path = np.zeros(2), [np.zeros(2)]
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-inputs @ weights)) - labels
        gradient = error @ inputs / len(inputs) + STD * draw.standard_normal(2)
        if smooth is not None:
            gradient = smooth(torch.tensor(gradient, dtype=torch.float32), layout).double().numpy()
        weights = weights - RATE * gradient
        path.append(weights)
    walked = np.stack(path)
    across = np.abs(walked[:, 0] - walked[:, 1]) / np.sqrt(2)
    along = -walked.sum(axis=1) / np.sqrt(2)
    turns = np.linalg.norm(np.diff(walked, 2, axis=0), axis=1)
    curve = [
        {"round": step, "across": float(across[step]), "along": float(along[step])}
        for step in range(0, STEPS + 1, 2)
    ]
    final = {**curve[-1], "roughness": float(turns.mean()), "mean_across": float(across.mean())}
    cost = {
        "claimed": None,
        "certified": None,
        "delta": None,
        "proof": "no privacy is claimed",
        "noise_multiplier": None,
    }
    return {"seed": seed, "final": final, "curve": curve, "cost": cost, "engine": "demonstration",
            "seconds": 0.0}  # fmt: skip


def cases(scale: Scale) -> tuple[Case, ...]:
    return tuple(
        Case(
            labels=(("smoothing", smoothing),),
            data=Data("demonstration"),
            values=(("training.rounds", STEPS), ("server.smoothing", smoothing)),
            every=2,
        )
        for smoothing in (0.0, 1.0)
    )


EXPERIMENTS = (
    Experiment(
        name="liang-figure-1",
        paper="Liang et al.",
        title="figure 1: the path of noisy gradient descent, with and without smoothing",
        setting=(
            "two classes of points in the plane, y = sigmoid(W x), W from (0, 0); any (c, c) with "
            "c < 0 is a perfect solution",
            "100 steps at rate 0.1, Gaussian noise of std 0.3 on the gradient; smoothing 0 and 1",
        ),
        differences=(
            Difference("points", "not said", "100 of each class around (1, 1) and (-1, -1), 0.5"),
            Difference("picture", "one path", "distance from the diagonal, 20 paths"),
        ),
        cases=cases,
        metric="roughness",
        unit="mean length of the second difference of the path",
        panels=tuple(
            Panel(title, "round", y, "smoothing", (), "update", label)
            for title, y, label in (
                ("across: noise only", "across", "distance of W from the diagonal"),
                ("along: what is learnt", "along", "way of W along the diagonal"),
            )
        ),
        quick_seeds=20,
        full_seeds=20,
        quick_minutes=0.1,
        full_minutes=0.1,
        run=run_demonstration,
    ),
)
