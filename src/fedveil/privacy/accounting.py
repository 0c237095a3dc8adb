"""What a series of releases costs: `account` turns releases in a setting into a Guarantee.

Every valid accountant is asked; the smallest upper bound is reported and all are kept. Queries are
pure: nothing is remembered but a cache of answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import delta_value
from fedveil.core.errors import ConfigError
from fedveil.core.loading import uncollected
from fedveil.core.units import Arithmetic, Entropy, Trust
from fedveil.privacy.accountants.exact import (
    concentrated_epsilon,
    exact_epsilon,
    pure_epsilon,
    unamplified_epsilon,
)
from fedveil.privacy.accountants.pld import pld_epsilon
from fedveil.privacy.accountants.rdp import rdp_epsilon, selected_epsilon
from fedveil.privacy.accountants.steps import Step, merged
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.guarantee import _MAKER, Guarantee
from fedveil.privacy.mechanisms import Gaussian, Mechanism, NoisyVotes
from fedveil.privacy.refusals import DeltaRefused
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import Everyone, Sampling, sampling_kind
from fedveil.privacy.theorems import theorem_of
from fedveil.privacy.translation import honest_shares, least_population, step_of
from fedveil.privacy.tuning import AllRuns, RandomRuns, Tuning

_LARGEST_DELTA = 0.01  # where nothing is known about the population

__all__ = ["Release", "Setting", "account", "default_delta", "per_client_epsilons"]


def account(
    releases: Sequence[Release], *, setting: Setting, delta: float, tuning: Tuning | None = None
) -> Guarantee:
    """The guarantee of all `releases` together at `delta`.

    Releases compose adaptively: later ones may depend on what earlier ones showed. Those of one
    round that use the same secret cohort are *one* release (see `joint_noise_multiplier`).
    delta = 0 asks for pure differential privacy, which only Laplace noise has.
    """
    if not isinstance(setting, Setting):
        raise ConfigError(f"setting: need a Setting, got {setting!r}")
    listed = tuple(releases)
    if not listed or not all(isinstance(release, Release) for release in listed):
        raise ConfigError("releases: need one or more Release objects")
    return _account(listed, setting, delta_value(delta), tuning)


def fast_epsilon(
    releases: Sequence[Release], *, setting: Setting, delta: float, tuning: Tuning | None = None
) -> float:
    """An upper bound on the epsilon that `account` reports, from the quick accountants alone.

    Rényi curves are slow for fixed-size sampling and rarely win; they are asked only where no
    other accountant answers.
    """
    listed = tuple(releases)
    _check_delta(listed, setting, delta)
    steps = merged([step_of(release, setting) for release in listed])
    return min(value for _, value in _bounds(steps, delta, tuning, quick=True))


def per_client_epsilons(
    participations: npt.ArrayLike,
    *,
    mechanism: Mechanism,
    setting: Setting,
    delta: float,
    sampling: Sampling | None = None,
) -> npt.NDArray[np.float64]:
    """Epsilon of each client from the number of rounds in which it really took part.

    Allowed where selection does not depend on data; sampling gets no credit, and the headline is
    the largest. Publishing these counts excludes any amplified epsilon for the same run. The
    sampling that was used tells the number of noise shares, if there are colluders.
    """
    counts = np.asarray(participations)
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer) or np.any(counts < 0):
        raise ConfigError("participations: need one whole number of at least 0 for each client")
    distinct, position = np.unique(counts, return_inverse=True)
    cohorts = Everyone() if sampling is None else sampling
    releases = [Release(mechanism, cohorts, n, participations=n) for n in map(int, distinct)]
    epsilons = [account([one], setting=setting, delta=delta).epsilon for one in releases]
    return np.array(epsilons, dtype=np.float64)[position]


def default_delta(population: int) -> float:
    """min(1e-5, population^-1.1): well below the 1/population that protects nobody."""
    return float(min(1e-5, float(population) ** -1.1))


@lru_cache(maxsize=8192)
def _account(
    releases: tuple[Release, ...], setting: Setting, delta: float, tuning: Tuning | None
) -> Guarantee:
    _check_delta(releases, setting, delta)
    steps = merged([step_of(release, setting) for release in releases])
    bounds = _bounds(steps, delta, tuning)
    accountant = min(bounds, key=lambda item: item[1])[0]
    epsilon = dict(bounds)[accountant]
    reason = "no finite epsilon is proved" if math.isinf(epsilon) else _why_not(releases, setting)
    shares = [honest_shares(release, setting) for release in releases]
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        bounds=bounds,
        theorem=theorem_of(accountant, steps),
        sampling=" + ".join(dict.fromkeys(sampling_kind(item.sampling) for item in releases)),
        rounds=sum(release.rounds for release in releases),
        participations=sum(release.counted_participations for release in releases),
        honest_shares=min((item for item in shares if item is not None), default=None),
        noise_multiplier=_common_multiplier(releases),
        certified=not reason,
        reason=reason,
        releases=releases,
        setting=setting,
        tuning=tuning,
        maker=_MAKER,
    )


@cache
def _load_library() -> None:
    """All of it at once: nearly every accountant needs it, and it takes most of a second."""
    with uncollected():
        import_module("dp_accounting.pld.privacy_loss_distribution")


@lru_cache(maxsize=8192)
def _bounds(
    steps: tuple[Step, ...], delta: float, tuning: Tuning | None, quick: bool = False
) -> tuple[tuple[str, float], ...]:
    """(accountant, epsilon) for every accountant that is valid here, the tightest kind first."""
    if not steps:
        return (("exact", 0.0),)
    _load_library()
    if isinstance(tuning, AllRuns):
        steps = tuple(replace(step, count=step.count * tuning.runs) for step in steps)
    if isinstance(tuning, RandomRuns):
        selected = selected_epsilon(steps, delta, tuning.mean, tuning.repeats.shape)
        return (("rdp", math.inf if selected is None else selected),)
    exact = exact_epsilon(steps, delta)
    found: list[tuple[str, float | None]] = [("exact", exact), ("pure", pure_epsilon(steps))]
    if delta > 0:
        numeric = pld_epsilon(steps, delta) if exact is None else None
        found.append(("pld", numeric))
        if not quick or (exact is None and numeric is None):
            found.append(("rdp", rdp_epsilon(steps, delta)))
        found.append(("zcdp", concentrated_epsilon(steps, delta)))
        if exact is None:
            found.append(("unamplified", unamplified_epsilon(steps, delta)))
    valid = tuple((name, value) for name, value in found if value is not None)
    return valid or (("none", math.inf),)


def _check_delta(releases: tuple[Release, ...], setting: Setting, delta: float) -> None:
    population = least_population(releases, setting)
    if population is None and delta >= _LARGEST_DELTA:
        raise DeltaRefused(
            f"delta {delta:g} and no population to compare it with: publishing one of many "
            f"{setting.unit}s whole would satisfy it",
            f"state the population, or use a delta below {_LARGEST_DELTA:g}",
        )
    if population is not None and delta >= 1 / population:
        raise DeltaRefused(
            f"delta {delta:g} is not below 1/{population}: publishing one random {setting.unit} "
            "whole would satisfy it",
            f"use at most {default_delta(population):.3g}",
        )


def _common_multiplier(releases: tuple[Release, ...]) -> float | None:
    found = {getattr(item.mechanism, "noise_multiplier", None) for item in releases}
    return found.pop() if len(found) == 1 else None


def _why_not(releases: tuple[Release, ...], setting: Setting) -> str:
    """Why the proof does not cover what runs; empty if it does."""
    reasons = [one.rstrip(".") for one in setting.unprotected]
    if setting.entropy is not Entropy.SYSTEM:
        reasons.append("the noise comes from a seed, and whoever knows the seed can subtract it")
    if setting.arithmetic is not Arithmetic.EXACT:
        reasons.append("arithmetic is idealised: floating-point noise leaks in its low-order bits")
    continuous = (Gaussian, NoisyVotes, NoisyGradients)
    if setting.trust is not Trust.LOCAL and any(
        isinstance(item.mechanism, continuous)
        and (setting.trust is Trust.DISTRIBUTED or isinstance(item.mechanism, NoisyGradients))
        for item in releases
    ):
        reasons.append(
            "continuous noise shares do not survive the integers of a secure sum; discrete "
            "Gaussian shares would be certified"
        )
    if any(
        isinstance(item.mechanism, GridGradients) and item.mechanism.local_steps > 1
        for item in releases
    ):
        reasons.append(
            "that several local steps keep two runs together is proved for real numbers; here "
            "they are taken in floating point, whose rounding may bring the runs further apart"
        )
    return "; ".join(reasons)
