"""Fu et al., iteration times: every noise formula and constant as the paper prints it.

Paper symbols: N clients, b cohort, T_g rounds, T_l participations, E local_steps, T total_steps,
xi the gradient's sensitivity, Xi that of one upload, p dimension, z how the noise variance grows
with rounds (2 Laplace, 1 Gaussian). What holds instead stands in `uploads.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveil.core.arguments import count
from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims.claim import (
    Claim,
    claim,
    counts,
    fractions,
    not_negative,
    positive,
)
from fedveil_lab.theorems.bounds import noise_constant_laplace

PAPER = "Fu et al."


def size_imbalance(sizes: Sequence[int]) -> float:
    """Factor on the noise variance of size-weighted averaging (kappa); 1 for equal clients."""
    if len(sizes) == 0:
        raise ConfigError("sizes: no clients")
    count("smallest client", min(sizes))
    return len(sizes) * math.fsum(n * n for n in sizes) / math.fsum(sizes) ** 2


def paper_fu_participations(*, clients: int, cohort: int, rounds: int) -> Claim:
    """T_l = b*T_g/N, a fraction."""
    counts(clients=clients, cohort=cohort, rounds=rounds)
    return claim(
        PAPER,
        "section IV-B",
        "participations",
        cohort * rounds / clients,
        "an average: a client may take part one time more; the ceiling is what holds",
        clients=clients,
        cohort=cohort,
        rounds=rounds,
    )


def paper_fu_laplace_scale(
    *,
    epsilon: float,
    participations: float,
    learning_rate: float,
    local_steps: int,
    gradient_sensitivity: float,
) -> Claim:
    """Theorem 1: Laplace scale T_l*Xi/epsilon with Xi = eta*E*xi (eta the largest of the round)."""
    positive(
        epsilon=epsilon,
        participations=participations,
        learning_rate=learning_rate,
        gradient_sensitivity=gradient_sensitivity,
    )
    counts(local_steps=local_steps)
    return claim(
        PAPER,
        "Theorem 1",
        "laplace_scale",
        participations * learning_rate * local_steps * gradient_sensitivity / epsilon,
        "true only if the sensitivity bounds gradients on different data at different parameters: "
        "2*clip_norm for whole-gradient clipping. The paper puts clip_norm: half the noise needed",
        epsilon=epsilon,
        participations=participations,
        learning_rate=learning_rate,
        local_steps=local_steps,
        gradient_sensitivity=gradient_sensitivity,
    )


def paper_fu_gaussian_std(
    *,
    epsilon: float,
    delta: float,
    participations: float,
    learning_rate: float,
    local_steps: int,
    gradient_bound: float,
    c2: float,
) -> Claim:
    """Theorem 2 at q = 1: std c2*sqrt(T_l*ln(1/delta))/epsilon * Xi with Xi = eta*E*xi."""
    positive(
        epsilon=epsilon,
        participations=participations,
        learning_rate=learning_rate,
        gradient_bound=gradient_bound,
        c2=c2,
    )
    fractions(delta=delta)
    counts(local_steps=local_steps)
    ratio = c2 * math.sqrt(participations * math.log(1 / delta)) / epsilon
    return claim(
        PAPER,
        "Theorem 2",
        "gaussian_std",
        ratio * learning_rate * local_steps * gradient_bound,
        "not usable: c1 and c2 are never given, the cited lemma does not reach q = 1, and a norm "
        "bound stands where the replacement sensitivity, twice as large, must",
        epsilon=epsilon,
        delta=delta,
        participations=participations,
        learning_rate=learning_rate,
        local_steps=local_steps,
        gradient_bound=gradient_bound,
        c2=c2,
    )


def paper_fu_gaussian_epsilon(
    *, noise_multiplier: float, participations: float, delta: float, c2: float
) -> Claim:
    """Theorem 2 read backwards: the epsilon it claims for noise std / bound of one upload."""
    positive(noise_multiplier=noise_multiplier, participations=participations, c2=c2)
    fractions(delta=delta)
    return claim(
        PAPER,
        "Theorem 2",
        "epsilon",
        c2 * math.sqrt(participations * math.log(1 / delta)) / noise_multiplier,
        "not usable: c2 is never given, and the bound of one upload stands for its replacement "
        "sensitivity, which is twice as large",
        noise_multiplier=noise_multiplier,
        participations=participations,
        delta=delta,
        c2=c2,
    )


def paper_fu_noise_variance_laplace(
    *,
    dimension: int,
    sizes: Sequence[int],
    cohort: int,
    rounds: int,
    epsilon: float,
    upload_sensitivity: float,
) -> Claim:
    """Corollary 1.1: E||w||^2 of the averaged Laplace noise of one round."""
    counts(dimension=dimension, cohort=cohort, rounds=rounds)
    positive(epsilon=epsilon, upload_sensitivity=upload_sensitivity)
    clients = len(sizes)
    spread = upload_sensitivity * rounds / (clients * epsilon)
    return claim(
        PAPER,
        "Corollary 1.1",
        "noise_variance",
        2 * dimension * cohort * spread**2 * size_imbalance(sizes),
        "correct where cohort*rounds/clients is a whole number",
        dimension=dimension,
        clients=clients,
        cohort=cohort,
        rounds=rounds,
        epsilon=epsilon,
        upload_sensitivity=upload_sensitivity,
    )


def paper_fu_noise_variance_gaussian(
    *,
    dimension: int,
    sizes: Sequence[int],
    rounds: int,
    epsilon: float,
    delta: float,
    upload_sensitivity: float,
    c2: float,
) -> Claim:
    """Corollary 2.1: E||w||^2 of the averaged Gaussian noise of one round."""
    counts(dimension=dimension, rounds=rounds)
    positive(epsilon=epsilon, upload_sensitivity=upload_sensitivity, c2=c2)
    fractions(delta=delta)
    clients = len(sizes)
    variance = rounds * math.log(1 / delta) * (c2 * upload_sensitivity / epsilon) ** 2
    return claim(
        PAPER,
        "Corollary 2.1",
        "noise_variance",
        2 * dimension * variance * size_imbalance(sizes) / clients,
        "twice too large: a Gaussian coordinate has variance sigma^2, not 2*sigma^2",
        dimension=dimension,
        clients=clients,
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        upload_sensitivity=upload_sensitivity,
        c2=c2,
    )


def paper_fu_noise_constant_laplace(
    *, dimension: int, clients: int, cohort: int, epsilon: float, gradient_sensitivity: float
) -> Claim:
    """C_M after Theorem 3, Laplace: 8*p*b*xi^2/(N^2*epsilon^2)."""
    value = noise_constant_laplace(
        dimension=dimension,
        clients=clients,
        cohort=cohort,
        epsilon=epsilon,
        gradient_sensitivity=gradient_sensitivity,
    )
    return claim(
        PAPER,
        "Theorem 3",
        "noise_constant",
        value,
        "valid for clients of equal size; with clip_norm as the sensitivity, 4 times too small",
        dimension=dimension,
        clients=clients,
        cohort=cohort,
        epsilon=epsilon,
        gradient_sensitivity=gradient_sensitivity,
    )


def paper_fu_noise_constant_gaussian(
    *,
    dimension: int,
    clients: int,
    epsilon: float,
    delta: float,
    gradient_bound: float,
    c2: float,
) -> Claim:
    """C_M after Theorem 3, Gaussian: 8*p*c2^2*ln(1/delta)*xi^2/(N*epsilon^2)."""
    counts(dimension=dimension, clients=clients)
    positive(epsilon=epsilon, gradient_bound=gradient_bound, c2=c2)
    fractions(delta=delta)
    ratio = c2 * gradient_bound / epsilon
    return claim(
        PAPER,
        "Theorem 3",
        "noise_constant",
        8 * dimension * math.log(1 / delta) * ratio**2 / clients,
        "inherits the unknown c2 of Theorem 2 and the doubled variance of Corollary 2.1; valid for "
        "clients of equal size only",
        dimension=dimension,
        clients=clients,
        epsilon=epsilon,
        delta=delta,
        gradient_bound=gradient_bound,
        c2=c2,
    )


def paper_fu_local_steps(total_steps: int, growth: float) -> Claim:
    """Theorems 4 and 5: the best number of local steps grows as T^(z/(z+1)); read literally."""
    counts(total_steps=total_steps)
    not_negative(growth=growth)
    if growth < 1:
        verdict = "false for z < 1: both terms of the bound grow with E, so one local step is best"
    elif growth == 1:
        verdict = "for z = 1 the noise term does not depend on E, so a constant number is best"
    else:
        verdict = "the exponent is right, but the constant it leaves out can decide everything"
    return claim(
        PAPER,
        "Theorem 4" if growth < 1 else "Theorem 5",
        "local_steps",
        float(total_steps) ** (growth / (growth + 1)),
        verdict,
        total_steps=total_steps,
        growth=growth,
    )
