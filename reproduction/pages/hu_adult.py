"""Hu et al. on Adult: what runs for figures 3 to 8, and the noise of each method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from reproduction.case import Case, Certified, Claimed, Data, Label, Noise
from reproduction.claims.hu import (
    paper_hu_epsilon,
    paper_hu_noise_std,
    zcdp_rho,
)
from reproduction.experiment import Difference, Scale

CLIENTS, COHORT, RECORDS, BATCH = 16, 10, 2442, 32
DELTA = 1e-4
ADULT = Data("adult")
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
    data: Data = ADULT,
    changes: Mapping[str, Any] | None = None,
) -> Case:
    """One run; `changes` are recipe keys that differ from the model's own, None for left out."""
    values: dict[str, Any] = {
        **MODELS[model],
        "training.method": "dp-sgd" if method == "DP-SGD" else "gradient-noise",
        "training.rounds": rounds,
        "training.sampling": "balanced",
        "training.cohort": COHORT,
        "training.local_steps": 1 if method == "DP-SGD" else steps,
        "training.batch_size": BATCH,
        "privacy.trust": "local" if method == "no secure sum" else "distributed",
        **(changes or {}),
    }
    return Case(
        labels=labels,
        data=data,
        values=tuple((name, value) for name, value in values.items() if value is not None),
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
