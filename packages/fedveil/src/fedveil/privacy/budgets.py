"""Budgets of their own: units that give less to a sum, and pay less, than the others.

A unit fixes a scale between 0 and 1 before the first round, without looking at data, and clips its
contributions to scale * clip; the noise stays what it is. Its own epsilon is then that of noise
multiplier std / D, where D is its bound *on the grid*: rounding does not scale. This holds whatever
scales the others choose, with or without Poisson sampling. Nothing released shows the scale.

Where samples are secret, a unit may have a coin of smaller bias instead: its own epsilon is that of
its own rate, whatever the others' rates are, for the proof fixes all coins but its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedveil.core.arguments import positive
from fedveil.core.errors import ConfigError
from fedveil.privacy.accounting import account, fast_epsilon
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.monotone_search import least_at_most
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.refusals import MechanismRefused
from fedveil.privacy.releases import PrivacyModel, Release

_LEAST_SHARE = 1e-6


def scaled_guarantee(
    releases: Sequence[Release],
    scale: float,
    *,
    privacy_model: PrivacyModel,
    delta: float,
    in_full: Sequence[Release] = (),
) -> Guarantee:
    """Account a run for a unit that clips to `scale` times the clip of the others.

    Args:
        releases: The releases in which the unit scales its contribution.
        scale: Above 0 and at most 1, fixed before the first round and not computed from records.
        privacy_model: Who is protected from whom.
        delta: Failure probability of the guarantee.
        in_full: Releases to which the unit contributes as everybody else does, such as the count
            of a tracked clip.

    Returns:
        The guarantee of this unit; the run's own is that of scale 1.

    Raises:
        MechanismRefused: A mechanism has no proof for a scaled clip.
    """
    listed = [*scaled_releases(releases, scale), *in_full]
    return account(listed, privacy_model=privacy_model, delta=delta)


def largest_scale(releases: Sequence[Release], **asked: Any) -> float:
    """Return the largest scale of its own clip with which a unit keeps to its own epsilon.

    Args:
        releases: The releases in which the unit scales its contribution.
        asked: `epsilon`, the unit's own budget, and `privacy_model`, `delta` and `in_full` as for
            `scaled_guarantee`.

    Returns:
        A scale in (0, 1], within 0.02 %, that was accounted and meets the budget.

    Raises:
        ConfigError: Not even a millionth of the clip meets the budget: rounding to the grid, or
            the releases in full, cost more.
    """
    return _largest(lambda share: scaled_releases(releases, share), **asked)


def largest_rate(releases: Sequence[Release], **asked: Any) -> float:
    """Return the largest bias of its own coin with which a unit keeps to its own epsilon.

    Args:
        releases: Releases of `PoissonSampled`, all with one rate.
        asked: As for `largest_scale`.

    Returns:
        A rate, at most that of the others, that was accounted and meets the budget.
    """
    (rate,) = {sampled(one).rate for one in releases}
    return rate * _largest(lambda share: rated_releases(releases, rate * share), **asked)


def _largest(
    own: Callable[[float], Sequence[Release]],
    *,
    epsilon: float,
    privacy_model: PrivacyModel,
    delta: float,
    in_full: Sequence[Release] = (),
) -> float:
    """Return the largest share in (0, 1] of what others give with which a unit keeps to epsilon."""
    positive("epsilon", epsilon)

    def cost(inverse: float) -> float:
        listed = [*own(min(1.0, 1 / inverse)), *in_full]
        return fast_epsilon(listed, privacy_model=privacy_model, delta=delta)

    inverse = least_at_most(cost, epsilon, 1.0, least=1.0, most=1 / _LEAST_SHARE)
    if inverse is None:
        raise ConfigError(
            f"epsilon: {epsilon!r} is below the cost of the smallest contribution at delta "
            f"{delta!r}. Use a finer grid, or leave the unit out."
        )
    return min(1.0, 1 / inverse)


def scaled_releases(releases: Sequence[Release], scale: float) -> list[Release]:
    """Return the releases as they concern a unit with `scale` times the clip of the others."""
    return [replace(one, mechanism=one.mechanism.scaled(scale)) for one in releases]


def rated_releases(releases: Sequence[Release], rate: float) -> list[Release]:
    """Return releases of secret samples as they concern a unit whose coin has this bias."""
    return [replace(one, mechanism=replace(sampled(one), rate=rate)) for one in releases]


def sampled(release: Release) -> PoissonSampled:
    """Return the mechanism of a release of secret samples.

    Raises:
        MechanismRefused: The release has none.
    """
    if isinstance(release.mechanism, PoissonSampled):
        return release.mechanism
    raise MechanismRefused(
        f"{release.mechanism.kind} noise has no secret coins that could be rarer for one unit",
        "draw secret batches (training.batches poisson)",
    )
