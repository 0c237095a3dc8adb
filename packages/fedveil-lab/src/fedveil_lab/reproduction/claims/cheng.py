"""Cheng et al., BLUR and LUS, with their baselines: claimed noise, and the penalty's true effect.

Unit CLIENT. Paper symbols: N clients, P cohort, T rounds, S clip_norm, sigma noise_multiplier,
lambda penalty, eta_l learning_rate, Q local_steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil_lab.reproduction.claims.claim import (
    Claim,
    claim,
    counts,
    fractions,
    not_negative,
    positive,
)

PAPER = "Cheng et al."

# ---------------------------------------------------------------------------------- what holds


def blur_discounts(outside: Sequence[bool], learning_rate: float, penalty: float) -> list[float]:
    """What is left in the upload of each step's gradient.

    `outside[q]` says whether the iterate before step q was outside the ball; every such step
    shrinks all that was there before it, so gradient q is discounted by the LATER steps only.
    """
    positive(learning_rate=learning_rate)
    not_negative(penalty=penalty)
    shrink = 1 - penalty * learning_rate
    left = [1.0] * len(outside)
    for step in range(len(outside) - 2, -1, -1):
        left[step] = left[step + 1] * (shrink if outside[step + 1] else 1.0)
    return left


def blur_update(
    gradients: Sequence[Sequence[float]] | NDArray[np.float64],
    *,
    learning_rate: float,
    penalty: float,
    clip_norm: float,
) -> NDArray[np.float64]:
    """Local update of BLUR [dimension] for given gradients [steps, dimension], step by step."""
    return _trajectory(gradients, learning_rate, penalty, clip_norm)[1]


def smallest_c2(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    clients: int,
    cohort: float,
    rounds: int,
) -> float:
    """The constant c2 at which Theorem 1 asks for exactly this noise multiplier.

    With the smallest noise multiplier an accountant proves, this is the smallest valid c2.
    """
    positive(noise_multiplier=noise_multiplier)
    unit = paper_cheng_noise_multiplier(
        epsilon=epsilon, delta=delta, clients=clients, cohort=cohort, rounds=rounds, c2=1.0
    )
    return noise_multiplier / unit.value


def vote_gdp(*, queries: int, noise_std: float, adjacency: Adjacency) -> float:
    """Gaussian-DP parameter mu of AE-DPFL: one-hot votes on `queries` points, noise on the sum.

    A replaced agent (or record) may move one vote to another class on every query: sqrt(2) each.
    """
    counts(queries=queries)
    positive(noise_std=noise_std)
    if adjacency is Adjacency.ADD_REMOVE:
        raise ConfigError("adjacency = add-remove: every agent votes; use replace or zero-out")
    changed = 2 if adjacency is Adjacency.REPLACE else 1
    return math.sqrt(changed * queries) / noise_std


# ------------------------------------------------------------------------------ as the paper has it


def paper_cheng_noise_multiplier(
    *, epsilon: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> Claim:
    """Theorem 1: sigma = c2*P*sqrt(T*ln(1/delta))/(N*epsilon)."""
    positive(epsilon=epsilon, cohort=cohort, c2=c2)
    fractions(delta=delta)
    counts(clients=clients, rounds=rounds)
    return claim(
        PAPER,
        "Theorem 1",
        "noise_multiplier",
        c2 * cohort * math.sqrt(rounds * math.log(1 / delta)) / (clients * epsilon),
        "unproved: c1 and c2 are never given, and the range epsilon < c1*q^2*T need not contain "
        "the epsilons used; with c2 = 1 the true epsilon can be several times larger",
        epsilon=epsilon,
        delta=delta,
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        c2=c2,
    )


def paper_cheng_epsilon(
    *, noise_multiplier: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> Claim:
    """Theorem 1 read backwards: the epsilon it claims for a noise multiplier."""
    unit = paper_cheng_noise_multiplier(
        epsilon=1.0, delta=delta, clients=clients, cohort=cohort, rounds=rounds, c2=c2
    )
    positive(noise_multiplier=noise_multiplier)
    return claim(
        PAPER,
        "Theorem 1",
        "epsilon",
        unit.value / noise_multiplier,
        "unproved, and amplified towards a server that picks the cohort and sees its size",
        noise_multiplier=noise_multiplier,
        delta=delta,
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        c2=c2,
    )


def paper_cheng_gaussian_std(*, epsilon: float, delta: float, sensitivity: float) -> Claim:
    """Lemma 1, the classical Gaussian mechanism: std = sqrt(2*ln(1.25/delta))*S/epsilon."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    fractions(delta=delta)
    return claim(
        PAPER,
        "Lemma 1",
        "gaussian_std",
        math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon,
        "valid, more noise than is needed"
        if epsilon <= 1
        else "proved for epsilon <= 1 only; false for large epsilon",
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity,
    )


def paper_cheng_share_std(
    *, noise_multiplier: float, clip_norm: float, realised_cohort: int
) -> Claim:
    """Algorithm 1: every sampled client adds noise of std S*sigma/sqrt(|P_t|)."""
    positive(noise_multiplier=noise_multiplier, clip_norm=clip_norm)
    counts(realised_cohort=realised_cohort)
    return claim(
        PAPER,
        "Algorithm 1",
        "share_std",
        clip_norm * noise_multiplier / math.sqrt(realised_cohort),
        "adds up to sigma only if every share is honest and arrives; a scale that follows the "
        "realised cohort exposes its size, which voids Poisson amplification",
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        realised_cohort=realised_cohort,
    )


def paper_cheng_blur_discounts(
    outside: Sequence[bool], learning_rate: float, penalty: float
) -> tuple[Claim, ...]:
    """Lemma 2: gradient q is discounted by (1-lambda*eta)^q if the iterate before it is outside."""
    positive(learning_rate=learning_rate)
    not_negative(penalty=penalty)
    shrink = 1 - penalty * learning_rate
    return tuple(
        claim(
            PAPER,
            "Lemma 2",
            "discount",
            shrink**step if out else 1.0,
            "wrong: a gradient is discounted by the later steps outside the ball, not by its own",
            step=step,
            outside=int(out),
            learning_rate=learning_rate,
            penalty=penalty,
        )
        for step, out in enumerate(outside)
    )


def paper_cheng_blur_update(
    gradients: Sequence[Sequence[float]] | NDArray[np.float64],
    *,
    learning_rate: float,
    penalty: float,
    clip_norm: float,
) -> Claim:
    """Norm of Lemma 2's local update, its cases decided along the true trajectory."""
    outside, _ = _trajectory(gradients, learning_rate, penalty, clip_norm)
    discounts = [c.value for c in paper_cheng_blur_discounts(outside, learning_rate, penalty)]
    update = -learning_rate * np.array(discounts) @ np.asarray(gradients, dtype=np.float64)
    return claim(
        PAPER,
        "Lemma 2",
        "update_norm",
        float(np.linalg.norm(update)),
        "wrong: a gradient is discounted by the later steps outside the ball, not by its own",
        learning_rate=learning_rate,
        penalty=penalty,
        clip_norm=clip_norm,
    )


def _trajectory(
    gradients: Sequence[Sequence[float]] | NDArray[np.float64],
    learning_rate: float,
    penalty: float,
    clip_norm: float,
) -> tuple[list[bool], NDArray[np.float64]]:
    """Whether the iterate before each step was outside the ball, and the final update."""
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[0] == 0:
        raise ConfigError(f"gradients: need [steps, dimension], not shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise ConfigError("gradients: not all finite")
    positive(learning_rate=learning_rate, clip_norm=clip_norm)
    not_negative(penalty=penalty)
    outside: list[bool] = []
    moved = np.zeros(rows.shape[1])
    for gradient in rows:
        outside.append(bool(np.linalg.norm(moved) > clip_norm))
        pull = penalty * moved if outside[-1] else 0.0
        moved = moved - learning_rate * (gradient + pull)
    return outside, moved
