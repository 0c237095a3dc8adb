"""Noise on the uploads of clients, as it must be: Fu et al. corrected.

A client is picked round-robin for `participations` rounds, takes `local_steps` full-batch steps and
uploads one noisy model. The server sees every upload, so trust is LOCAL; the schedule is public, so
nothing is amplified. What the paper prints instead stands in `fu.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_accounting import gaussian_mechanism

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency
from fedveil_lab.reproduction.claims.claim import counts, fractions, not_negative, positive


def participations(*, clients: int, cohort: int, rounds: int) -> int:
    """Most rounds any client takes part in under round robin: ceil(cohort*rounds/clients)."""
    counts(clients=clients, cohort=cohort, rounds=rounds)
    if cohort > clients:
        raise ConfigError(f"cohort = {cohort}: more than the {clients} clients")
    return -(-cohort * rounds // clients)


def upload_sensitivity(
    clip_norm: float, learning_rates: Sequence[float], adjacency: Adjacency
) -> float:
    """Most that one upload can change, in the norm that clipped the whole gradient (Xi_t).

    `learning_rates` are those of the local steps of one round. Whole-gradient clipping bounds every
    step whatever the parameters, so this covers the client's entire data set (unit CLIENT) for any
    number of steps. Clip in L1 for Laplace noise, in L2 for Gaussian noise.
    """
    positive(clip_norm=clip_norm)
    return _factor(adjacency) * clip_norm * _total(learning_rates)


def record_sensitivity(
    clip_norm: float,
    learning_rates: Sequence[float],
    records: int,
    *,
    smoothness: float = 0.0,
    nonexpansive: bool = False,
) -> float:
    """Most that one upload can change in L2 when one of `records` records is replaced.

    Needs per-example L2 clipping to `clip_norm` and losses whose gradient is `smoothness`-Lipschitz
    (never estimated from private data). The two runs drift apart by `2*eta*clip/records` a step,
    and a step widens an existing gap by at most `1 + eta*smoothness`; by nothing if every update
    map is non-expansive (convex generalised linear model, eta <= 2/smoothness). Never more than the
    whole-gradient value.
    """
    positive(clip_norm=clip_norm)
    counts(records=records)
    not_negative(smoothness=smoothness)
    total = _total(learning_rates)
    if nonexpansive:
        if smoothness == 0:
            raise ConfigError("smoothness = 0: nonexpansive needs the smoothness of the losses")
        if max(learning_rates) > 2 / smoothness:
            raise ConfigError(
                f"learning_rates up to {max(learning_rates):g}: updates are non-expansive only up "
                f"to 2/smoothness = {2 / smoothness:g}"
            )
    elif smoothness == 0 and len(learning_rates) > 1:
        # Without a bound on how a step widens a gap only the whole-gradient value is proved.
        return 2 * clip_norm * total
    growth = 0.0 if nonexpansive else smoothness
    gap = 0.0
    for rate in learning_rates:
        gap = (1 + rate * growth) * gap + 2 * rate * clip_norm / records
    return min(gap, 2 * clip_norm * total)


def laplace_scale(epsilon: float, participations: int, sensitivity: float) -> float:
    """Scale of the Laplace noise on every coordinate of one upload for pure `epsilon` in total."""
    positive(epsilon=epsilon, sensitivity=sensitivity)
    counts(participations=participations)
    return participations * sensitivity / epsilon


def gaussian_std(epsilon: float, delta: float, participations: int, sensitivity: float) -> float:
    """Std of the Gaussian noise on every coordinate of one upload, exact for the whole run.

    `sensitivity` is that of this round; as every round keeps the same ratio std/sensitivity, rounds
    of different learning rates compose to exactly (epsilon, delta).
    """
    positive(epsilon=epsilon, sensitivity=sensitivity)
    fractions(delta=delta)
    counts(participations=participations)
    return sensitivity * _sigma(epsilon, delta) * math.sqrt(participations)


def smallest_c2(epsilon: float, delta: float) -> float:
    """The smallest constant c2 for which Theorem 2's noise is private, at the true sensitivity."""
    positive(epsilon=epsilon)
    fractions(delta=delta)
    return _sigma(epsilon, delta) * epsilon / math.sqrt(math.log(1 / delta))


def epsilon_behind_c2(epsilon: float, delta: float, c2: float, adjacency: Adjacency) -> float:
    """What Theorem 2's noise, claimed to be `epsilon`, gives for clipped gradients. Exact."""
    positive(epsilon=epsilon, c2=c2)
    fractions(delta=delta)
    ratio = c2 * math.sqrt(math.log(1 / delta)) / epsilon
    return float(gaussian_mechanism.get_epsilon_gaussian(ratio / _factor(adjacency), delta))


def _sigma(epsilon: float, delta: float) -> float:
    return float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))


def _factor(adjacency: Adjacency) -> int:
    if adjacency is Adjacency.ADD_REMOVE:
        raise ConfigError(
            "adjacency = add-remove: a local upload always exists; use replace or zero-out"
        )
    return adjacency.sensitivity_factor


def _total(learning_rates: Sequence[float]) -> float:
    if not learning_rates:
        raise ConfigError("learning_rates: a round needs at least one local step")
    for rate in learning_rates:
        positive(learning_rate=rate)
    return math.fsum(learning_rates)
