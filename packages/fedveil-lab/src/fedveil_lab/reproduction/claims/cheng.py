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
    counts,
    not_negative,
    positive,
    stated,
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


def _multiplier(
    epsilon: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> float:
    return c2 * cohort * math.sqrt(rounds * math.log(1 / delta)) / (clients * epsilon)


@stated(
    PAPER,
    "Theorem 1",
    "noise_multiplier",
    "unproved: c1 and c2 are never given, and the range epsilon < c1*q^2*T need not contain "
    "the epsilons used; with c2 = 1 the true epsilon can be several times larger",
)
def paper_cheng_noise_multiplier(
    *, epsilon: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> float:
    """Theorem 1: sigma = c2*P*sqrt(T*ln(1/delta))/(N*epsilon)."""
    return _multiplier(epsilon, delta, clients, cohort, rounds, c2)


@stated(
    PAPER,
    "Theorem 1",
    "epsilon",
    "unproved, and amplified towards a server that picks the cohort and sees its size",
)
def paper_cheng_epsilon(
    *, noise_multiplier: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> float:
    """Theorem 1 read backwards: the epsilon it claims for a noise multiplier."""
    return _multiplier(1.0, delta, clients, cohort, rounds, c2) / noise_multiplier


@stated(PAPER, "Lemma 1", "gaussian_std")
def paper_cheng_gaussian_std(
    *, epsilon: float, delta: float, sensitivity: float
) -> tuple[float, str]:
    """Lemma 1, the classical Gaussian mechanism: std = sqrt(2*ln(1.25/delta))*S/epsilon."""
    verdict = (
        "valid, more noise than is needed"
        if epsilon <= 1
        else "proved for epsilon <= 1 only; false for large epsilon"
    )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon, verdict


@stated(
    PAPER,
    "Algorithm 1",
    "share_std",
    "adds up to sigma only if every share is honest and arrives; a scale that follows the "
    "realised cohort exposes its size, which voids Poisson amplification",
)
def paper_cheng_share_std(
    *, noise_multiplier: float, clip_norm: float, realised_cohort: int
) -> float:
    """Algorithm 1: every sampled client adds noise of std S*sigma/sqrt(|P_t|)."""
    return clip_norm * noise_multiplier / math.sqrt(realised_cohort)


@stated(
    PAPER,
    "equation 2",
    "upload_error",
    "right for one upload, with = for <=; but the server uses the mean of |P_t| uploads, whose "
    "noise is |P_t| times smaller while the clipped lengths stay",
    or_zero=("noise_multiplier",),
)
def paper_cheng_upload_error(
    *,
    update_norm: float,
    clip_norm: float,
    noise_multiplier: float,
    realised_cohort: int,
    dimension: int,
) -> float:
    """Equation 2: squared error of a clipped, noisy upload, for each of its d coordinates."""
    lost = max(0.0, update_norm - clip_norm) ** 2 / dimension
    return lost + (noise_multiplier * clip_norm) ** 2 / realised_cohort


@stated(
    PAPER,
    "Theorem 2",
    "weighted_gradient_norm",
    "no constants are given (here 1 each), and gradients are weighed by alpha, the share of an "
    "update that the clip leaves, which a small clip makes as small as one likes",
    or_zero=("noise_multiplier",),
)
def paper_cheng_gradient_norm(
    *,
    server_rate: float,
    learning_rate: float,
    local_steps: int,
    rounds: int,
    cohort: float,
    noise_multiplier: float,
    clip_norm: float,
    dimension: int,
    constants: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
) -> float:
    """Theorem 2: three terms of FedAvg and one of the noise, each times its unnamed constant."""
    way = server_rate * learning_rate * local_steps
    noise = server_rate * (noise_multiplier * clip_norm / cohort) ** 2 * dimension
    terms = (
        1 / (way * rounds),
        (learning_rate * local_steps) ** 2,
        server_rate * learning_rate / cohort,
        noise / (learning_rate * local_steps),
    )
    return math.fsum(c * term for c, term in zip(constants, terms, strict=True))


_DISCOUNTS = "wrong: a gradient is discounted by the later steps outside the ball, not by its own"


@stated(PAPER, "Lemma 2", "discount", _DISCOUNTS, or_zero=("penalty", "step"))
def _discount(*, step: float, outside: bool, learning_rate: float, penalty: float) -> float:
    return (1 - penalty * learning_rate) ** step if outside else 1.0


def paper_cheng_blur_discounts(
    outside: Sequence[bool], learning_rate: float, penalty: float
) -> tuple[Claim, ...]:
    """Lemma 2: gradient q is discounted by (1-lambda*eta)^q if the iterate before it is outside."""
    return tuple(
        _discount(step=step, outside=out, learning_rate=learning_rate, penalty=penalty)
        for step, out in enumerate(outside)
    )


@stated(PAPER, "Lemma 2", "update_norm", _DISCOUNTS, or_zero=("penalty",))
def paper_cheng_blur_update(
    gradients: Sequence[Sequence[float]] | NDArray[np.float64],
    *,
    learning_rate: float,
    penalty: float,
    clip_norm: float,
) -> float:
    """Norm of Lemma 2's local update, its cases decided along the true trajectory."""
    outside, _ = _trajectory(gradients, learning_rate, penalty, clip_norm)
    discounts = [c.value for c in paper_cheng_blur_discounts(outside, learning_rate, penalty)]
    update = -learning_rate * np.array(discounts) @ np.asarray(gradients, dtype=np.float64)
    return float(np.linalg.norm(update))


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
