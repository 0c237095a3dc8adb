"""Fu et al., iteration times: every noise formula and constant as the paper prints it.

Paper symbols: N clients, b cohort, T_g rounds, T_l participations, E local_steps, T total_steps,
xi the gradient's sensitivity, Xi that of one upload, p dimension, z how the noise variance grows
with rounds (2 Laplace, 1 Gaussian).
"""

from __future__ import annotations

import math
from functools import partial

from fedveil_lab.reproduction.claims.claim import stated

_fu = partial(stated, "Fu et al.")


def _best_local_steps(total_steps: int, growth: float) -> tuple[float, str]:
    if growth < 1:
        verdict = "false for z < 1: both terms of the bound grow with E, so one local step is best"
    elif growth == 1:
        verdict = "for z = 1 the noise term does not depend on E, so a constant number is best"
    else:
        verdict = "the exponent is right, but the constant it leaves out can decide everything"
    return float(total_steps) ** (growth / (growth + 1)), verdict


paper_fu_participations = _fu(
    "section IV-B",
    "participations",
    "an average: a client may take part one time more; the ceiling is what holds",
    lambda clients, cohort, rounds: cohort * rounds / clients,
)
paper_fu_laplace_epsilon = _fu(
    "Theorem 1",
    "epsilon",
    "half of what holds: replacing a client's data moves a clipped gradient by twice the clip; "
    "and a client may take part once more than on average",
    lambda noise_multiplier, participations: participations / noise_multiplier,
)
paper_fu_gaussian_epsilon = _fu(
    "Theorem 2",
    "epsilon",
    "not usable: c2 is never given, and the bound of one upload stands for its replacement "
    "sensitivity, which is twice as large",
    lambda noise_multiplier, participations, delta, c2: (
        c2 * math.sqrt(participations * math.log(1 / delta)) / noise_multiplier
    ),
)
paper_fu_largest_weight = _fu(
    "Algorithm 1",
    "weight",  # N*n_l/(b*n) of the largest client
    "the weights of a cohort add up to 1 for equal clients only, so differences must be averaged "
    "and not models; and n_l is as private as the rest of a client's data",
    lambda sizes, cohort: len(sizes) * max(sizes) / (cohort * math.fsum(sizes)),
)
# The best number of local steps grows as T^(z/(z+1)); read literally.
paper_fu_local_steps = _fu(
    "Theorems 4 and 5", "local_steps", "", _best_local_steps, or_zero=("growth",)
)
