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
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, norm

from fedveil.core.arguments import interval
from fedveil_lab.reproduction.claims.claim import check, stated

_hu = partial(stated, "Hu et al.")


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Lemma 3: rho + 2*sqrt(rho*ln(1/delta)). A valid upper bound, and a loose one."""
    check("rho", rho, zero=True)
    check("delta", delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Lemma 3 backwards: the rho whose epsilon this is."""
    check("epsilon", epsilon)
    check("delta", delta)
    log_delta = math.log(1 / delta)
    # The difference of roots, written so that a small epsilon does not cancel.
    return (epsilon / (math.sqrt(log_delta + epsilon) + math.sqrt(log_delta))) ** 2


def bit_probability(shift: float, *, shuffled: bool) -> float:
    """Probability that the attacked round reveals the target's bit.

    `shift` is a = 2*G/(batch_size*noise_std), one step's sensitivity over its noise. With two
    batches a round and losses -G|theta|, step 1 moves theta by half the shift, step 2 blows its
    sign up. If batches are shuffled the target stands in the first only half of the time.
    """
    check("shift", shift)
    first = min(float(norm.cdf(shift / 2)), 1 - 2.0**-53)  # never certainty: a weaker attack
    return 0.5 + 0.5 * (first - 0.5) if shuffled else first


def bit_attack_epsilon(probability: float, rounds: int, delta: float) -> float:
    """Least epsilon compatible with `rounds` independent bits, each right with `probability`.

    Exact: the smallest epsilon at which the hockey-stick divergence between the binomials with
    success probabilities p and 1-p is delta. Whatever was claimed, the truth is not below this.
    """
    check("delta", delta)
    check("rounds", rounds)
    interval("[0.5, 1)")("probability", probability)
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

_ONE_STEP = (
    "right in form for one step, if every share is honest and arrives; the threat model allows "
    "colluding devices, whose shares must be taken off the cohort"
)
_MORE_STEPS = (
    "false for more than one local step: dividing by the cohort rests on Lemma 5, and one bit "
    "leaks whatever the cohort; proved without the division, or with it for convex models only"
)
_CONVERGES = (
    "false where clients differ: the negative term is the norm of the mean gradient, not the mean "
    "of the norms. Halves of two terms were lost, and a factor 4 of Lemma 8 in the condition, "
    "which should be 5*eta*L + 6*(tau*eta*L)^2 <= 1"
)
_ZERO = ("noise_std", "gradient_variance")


def _theorem_1(
    of_rho: Any,
    participations: float,
    local_steps: int,
    gradient_bound: float,
    cohort: int,
    records: int,
    batch_size: int,
) -> tuple[float, str]:
    """A number that follows from Theorem 1's rho at unit noise, 2*C*tau*G^2/(r*m*gamma)."""
    rho = 2 * participations * local_steps * gradient_bound**2 / (cohort * records * batch_size)
    return of_rho(rho), _ONE_STEP if local_steps == 1 else _MORE_STEPS


paper_hu_rho = _hu(
    "Theorem 1",
    "rho",
    "",
    lambda noise_std, **run: _theorem_1(lambda rho: rho / noise_std**2, **run),
)
paper_hu_epsilon = _hu(
    "Theorem 1",
    "epsilon",
    "",
    lambda delta, noise_std, **run: _theorem_1(
        lambda rho: zcdp_epsilon(rho / noise_std**2, delta), **run
    ),
)
paper_hu_noise_std = _hu(
    "Theorem 1",
    "noise_std",
    "",
    lambda epsilon, delta, **run: _theorem_1(
        lambda rho: math.sqrt(rho / zcdp_rho(epsilon, delta)), **run
    ),
)
paper_hu_upload_sensitivity = _hu(
    "Lemma 5",
    "upload_sensitivity",
    "",
    lambda learning_rate, local_steps, gradient_bound, batch_size: (
        2 * learning_rate * local_steps * gradient_bound / batch_size,
        "correct for one step"
        if local_steps == 1
        else "false: both runs are evaluated at the same iterates; once they differ, every later "
        "step may add 2*eta*G, not 2*eta*G/batch_size",
    ),
)
paper_hu_dp_sgd_epsilon = _hu(
    "section VII-C",
    "epsilon",
    "false: only the cohort adds noise, so rho is divided by the honest shares among it, "
    "not by all clients",
    lambda delta, participations, gradient_bound, clients, batch_size, noise_std: zcdp_epsilon(
        2 * participations * (gradient_bound / (batch_size * noise_std)) ** 2 / clients, delta
    ),
)


def convergence_terms(
    learning_rate: float,
    smoothness: float,
    gradient_variance: float,
    batch_size: int,
    dimension: int,
    noise_std: Any,
    cohort: int,
    local_steps: Any,
) -> tuple[Any, Any]:
    """Return the two terms of Theorem 2 that do not fall with the number of steps.

    The first is eta*L*(beta^2/gamma + d*sigma^2/r), with the factor that the paper halves; the
    second comes from the drift of local models and vanishes at one local step.
    """
    condition = learning_rate * smoothness
    sampled, noisy = gradient_variance / batch_size, dimension * noise_std**2
    drift = (local_steps - 1) * (2 * local_steps - 1) * condition**2 / 3
    return (
        condition * (sampled + noisy / cohort),
        drift * (2 * sampled + noisy * (cohort + 1) / cohort),
    )


def _theorem_2(initial_gap: float, steps: int, **run: Any) -> float:
    """Eq. 14: bound on the mean of ||grad f||^2 over K = `steps` steps."""
    noise, drift = convergence_terms(**run)
    return float(2 * initial_gap / (run["learning_rate"] * steps) + noise / 2 + drift)


def _lemma_6(initial_gap: float, steps: int, strong_convexity: float, **run: Any) -> float:
    """Eq. 15: bound on the mean of f - f* over K = `steps` steps."""
    noise, drift = convergence_terms(**run)
    rate = run["learning_rate"] * strong_convexity
    settled = (noise / 4 + drift / 2) / strong_convexity
    return float((1 - rate) / (steps * rate) * initial_gap + settled)


paper_hu_gradient_norm = _hu(
    "Theorem 2", "squared_gradient_norm", _CONVERGES, _theorem_2, or_zero=_ZERO
)
paper_hu_optimality_gap = _hu("Lemma 6", "optimality_gap", _CONVERGES, _lemma_6, or_zero=_ZERO)
# Eq. 18: variance of a cohort's mean noisy gradient, of all clients' gradient norms.
paper_hu_cohort_variance = _hu(
    "Lemma 7",
    "gradient_variance",
    "true, and loose: drawing r of n without replacement leaves (n-r)/(r*(n-1)) of the clients' "
    "variance, and beta^2/gamma may be divided by r",
    lambda gradient_norms, cohort, gradient_variance, batch_size, dimension, noise_std: (
        dimension * noise_std**2 / cohort
        + gradient_variance / batch_size
        + 4 * (len(gradient_norms) - cohort) ** 2 / len(gradient_norms) ** 3
        * math.fsum(norm * norm for norm in gradient_norms)
    ),
    or_zero=_ZERO,
)  # fmt: skip


def _lemma_8(
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
    """Eq. 19: distance of local models from their mean after `step` local steps.

    `squared_gradients` is the sum of ||grad f_i||^2 over all clients and the steps before.
    """
    noisy = dimension * noise_std**2 * (cohort + 1) / cohort + 2 * gradient_variance / batch_size
    shares = (2 * (clients - cohort) ** 2 + clients**2) / clients**3
    return learning_rate**2 * (2 * step**2 * noisy + 4 * step * shares * squared_gradients)


paper_hu_network_error = _hu(
    "Lemma 8",
    "network_error",
    "its factor 4 on the gradients is lost where Theorem 2 uses it",
    _lemma_8,
    or_zero=(*_ZERO, "squared_gradients"),
)
