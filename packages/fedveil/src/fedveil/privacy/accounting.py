"""What a series of releases costs: `account` turns releases under a privacy model into a Guarantee.

Every valid accountant is asked; the smallest upper bound is reported and all are kept. Queries are
pure: nothing is remembered but a cache of answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fedveil.core.arguments import delta_value, instance_of
from fedveil.core.errors import ConfigError
from fedveil.core.units import Arithmetic, Entropy, Unit
from fedveil.privacy.accountants import bounds, theorem_of
from fedveil.privacy.accountants.steps import merged
from fedveil.privacy.guarantee import _MAKER, Guarantee
from fedveil.privacy.refusals import DeltaRefused, UnitRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import sampling_kind
from fedveil.privacy.translation import honest_shares, least_population, step_of
from fedveil.privacy.tuning import Tuning

_LARGEST_DELTA = 0.01  # where nothing is known about the population

__all__ = ["PrivacyModel", "Release", "account", "default_delta"]


def account(
    releases: Sequence[Release],
    *,
    privacy_model: PrivacyModel,
    delta: float,
    tuning: Tuning | None = None,
) -> Guarantee:
    """Return the guarantee of all releases together.

    Releases compose adaptively: later ones may depend on what earlier ones showed. Those of one
    round that use the same secret cohort are *one* release (see `joint_noise_multiplier`).

    Args:
        releases: What is released.
        privacy_model: Who is protected from whom, and how the noise is made.
        delta: Zero asks for pure differential privacy, which only Laplace noise has.
        tuning: Runs that chose settings on the same data, and are charged.

    Raises:
        PrivacyRefusal: No proof covers these releases.

    >>> import fedveil as fv
    >>> release = fv.Release(fv.Gaussian(1.0), fv.Poisson(0.05), rounds=200)
    >>> privacy_model = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.ZERO_OUT, fv.Trust.CENTRAL)
    >>> guarantee = fv.account([release], privacy_model=privacy_model, delta=2.34e-4)
    >>> round(guarantee.epsilon, 2)
    3.7
    """
    return _account(_listed(releases, privacy_model), privacy_model, delta_value(delta), tuning)


def fast_epsilon(
    releases: Sequence[Release],
    *,
    privacy_model: PrivacyModel,
    delta: float,
    tuning: Tuning | None = None,
) -> float:
    """An upper bound on the epsilon that `account` reports, from the quick accountants alone.

    Rényi curves are slow for fixed-size sampling and rarely win; they are asked only where no
    other accountant answers.
    """
    listed, delta = _listed(releases, privacy_model), delta_value(delta)
    _check_delta(listed, privacy_model, delta)
    steps = merged([step_of(release, privacy_model) for release in listed])
    return min(value for _, value in bounds(steps, delta, tuning, quick=True))


def person_guarantee(guarantee: Guarantee, records: int) -> Guarantee:
    """Read a record-level guarantee for a person with several records.

    Args:
        guarantee: For one record, each clipped by itself.
        records: The most records of one person, declared and enforced by a cap. The largest
            number in the data is itself private.

    Returns:
        The guarantee of all records of one person together.

    Raises:
        UnitRefused: The guarantee is not about records, or its proof does not extend to several.
    """
    model = guarantee.privacy_model
    if model.unit is not Unit.RECORD:
        raise UnitRefused(
            f"a guarantee for one {model.unit} is not one for a record",
            "account the run for unit record first",
        )
    return account(
        guarantee.releases,
        privacy_model=replace(model, unit=Unit.PERSON, contributions=records, population=None),
        delta=guarantee.delta,
        tuning=guarantee.tuning,
    )


def default_delta(population: int) -> float:
    """min(1e-5, population^-1.1): well below the 1/population that protects nobody."""
    return float(min(1e-5, float(population) ** -1.1))


def _listed(releases: Sequence[Release], privacy_model: PrivacyModel) -> tuple[Release, ...]:
    """Return the releases as a tuple, and refuse what is none."""
    instance_of(PrivacyModel)("privacy_model", privacy_model)
    listed = () if isinstance(releases, Release) else tuple(releases)
    if not listed or not all(isinstance(release, Release) for release in listed):
        raise ConfigError("releases: need one or more Release objects, in a list")
    return listed


@lru_cache(maxsize=8192)
def _account(
    releases: tuple[Release, ...], privacy_model: PrivacyModel, delta: float, tuning: Tuning | None
) -> Guarantee:
    _check_delta(releases, privacy_model, delta)
    steps = merged([step_of(release, privacy_model) for release in releases])
    found = bounds(steps, delta, tuning)
    accountant, epsilon = min(found, key=lambda item: item[1])
    reason = (
        "no finite epsilon is proved"
        if math.isinf(epsilon)
        else _why_not(releases, privacy_model, delta)
    )
    shares = [honest_shares(release, privacy_model) for release in releases]
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        bounds=found,
        theorem=theorem_of(accountant, steps),
        sampling=" + ".join(dict.fromkeys(_sampling_text(item) for item in releases)),
        rounds=sum(release.rounds for release in releases),
        participations=sum(release.counted_participations for release in releases),
        honest_shares=min((item for item in shares if item is not None), default=None),
        noise_multiplier=_common_multiplier(releases),
        certified=not reason,
        reason=reason,
        releases=releases,
        privacy_model=privacy_model,
        tuning=tuning,
        maker=_MAKER,
    )


def _check_delta(releases: tuple[Release, ...], privacy_model: PrivacyModel, delta: float) -> None:
    population = least_population(releases, privacy_model)
    if privacy_model.entropy is Entropy.SEEDED and delta < _LARGEST_DELTA:
        return  # a simulation certifies nothing; the reason says so
    if population is None and delta >= _LARGEST_DELTA:
        raise DeltaRefused(
            f"delta {delta:g} and no population to compare it with: publishing one of many "
            f"{privacy_model.unit}s whole would satisfy it",
            f"state the population, or use a delta below {_LARGEST_DELTA:g}",
        )
    if population is not None and delta >= 1 / population:
        raise DeltaRefused(
            f"delta {delta:g} is not below 1/{population}: publishing one random "
            f"{privacy_model.unit} whole would satisfy it",
            f"use at most {default_delta(population):.3g}",
        )


def _sampling_text(release: Release) -> str:
    kind = sampling_kind(release.sampling)
    return f"{kind}, secret coins" if release.mechanism.secret_coins else kind


def _common_multiplier(releases: tuple[Release, ...]) -> float | None:
    found = {getattr(item.mechanism, "noise_multiplier", None) for item in releases}
    return found.pop() if len(found) == 1 else None


def _why_not(releases: tuple[Release, ...], privacy_model: PrivacyModel, delta: float) -> str:
    """Return why the proof does not cover what runs; empty if it does."""
    population = least_population(releases, privacy_model)
    reasons = [one.rstrip(".") for one in privacy_model.unprotected]
    if privacy_model.entropy is not Entropy.SYSTEM:
        reasons.append("the noise comes from a seed, and whoever knows the seed can subtract it")
    if population is not None and delta >= 1 / population:
        reasons.append(
            f"delta {delta:g} is not below 1/{population}: publishing one random "
            f"{privacy_model.unit} would satisfy it, and a protected run refuses it"
        )
    if privacy_model.arithmetic is not Arithmetic.EXACT:
        reasons.append("arithmetic is idealised: floating-point noise leaks in its low-order bits")
    reasons += [release.mechanism.not_certified(privacy_model) for release in releases]
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
