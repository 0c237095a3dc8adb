"""Hu et al., zCDP with secure aggregation: what the paper claims, and the attack that refutes it.

A device takes `local_steps` noisy steps on batches of `batch_size` of its `records` records; per
example gradients have norm at most `gradient_bound`; noise of std `noise_std` is added to every
mean gradient; the server sees the sum over a cohort. Unit RECORD, adjacency REPLACE. Paper symbols:
r cohort, n clients, C_i participations, tau local_steps, gamma batch_size, m records, G
gradient_bound, sigma noise_std.

Theorem 1 divides rho by the cohort. For one local step that is right; for more it is false:
`bit_attack_epsilon` is a lower bound on the true epsilon that does not fall with the cohort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims.claim import (
    counts,
    fractions,
    not_negative,
    positive,
    stated,
)

PAPER = "Hu et al."

# ---------------------------------------------------------------------------------- what holds


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Lemma 3: rho + 2*sqrt(rho*ln(1/delta)). A valid upper bound, and a loose one."""
    not_negative(rho=rho)
    fractions(delta=delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Lemma 3 backwards: the rho whose epsilon this is."""
    positive(epsilon=epsilon)
    fractions(delta=delta)
    log_delta = math.log(1 / delta)
    # The difference of roots, written so that a small epsilon does not cancel.
    return (epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta))) ** 2


def dp_sgd_rho(
    *,
    participations: int,
    gradient_bound: float,
    honest_shares: int,
    batch_size: int,
    noise_std: float,
) -> float:
    """zCDP of one noisy step per round under a secure sum of `honest_shares` noise shares."""
    counts(participations=participations, honest_shares=honest_shares, batch_size=batch_size)
    positive(gradient_bound=gradient_bound, noise_std=noise_std)
    return 2 * participations * (gradient_bound / (batch_size * noise_std)) ** 2 / honest_shares


def bit_probability(shift: float, *, shuffled: bool) -> float:
    """Probability that the attacked round reveals the target's bit.

    `shift` is a = 2*G/(batch_size*noise_std), one step's sensitivity over its noise. With two
    batches a round and losses -G|theta|, step 1 moves theta by half the shift, step 2 blows its
    sign up. If batches are shuffled the target stands in the first only half of the time.
    """
    positive(shift=shift)
    first = min(float(norm.cdf(shift / 2)), 1 - 2.0**-53)  # never certainty: a weaker attack
    return 0.5 + 0.5 * (first - 0.5) if shuffled else first


def bit_attack_epsilon(probability: float, rounds: int, delta: float) -> float:
    """Least epsilon compatible with `rounds` independent bits, each right with `probability`.

    Exact: the smallest epsilon at which the hockey-stick divergence between the binomials with
    success probabilities p and 1-p is delta. Whatever was claimed, the truth is not below this.
    """
    fractions(delta=delta)
    counts(rounds=rounds)
    if not 0.5 <= probability < 1:
        raise ConfigError(f"probability = {probability}: must lie in [0.5, 1)")
    hits = np.arange(rounds + 1)
    log_p = binom.logpmf(hits, rounds, probability)
    loss = (2 * hits - rounds) * (math.log(probability) - math.log1p(-probability))

    def divergence(epsilon: float) -> float:
        above = loss > epsilon
        gain = -np.expm1(epsilon - loss[above])  # 1 - e^epsilon Q/P
        return float(np.exp(log_p[above]) @ gain)

    if divergence(0.0) <= delta:
        return 0.0
    return float(brentq(lambda e: divergence(e) - delta, 0.0, float(loss[-1]), xtol=1e-12))


# ------------------------------------------------------------------------------ as the paper has it


class Training(TypedDict):
    """What Theorem 1 asks about a run beside its noise."""

    participations: float
    local_steps: int
    gradient_bound: float
    cohort: int
    records: int
    batch_size: int


def _rho_of_unit_noise(run: Training) -> float:
    """Return 2*C*tau*G^2/(r*m*gamma), which Theorem 1 divides by the noise's variance."""
    whole = run["cohort"] * run["records"] * run["batch_size"]
    return 2 * run["participations"] * run["local_steps"] * run["gradient_bound"] ** 2 / whole


@stated(PAPER, "Theorem 1", "rho")
def paper_hu_rho(*, noise_std: float, **run: Unpack[Training]) -> tuple[float, str]:
    """Theorem 1 before conversion: rho = 2*C*tau*G^2/(r*m*gamma*sigma^2)."""
    return _rho_of_unit_noise(run) / noise_std**2, _verdict(run["local_steps"])


@stated(PAPER, "Theorem 1", "epsilon")
def paper_hu_epsilon(
    *, delta: float, noise_std: float, **run: Unpack[Training]
) -> tuple[float, str]:
    """Theorem 1: epsilon after C_i rounds by Lemma 3, rho divided by the whole cohort."""
    rho = _rho_of_unit_noise(run) / noise_std**2
    return zcdp_epsilon(rho, delta), _verdict(run["local_steps"])


@stated(PAPER, "Theorem 1", "noise_std")
def paper_hu_noise_std(
    *, epsilon: float, delta: float, **run: Unpack[Training]
) -> tuple[float, str]:
    """Theorem 1 solved for sigma, as the paper's experiments do."""
    std = math.sqrt(_rho_of_unit_noise(run) / zcdp_rho(epsilon, delta))
    return std, _verdict(run["local_steps"])


@stated(PAPER, "Lemma 5", "upload_sensitivity")
def paper_hu_upload_sensitivity(
    *, learning_rate: float, local_steps: int, gradient_bound: float, batch_size: int
) -> tuple[float, str]:
    """Lemma 5: the uploaded model changes by at most 2*eta*tau*G/gamma."""
    verdict = (
        "correct for one step"
        if local_steps == 1
        else "false: both runs are evaluated at the same iterates; once they differ, every later "
        "step may add 2*eta*G, not 2*eta*G/batch_size"
    )
    return 2 * learning_rate * local_steps * gradient_bound / batch_size, verdict


@stated(
    PAPER,
    "section VII-C",
    "epsilon",
    "false: only the cohort adds noise, so rho is divided by the honest shares among it, "
    "not by all clients",
)
def paper_hu_dp_sgd_epsilon(
    *,
    delta: float,
    participations: float,
    gradient_bound: float,
    clients: int,
    batch_size: int,
    noise_std: float,
) -> float:
    """The DP-SGD baseline, its square root read as Lemma 3 has it: rho divided by all n clients."""
    rho = 2 * participations * (gradient_bound / (batch_size * noise_std)) ** 2 / clients
    return zcdp_epsilon(rho, delta)


_CONVERGES = (
    "false where clients differ: the negative term is the norm of the mean gradient, not the mean "
    "of the norms. Halves of two terms were lost, and a factor 4 of Lemma 8 in the condition, "
    "which should be 5*eta*L + 6*(tau*eta*L)^2 <= 1"
)
_ZERO = ("noise_std", "gradient_variance")


class Steps(TypedDict):
    """What Theorem 2 and Lemma 6 ask about the steps of a run."""

    learning_rate: float
    smoothness: float
    gradient_variance: float
    batch_size: int
    dimension: int
    noise_std: float
    cohort: int
    local_steps: int


def convergence_terms(**run: Unpack[Steps]) -> tuple[float, float]:
    """Return the two terms of Theorem 2 that do not fall with the number of steps.

    The first is eta*L*(beta^2/gamma + d*sigma^2/r), with the factor that the paper halves; the
    second comes from the drift of local models and vanishes at one local step.
    """
    condition = run["learning_rate"] * run["smoothness"]
    sampled, cohort = run["gradient_variance"] / run["batch_size"], run["cohort"]
    noisy = run["dimension"] * run["noise_std"] ** 2
    drift = (run["local_steps"] - 1) * (2 * run["local_steps"] - 1) * condition**2 / 3
    return (
        condition * (sampled + noisy / cohort),
        drift * (2 * sampled + noisy * (cohort + 1) / cohort),
    )


@stated(PAPER, "Theorem 2", "squared_gradient_norm", _CONVERGES, or_zero=_ZERO)
def paper_hu_gradient_norm(*, initial_gap: float, steps: int, **run: Unpack[Steps]) -> float:
    """Theorem 2 as printed (eq. 14): bound on the mean of ||grad f||^2 over K = `steps` steps."""
    noise, drift = convergence_terms(**run)
    return 2 * initial_gap / (run["learning_rate"] * steps) + noise / 2 + drift


@stated(PAPER, "Lemma 6", "optimality_gap", _CONVERGES, or_zero=_ZERO)
def paper_hu_optimality_gap(
    *, initial_gap: float, steps: int, strong_convexity: float, **run: Unpack[Steps]
) -> float:
    """Lemma 6 as printed (eq. 15): bound on the mean of f - f* over K = `steps` steps."""
    noise, drift = convergence_terms(**run)
    rate = run["learning_rate"] * strong_convexity
    return (1 - rate) / (steps * rate) * initial_gap + (noise / 4 + drift / 2) / strong_convexity


@stated(
    PAPER,
    "Lemma 7",
    "gradient_variance",
    "true, and loose: drawing r of n without replacement leaves (n-r)/(r*(n-1)) of the clients' "
    "variance, and beta^2/gamma may be divided by r",
    or_zero=_ZERO,
)
def paper_hu_cohort_variance(
    *,
    gradient_norms: Sequence[float],
    cohort: int,
    gradient_variance: float,
    batch_size: int,
    dimension: int,
    noise_std: float,
) -> float:
    """Lemma 7 (eq. 18): variance of a cohort's mean noisy gradient, of clients' gradient norms."""
    clients = len(gradient_norms)
    drawn = 4 * (clients - cohort) ** 2 / clients**3 * math.fsum(g * g for g in gradient_norms)
    return dimension * noise_std**2 / cohort + gradient_variance / batch_size + drawn


@stated(
    PAPER,
    "Lemma 8",
    "network_error",
    "its factor 4 on the gradients is lost where Theorem 2 uses it",
    or_zero=(*_ZERO, "squared_gradients"),
)
def paper_hu_network_error(
    *,
    step: int,
    learning_rate: float,
    clients: int,
    cohort: int,
    squared_gradients: float,
    gradient_variance: float,
    batch_size: int,
    dimension: int,
    noise_std: float,
) -> float:
    """Lemma 8 (eq. 19): distance of local models from their mean after `step` local steps.

    `squared_gradients` is the sum of ||grad f_i||^2 over all clients and the steps before.
    """
    noisy = dimension * noise_std**2 * (cohort + 1) / cohort + 2 * gradient_variance / batch_size
    shares = (2 * (clients - cohort) ** 2 + clients**2) / clients**3
    drift = 4 * step * shares * squared_gradients
    return learning_rate**2 * (2 * step**2 * noisy + drift)


def _verdict(local_steps: int) -> str:
    if local_steps == 1:
        return (
            "right in form for one step, if every share is honest and arrives; the threat model "
            "allows colluding devices, whose shares must be taken off the cohort"
        )
    return (
        "false for more than one local step: dividing by the cohort rests on Lemma 5, and one bit "
        "leaks whatever the cohort; proved without the division, or with it for convex models only"
    )
