"""Hu et al.: noisy gradients on Adult, secure sum or not, against DP-SGD.

`hu.toml` has the pages; the function `adult` makes one case of their grids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedveil_lab.reproduction.case import Case, Certified, Claimed, Data, Noise, labelled
from fedveil_lab.reproduction.claims.hu import paper_hu_epsilon, paper_hu_noise_std, zcdp_rho
from fedveil_lab.reproduction.experiment import Scale, table_of

MODELS = table_of("hu")["models"]
CLIENTS, COHORT, RECORDS, BATCH, DELTA = 16, 10, 2442, 32, 1e-4


def adult(
    scale: Scale,
    recipe: Mapping[str, Any],
    *,
    labels: Sequence[str],
    model: Literal["logistic", "network", "raw"],
    tau: int,
    rounds: int,
    method: Literal["secure sum", "no secure sum", "DP-SGD"] = "secure sum",
    noise: Literal["paper", "certified"] = "paper",
    epsilon: float | None = None,
    sigma: float = 0.0,
    place: Literal["gradient", "model"] = "gradient",
    every: int | None = None,
    measures: Sequence[Any] = (),
) -> Case:
    """Return one run: its epsilon is given, or else the std `sigma` of noise on a mean gradient.

    Args:
        scale: Not used: the grids of both scales have the same settings.
        recipe: Recipe keys; they come before the model's own.
        labels: The names under which the case is shown.
        model: One of `MODELS`.
        tau: Local steps.
        rounds: T.
        method: Noisy steps with or without a secure sum, or one step of all.
        noise: `paper` or `certified`, for a given epsilon.
        epsilon: The budget; without one, `sigma` is.
        sigma: The noise's standard deviation.
        place: `gradient`, or `model` for a std that is meant after the learning rate.
        every: Rounds between two evaluations.
        measures: What an evaluation measures beside the metrics.
    """
    values = {
        **MODELS[model],
        "training.method": "dp-sgd" if method == "DP-SGD" else "gradient-noise",
        "training.rounds": rounds,
        "training.local_steps": 1 if method == "DP-SGD" else tau,
        "privacy.trust": "local" if method == "no secure sum" else "distributed",
        **recipe,
    }
    clip, rate = values["privacy.clip_norm"], values["training.learning_rate"]
    rounds = values["training.rounds"]
    tau = tau if method == "DP-SGD" else values["training.local_steps"]
    known = {"tau": tau, "sigma": sigma, "method": method, "noise": noise, "epsilon": epsilon}
    known |= {"G": clip, "learning rate": rate}
    added: Noise
    if epsilon is None:
        std = sigma if place == "gradient" else sigma / rate
        added = Claimed(claimed_epsilon(std, clip, tau, rounds), DELTA, std * BATCH / clip)
        known["noise"] = f"{sigma:g} on the {place}"
    elif noise == "certified":
        added = Certified(epsilon, DELTA)
    else:
        added = Claimed(epsilon, DELTA, claimed_multiplier(method, epsilon, tau, rounds))
    return Case(
        labels=labelled(labels, known),
        data=Data("adult", (("numbers", "raw"),) if model == "raw" else ()),
        values=tuple(values.items()),
        noise=added,
        every=every,
        measures=tuple(measures),
    )


def participations(rounds: int) -> float:
    """Return C, the mean number of rounds in which a device takes part."""
    return rounds * COHORT / CLIENTS


def claimed_multiplier(method: str, epsilon: float, tau: int, rounds: int) -> float:
    """Return the noise on a mean gradient over G / gamma, as the paper computes it."""
    if method == "DP-SGD":  # divided by all n
        return math.sqrt(2 * participations(rounds) / (CLIENTS * zcdp_rho(epsilon, DELTA)))
    claim = paper_hu_noise_std(
        epsilon=epsilon,
        delta=DELTA,
        participations=participations(rounds),
        local_steps=tau,
        gradient_bound=1.0,
        cohort=COHORT if method == "secure sum" else 1,
        records=RECORDS,
        batch_size=BATCH,
    )
    return claim.value * BATCH


def claimed_epsilon(std: float, clip: float, tau: int, rounds: int) -> float:
    """Return the epsilon of Theorem 1 for noise of this standard deviation."""
    return paper_hu_epsilon(
        delta=DELTA,
        participations=participations(rounds),
        local_steps=tau,
        gradient_bound=clip,
        cohort=COHORT,
        records=RECORDS,
        batch_size=BATCH,
        noise_std=std,
    ).value
