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
from fedveil_lab.reproduction.claims.claim import stated
from fedveil_lab.theorems.bounds import noise_constant_laplace

PAPER = "Fu et al."


def size_imbalance(sizes: Sequence[int]) -> float:
    """Factor on the noise variance of size-weighted averaging (kappa); 1 for equal clients."""
    if len(sizes) == 0:
        raise ConfigError("sizes: no clients")
    count("smallest client", min(sizes))
    return len(sizes) * math.fsum(n * n for n in sizes) / math.fsum(sizes) ** 2


@stated(
    PAPER,
    "section IV-B",
    "participations",
    "an average: a client may take part one time more; the ceiling is what holds",
)
def paper_fu_participations(*, clients: int, cohort: int, rounds: int) -> float:
    """T_l = b*T_g/N, a fraction."""
    return cohort * rounds / clients


@stated(
    PAPER,
    "Theorem 1",
    "laplace_scale",
    "true only if the sensitivity bounds gradients on different data at different parameters: "
    "2*clip_norm for whole-gradient clipping. The paper puts clip_norm: half the noise needed",
)
def paper_fu_laplace_scale(
    *,
    epsilon: float,
    participations: float,
    learning_rate: float,
    local_steps: int,
    gradient_sensitivity: float,
) -> float:
    """Theorem 1: Laplace scale T_l*Xi/epsilon with Xi = eta*E*xi (eta the largest of the round)."""
    return participations * learning_rate * local_steps * gradient_sensitivity / epsilon


@stated(
    PAPER,
    "Theorem 2",
    "gaussian_std",
    "not usable: c1 and c2 are never given, the cited lemma does not reach q = 1, and a norm "
    "bound stands where the replacement sensitivity, twice as large, must",
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
) -> float:
    """Theorem 2 at q = 1: std c2*sqrt(T_l*ln(1/delta))/epsilon * Xi with Xi = eta*E*xi."""
    ratio = c2 * math.sqrt(participations * math.log(1 / delta)) / epsilon
    return ratio * learning_rate * local_steps * gradient_bound


@stated(
    PAPER,
    "Theorem 2",
    "epsilon",
    "not usable: c2 is never given, and the bound of one upload stands for its replacement "
    "sensitivity, which is twice as large",
)
def paper_fu_gaussian_epsilon(
    *, noise_multiplier: float, participations: float, delta: float, c2: float
) -> float:
    """Theorem 2 read backwards: the epsilon it claims for noise std / bound of one upload."""
    return c2 * math.sqrt(participations * math.log(1 / delta)) / noise_multiplier


@stated(
    PAPER,
    "Theorem 1",
    "epsilon",
    "half of what holds: replacing a client's data moves a clipped gradient by twice the clip; "
    "and a client may take part once more than on average",
)
def paper_fu_laplace_epsilon(*, noise_multiplier: float, participations: float) -> float:
    """Theorem 1 read backwards, with the clip itself as the sensitivity, as the paper does."""
    return participations / noise_multiplier


@stated(
    PAPER,
    "Algorithm 1",
    "weight",
    "the weights of a cohort add up to 1 for equal clients only, so differences must be averaged "
    "and not models; and n_l is as private as the rest of a client's data",
)
def paper_fu_largest_weight(*, sizes: Sequence[int], cohort: int) -> float:
    """Algorithm 1: N*n_l/(b*n) of the largest client, by which its upload counts."""
    return len(sizes) * max(sizes) / (cohort * math.fsum(sizes))


@stated(
    PAPER,
    "Corollary 1.1",
    "noise_variance",
    "correct where cohort*rounds/clients is a whole number",
)
def paper_fu_noise_variance_laplace(
    *,
    dimension: int,
    sizes: Sequence[int],
    cohort: int,
    rounds: int,
    epsilon: float,
    upload_sensitivity: float,
) -> float:
    """Corollary 1.1: E||w||^2 of the averaged Laplace noise of one round."""
    spread = upload_sensitivity * rounds / (len(sizes) * epsilon)
    return 2 * dimension * cohort * spread**2 * size_imbalance(sizes)


@stated(
    PAPER,
    "Corollary 2.1",
    "noise_variance",
    "twice too large: a Gaussian coordinate has variance sigma^2, not 2*sigma^2",
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
) -> float:
    """Corollary 2.1: E||w||^2 of the averaged Gaussian noise of one round."""
    variance = rounds * math.log(1 / delta) * (c2 * upload_sensitivity / epsilon) ** 2
    return 2 * dimension * variance * size_imbalance(sizes) / len(sizes)


@stated(
    PAPER,
    "Theorem 3",
    "noise_constant",
    "valid for clients of equal size; with clip_norm as the sensitivity, 4 times too small",
)
def paper_fu_noise_constant_laplace(
    *, dimension: int, clients: int, cohort: int, epsilon: float, gradient_sensitivity: float
) -> float:
    """C_M after Theorem 3, Laplace: 8*p*b*xi^2/(N^2*epsilon^2)."""
    return noise_constant_laplace(
        dimension=dimension,
        clients=clients,
        cohort=cohort,
        epsilon=epsilon,
        gradient_sensitivity=gradient_sensitivity,
    )


@stated(
    PAPER,
    "Theorem 3",
    "noise_constant",
    "inherits the unknown c2 of Theorem 2 and the doubled variance of Corollary 2.1; valid for "
    "clients of equal size only",
)
def paper_fu_noise_constant_gaussian(
    *,
    dimension: int,
    clients: int,
    epsilon: float,
    delta: float,
    gradient_bound: float,
    c2: float,
) -> float:
    """C_M after Theorem 3, Gaussian: 8*p*c2^2*ln(1/delta)*xi^2/(N*epsilon^2)."""
    return 8 * dimension * math.log(1 / delta) * (c2 * gradient_bound / epsilon) ** 2 / clients


@stated(PAPER, "Theorems 4 and 5", "local_steps", or_zero=("growth",))
def paper_fu_local_steps(total_steps: int, growth: float) -> tuple[float, str]:
    """Theorems 4 and 5: the best number of local steps grows as T^(z/(z+1)); read literally."""
    if growth < 1:
        verdict = "false for z < 1: both terms of the bound grow with E, so one local step is best"
    elif growth == 1:
        verdict = "for z = 1 the noise term does not depend on E, so a constant number is best"
    else:
        verdict = "the exponent is right, but the constant it leaves out can decide everything"
    return float(total_steps) ** (growth / (growth + 1)), verdict
