"""Cheng et al., BLUR and LUS, with their baselines: claimed noise, and the penalty's true effect.

Unit CLIENT. Paper symbols: N clients, P cohort, T rounds, S clip_norm, sigma noise_multiplier,
lambda penalty, eta_l learning_rate, eta_g server_rate, Q local_steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedveil.core.arguments import not_negative, positive
from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims.claim import stated

_cheng = partial(stated, "Cheng et al.")


def blur_discounts(outside: Sequence[bool], learning_rate: float, penalty: float) -> list[float]:
    """Return the part of each step's gradient that is left in the upload.

    `outside[q]` says whether the iterate before step q was outside the ball; every such step
    shrinks all that was there before it, so gradient q is discounted by the LATER steps only.
    """
    shrunk = np.where(outside, 1 - penalty * learning_rate, 1.0)
    return [float(np.prod(shrunk[step + 1 :])) for step in range(len(outside))]


def blur_update(
    gradients: ArrayLike, *, learning_rate: float, penalty: float, clip_norm: float
) -> NDArray[np.float64]:
    """Local update of BLUR [dimension] for given gradients [steps, dimension], step by step."""
    return _trajectory(gradients, learning_rate, penalty, clip_norm)[1]


def smallest_c2(*, noise_multiplier: float, **run: Any) -> float:
    """The constant c2 at which Theorem 1 asks for exactly this noise multiplier.

    With the smallest noise multiplier an accountant proves, this is the smallest valid c2.
    """
    return noise_multiplier / paper_cheng_noise_multiplier(**run, c2=1.0).value


def _multiplier(
    epsilon: float, delta: float, clients: int, cohort: float, rounds: int, c2: float
) -> float:
    return c2 * cohort * math.sqrt(rounds * math.log(1 / delta)) / (clients * epsilon)


paper_cheng_noise_multiplier = _cheng(
    "Theorem 1",
    "noise_multiplier",
    "unproved: c1 and c2 are never given, and the range epsilon < c1*q^2*T need not contain "
    "the epsilons used; with c2 = 1 the true epsilon can be several times larger",
    _multiplier,
)
paper_cheng_epsilon = _cheng(
    "Theorem 1",
    "epsilon",
    "unproved, and amplified towards a server that picks the cohort and sees its size",
    lambda noise_multiplier, **run: _multiplier(1.0, **run) / noise_multiplier,
)
paper_cheng_gaussian_std = _cheng(
    "Lemma 1",
    "gaussian_std",
    "",
    lambda epsilon, delta, sensitivity: (
        math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon,
        "valid, more noise than is needed"
        if epsilon <= 1
        else "proved for epsilon <= 1 only; false for large epsilon",
    ),
)
# Squared error of a clipped, noisy upload, for each of its d coordinates.
paper_cheng_upload_error = _cheng(
    "equation 2",
    "upload_error",
    "right for one upload, with = for <=; but the server uses the mean of |P_t| uploads, whose "
    "noise is |P_t| times smaller while the clipped lengths stay",
    lambda update_norm, clip_norm, noise_multiplier, realised_cohort, dimension: (
        max(0.0, update_norm - clip_norm) ** 2 / dimension
        + (noise_multiplier * clip_norm) ** 2 / realised_cohort
    ),
    or_zero=("noise_multiplier",),
)


def _gradient_norm(
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
    noise = server_rate * (noise_multiplier * clip_norm / cohort) ** 2 * dimension
    terms = (
        1 / (server_rate * learning_rate * local_steps * rounds),
        (learning_rate * local_steps) ** 2,
        server_rate * learning_rate / cohort,
        noise / (learning_rate * local_steps),
    )
    return math.fsum(c * term for c, term in zip(constants, terms, strict=True))


paper_cheng_gradient_norm = _cheng(
    "Theorem 2",
    "weighted_gradient_norm",
    "no constants are given (here 1 each), and gradients are weighed by alpha, the share of an "
    "update that the clip leaves, which a small clip makes as small as one likes",
    _gradient_norm,
    or_zero=("noise_multiplier",),
)


def paper_cheng_blur_discounts(
    outside: Sequence[bool], learning_rate: float, penalty: float
) -> list[float]:
    """Lemma 2: gradient q is discounted by (1-lambda*eta)^q if the iterate before it is outside."""
    shrink = 1 - penalty * learning_rate
    return [shrink**step if out else 1.0 for step, out in enumerate(outside)]


def _update_norm(
    gradients: ArrayLike, learning_rate: float, penalty: float, clip_norm: float
) -> float:
    outside, _ = _trajectory(gradients, learning_rate, penalty, clip_norm)
    discounts = np.array(paper_cheng_blur_discounts(outside, learning_rate, penalty))
    return float(np.linalg.norm(learning_rate * discounts @ np.asarray(gradients, np.float64)))


paper_cheng_blur_update = _cheng(
    "Lemma 2",
    "update_norm",  # its cases decided along the true trajectory
    "wrong: a gradient is discounted by the later steps outside the ball, not by its own",
    _update_norm,
    or_zero=("penalty",),
)


def _trajectory(
    gradients: ArrayLike, learning_rate: float, penalty: float, clip_norm: float
) -> tuple[list[bool], NDArray[np.float64]]:
    """Whether the iterate before each step was outside the ball, and the final update."""
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[0] == 0 or not np.isfinite(rows).all():
        raise ConfigError(f"gradients: need finite [steps, dimension], got shape {rows.shape}")
    positive("learning_rate", learning_rate)
    positive("clip_norm", clip_norm)
    not_negative("penalty", penalty)
    outside: list[bool] = []
    moved = np.zeros(rows.shape[1])
    for gradient in rows:
        outside.append(bool(np.linalg.norm(moved) > clip_norm))
        pull = penalty * moved if outside[-1] else 0.0
        moved = moved - learning_rate * (gradient + pull)
    return outside, moved
