"""Liang et al.: Laplacian smoothing of the noisy sum, and whether it is more than a shorter step.

`liang.toml` has the pages; the functions `mnist`, `network` and `demonstration` make one case of
their grids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

import numpy as np
import torch

from fedveil.report.store import Outcome
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.server.smoothing import AUTO, Smoothing
from fedveil_lab.reproduction.case import (
    Case,
    Certified,
    Claimed,
    Data,
    Label,
    Noise,
    Without,
    labelled,
)
from fedveil_lab.reproduction.claims.liang import paper_liang_epsilon, paper_liang_nu_real
from fedveil_lab.reproduction.experiment import Scale, table_of

TABLE = table_of("liang")
PUBLISHED, TASKS = TABLE["published"], TABLE["tasks"]
Sampling = Literal["fixed", "poisson"]
CLIENTS, EPSILONS = 1000, (6, 7, 8, 9)
# The share of independent noise, as a standard deviation, that smoothing of a strength leaves.
LEFT = {s: round(((1 + 2 * s) / (1 + 4 * s) ** 1.5) ** 0.5, 3) for s in (0, 1, 2, 3)}
STEPS, RATE, STD, POINTS = 100, 0.1, 0.3, 100  # of the demonstration; points of each class


@cache
def mnist_noise(
    noise: str,
    sampling: str,
    epsilon: float,
    rate: float = TABLE["mnist"]["recipe"]["training.rate"],
    rounds: int = TABLE["mnist"]["recipe"]["training.rounds"],
) -> Noise:
    """Return the paper's noise on MNIST, or the least that is proved, at the same budget."""
    delta = CLIENTS**-1.1
    if noise == "certified":
        return Certified(epsilon, delta)
    claim = paper_liang_nu_real(
        epsilon=epsilon,
        delta=delta,
        rate=rate,
        rounds=rounds,
        sampling=sampling,
        sensitivity=2.0,  # in units of the clip
    )
    return Claimed(epsilon, delta, claim.value)


def mnist(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    labels: Sequence[str],
    sampling: Sampling,
    epsilon: int,
    noise: Literal["paper", "certified"],
    smoothing: int = 0,
    pixels: Literal["unit", "standard"] = "unit",
    method: Literal["", "none", "smoothing", "shorter step"] = "",
    strength: int = 0,
    every: int | None = None,
) -> Case:
    """Return one run of logistic regression; a control's `strength` is of smoothing or a step."""
    smoothing = strength if method == "smoothing" else smoothing
    values = {**recipe, "training.sampling": sampling, **_smoothed(float(smoothing))}
    if method == "shorter step":
        values["server.learning_rate"] = LEFT[strength]
    known: dict[str, Label] = {"pixels": pixels, "sampling": sampling, "noise": noise}
    known |= {"epsilon": epsilon, "smoothing": smoothing, "method": method, "strength": strength}
    known["noise left"] = LEFT[strength]
    row = PUBLISHED["mnist"].get(f"{sampling} {smoothing}") if not method else None
    return Case(
        labels=labelled(labels, known),
        data=Data("mnist", (("pixels", pixels),)),
        values=tuple(values.items()),
        noise=mnist_noise(
            noise, sampling, epsilon, values["training.rate"], values["training.rounds"]
        ),
        published=row[EPSILONS.index(epsilon)] if row and noise == "paper" else None,
        every=every,
    )


def network(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    labels: Sequence[str],
    task: Literal["svhn", "cnn", "shakespeare"],
    sampling: Sampling,
    z: float,
    noise: Literal["paper", "certified", "none"] = "paper",
    smoothing: float | str = 0.0,
    step: float = 1.0,
    method: str = "",
    every: int | None = None,
    published: Sequence[float] = (),
    seeds: int | None = None,
) -> Case:
    """Return one run of a network. A server `step` below 1 shrinks noise as smoothing does."""
    own = TASKS[task].get(str(scale), TASKS[task]["quick"])
    values = {**own["recipe"], **recipe, "training.sampling": sampling, **_smoothed(smoothing)}
    if step != 1:
        values["server.learning_rate"] = step
    known: dict[str, Label] = {"sampling": sampling, "noise": noise, "z": z, "method": method}
    known["smoothing"] = smoothing if step == 1 else f"none, step {step:g}"
    known["learning rate"] = values["training.learning_rate"]
    row = PUBLISHED.get(task, {}).get(f"{sampling} {smoothing}")
    data = own["data"]
    return Case(
        labels=labelled(labels, known),
        data=Data(data["source"], tuple(data.get("settings", {}).items()), data.get("partition")),
        values=tuple(values.items()),
        noise=network_noise(
            task, scale, sampling, z, noise, values["training.rate"], values["training.rounds"]
        ),
        published=row[-1 - published.index(z)] if row and published and noise == "paper" else None,
        every=own.get("every", every),
        seeds=seeds,
    )


@cache
def network_noise(
    task: str,
    scale: Scale,
    sampling: str,
    z: float,
    noise: str,
    rate: float | None = None,
    rounds: int | None = None,
) -> Noise:
    """Return noise in proportion to the cohort, with the epsilon that the paper prints for it.

    Where it prints none, the epsilon is what its accountant would have printed. Rate and rounds are
    the task's unless given.
    """
    if noise == "none":
        return Without()
    own = TASKS[task].get(str(scale), TASKS[task]["quick"])
    clients, rounds = own["clients"], rounds or own["recipe"]["training.rounds"]
    cohort = round((rate or own["recipe"]["training.rate"]) * clients)
    delta = clients**-1.1
    multiplier = z * cohort / own["paper_cohort"]
    epsilon = PUBLISHED["epsilon"].get(f"{task} {sampling}", {}).get(str(z))
    if epsilon is None or (cohort, rounds) != (own["paper_cohort"], own["paper_rounds"]):
        epsilon = paper_liang_epsilon(
            noise_multiplier=multiplier,
            clients=clients,
            cohort=cohort,
            rounds=rounds,
            delta=delta,
            sampling=sampling,
        ).value
    return (
        Certified(epsilon, delta) if noise == "certified" else Claimed(epsilon, delta, multiplier)
    )


def _smoothed(smoothing: float | str) -> dict[str, Any]:
    if not smoothing:
        return {"training.method": "dp-fed"}
    return {"training.method": "laplacian-smoothing", "server.smoothing": smoothing}


def automatic(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    noise: Literal["paper", "certified"],
    epsilon: float,
    method: str,
    labels: Sequence[str] = (),
) -> Case:
    """Return one run of logistic regression whose smoothing or step follows the releases."""
    values = {**recipe, "training.sampling": "poisson", **_smoothed(RULES[method])}
    return Case(
        labels=(("noise", noise), ("epsilon", epsilon), ("method", method)),
        data=Data("mnist", (("pixels", "unit"),)),
        values=tuple(values.items()),
        noise=mnist_noise(
            noise, "poisson", epsilon, values["training.rate"], values["training.rounds"]
        ),
    )


# Methods of the page that compares automatic smoothing with fixed strengths; 0 is DP-Fed.
RULES: dict[str, float | str] = {
    "none": 0.0, "smoothing 1": 1.0, "smoothing 2": 2.0, "smoothing 3": 3.0, "automatic": AUTO,
}  # fmt: skip


def demonstration(scale: Scale, recipe: Mapping[str, Any], *, smoothing: float) -> Case:
    """Return one path of noisy gradient descent in two dimensions."""
    values = (("training.rounds", STEPS), ("server.smoothing", smoothing))
    return Case((("smoothing", smoothing),), Data("demonstration"), values, every=2)


def run_demonstration(case: Case, seed: int, tick: object = None) -> Outcome:
    """Walk W from (0, 0): along the diagonal lies the solution, across it only noise."""
    draw = np.random.default_rng(seed)
    classes = np.repeat([0.0, 1.0], POINTS)
    centres = np.where(classes[:, None] == 0, 1.0, -1.0)  # separated by any (c, c) with c < 0
    inputs = centres + 0.5 * draw.standard_normal((2 * POINTS, 2))
    smoothing = float(case["smoothing"])
    smooth = Smoothing(smoothing, True) if smoothing else None
    layout = Layout((Slot("weights", (2,), 0),))
    weights, path = np.zeros(2), [np.zeros(2)]
    for _ in range(STEPS):
        error = 1 / (1 + np.exp(-inputs @ weights)) - classes
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
    cost = dict.fromkeys(("claimed", "certified", "delta", "noise_multiplier"))
    return {"seed": seed, "final": final, "curve": curve, "cost": cost}
