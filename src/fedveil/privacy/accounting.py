"""What a series of releases costs: `account` turns releases in a setting into a Guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fedveil.errors import BadInput
from fedveil.privacy.accountants.exact import exact_epsilon, pure_epsilon
from fedveil.privacy.accountants.pld import pld_epsilon
from fedveil.privacy.accountants.rdp import rdp_epsilon
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.arguments import delta_value
from fedveil.privacy.guarantee import _TOKEN, Guarantee
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.refusals import DeltaRefused
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import sampling_kind
from fedveil.privacy.translation import honest_shares, step_of
from fedveil.privacy.units import Arithmetic, Entropy, Trust

__all__ = ["Release", "Setting", "account"]


def account(releases: Sequence[Release], *, setting: Setting, delta: float) -> Guarantee:
    """The guarantee of all `releases` together, at `delta`. Pure, and cached."""
    return _account(tuple(releases), setting, delta_value(delta))


@lru_cache(maxsize=4096)
def _account(releases: tuple[Release, ...], setting: Setting, delta: float) -> Guarantee:
    if not releases:
        raise BadInput("releases: need at least one")
    _check_delta(releases, setting, delta)
    steps = tuple(step_of(release, setting) for release in releases)
    alternatives = _alternatives(tuple(step for step in steps if step.count), delta)
    accountant = min(alternatives, key=lambda name: alternatives[name])
    reason = _why_not(releases, setting)
    shares = [honest_shares(release, setting) for release in releases]
    return Guarantee(
        epsilon=alternatives[accountant],
        delta=delta,
        accountant=accountant,
        alternatives=alternatives,
        theorem="",
        sampling=" + ".join(dict.fromkeys(sampling_kind(item.sampling) for item in releases)),
        rounds=sum(release.rounds for release in releases),
        participations=sum(release.counted_participations for release in releases),
        honest_shares=min((item for item in shares if item is not None), default=None),
        noise_multiplier=_multiplier(releases),
        certified=not reason,
        reason=reason,
        releases=releases,
        setting=setting,
        _token=_TOKEN,
    )


def _check_delta(releases: tuple[Release, ...], setting: Setting, delta: float) -> None:
    known = setting.population
    if known is not None and delta >= 1 / known:
        raise DeltaRefused(
            f"delta {delta:g} is not below 1/{known}: publishing one random {setting.unit} whole "
            "would satisfy it",
            f"use {min(1e-5, known**-1.1):.3g}",
        )


@lru_cache(maxsize=4096)
def _alternatives(steps: tuple[Step, ...], delta: float) -> dict[str, float]:
    if not steps:
        return {"exact": 0.0}
    exact = exact_epsilon(steps, delta)
    if exact is not None:
        return {"exact": exact}
    found = {"pure": pure_epsilon(steps)}
    if delta > 0:
        found |= {"pld": pld_epsilon(steps, delta), "rdp": rdp_epsilon(steps, delta)}
    return {name: value for name, value in found.items() if value is not None}


def _multiplier(releases: tuple[Release, ...]) -> float | None:
    found = {getattr(item.mechanism, "noise_multiplier", None) for item in releases}
    return found.pop() if len(found) == 1 else None


def _why_not(releases: tuple[Release, ...], setting: Setting) -> str:
    if setting.entropy is not Entropy.SYSTEM:
        return "the noise comes from a seed, so whoever knows it can subtract the noise"
    if setting.arithmetic is not Arithmetic.EXACT:
        return "floating-point noise leaks through its low-order bits"
    if setting.trust is Trust.DISTRIBUTED and any(
        isinstance(release.mechanism, Gaussian) for release in releases
    ):
        return "continuous noise shares cannot be summed in the integers of a secure sum"
    return ""
