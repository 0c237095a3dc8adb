"""From a privacy budget to the noise, the rounds or the rate that it buys.

Every answer is accounted again before it is returned and never exceeds the target; the next
smaller noise (0.1 % less), the next round, or a rate 0.1 % larger would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from fedveil.core.arguments import count, delta_value, instance_of, positive
from fedveil.core.errors import ConfigError
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import account, fast_epsilon
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.monotone_search import largest_at_most, least_at_most
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
)
from fedveil.privacy.tuning import Tuning

Noisy = TypeVar("Noisy", bound=Mechanism)

_MOST_ROUNDS = 10**9
_LEAST_RATE = 1e-9


def least_noise(
    releases: Callable[[float], Sequence[Release]],
    *,
    epsilon: float,
    delta: float,
    privacy_model: PrivacyModel,
    guess: float,
    tuning: Tuning | None = None,
    quickly: bool = False,
    least: float = 1e-6,
    most: float = 1e9,
) -> float | None:
    """The least noise with which `releases(noise)` keep to the budget; None if none does.

    `releases` must cost less the higher their noise. `quickly` stops at a little more noise where
    only a slow accountant proves that less will do.
    """
    epsilon, delta = _budget(epsilon, delta, privacy_model)

    def quick(noise: float) -> float:
        return fast_epsilon(
            releases(noise), privacy_model=privacy_model, delta=delta, tuning=tuning
        )

    def reported(noise: float) -> float:
        return account(
            releases(noise), privacy_model=privacy_model, delta=delta, tuning=tuning
        ).epsilon

    noise = least_at_most(quick, epsilon, guess, least=least, most=most)
    if noise is None or quickly or reported(noise) >= 0.999 * quick(noise):
        return noise
    # A slow accountant beats the quick ones: search again with it.
    return least_at_most(reported, epsilon, noise, least=least, most=most) or noise


def calibrate_noise(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    privacy_model: PrivacyModel,
    uses: int = 1,
    participations: int | None = None,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> Gaussian:
    """The least Gaussian noise with which `rounds` rounds (and `also`) keep to the budget.

    >>> import fedveil as fv
    >>> who = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.ZERO_OUT, fv.Trust.CENTRAL)
    >>> noise = fv.calibrate_noise(
    ...     epsilon=4, delta=1e-5, sampling=fv.Poisson(0.01), rounds=1000, privacy_model=who
    ... )
    >>> round(noise.noise_multiplier, 2)  # noise on the sum, in units of the clip
    0.73
    """
    return calibrate_mechanism(
        Gaussian,
        epsilon=epsilon,
        delta=delta,
        sampling=sampling,
        rounds=rounds,
        privacy_model=privacy_model,
        uses=uses,
        participations=participations,
        also=also,
        tuning=tuning,
    )


def calibrate_mechanism(
    make: Callable[[float], Noisy],
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    privacy_model: PrivacyModel,
    uses: int = 1,
    participations: int | None = None,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> Noisy:
    """The mechanism `make(level)` with the least level of noise that keeps to the budget.

    make: Gaussian, Laplace, DiscreteGaussian, or any function whose mechanism costs less the
        higher its argument, such as `lambda std: replace(discrete_sum, share_std=std)`.
    """
    epsilon, delta = _budget(epsilon, delta, privacy_model)
    rounds = count("rounds", rounds)

    def release(noise: float) -> Release:
        return Release(make(noise), sampling, rounds, uses, participations)

    noise = least_noise(
        lambda level: (release(level), *also),
        epsilon=epsilon,
        delta=delta,
        privacy_model=privacy_model,
        guess=_guess_noise(release(1.0), privacy_model, epsilon, delta),
        tuning=tuning,
        least=1e-9,
        most=1e15,
    )
    if noise is None:
        raise ConfigError(f"epsilon: no amount of noise gives {epsilon!r} at delta {delta!r} here")
    return make(noise)


def calibrate_rounds(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    mechanism: Mechanism,
    privacy_model: PrivacyModel,
    uses: int = 1,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> int:
    """The most rounds that keep to the budget (epsilon, delta), everything else given.

    `also` are releases beside these rounds, `uses` how often a cohort is used in a round.

    >>> who = fv.PrivacyModel("client", "zero-out", "central")
    >>> ask = {"sampling": fv.Everyone(), "mechanism": fv.Gaussian(10.0), "privacy_model": who}
    >>> fv.calibrate_rounds(epsilon=1.0, delta=1e-5, **ask)
    7
    """
    epsilon, delta = _budget(epsilon, delta, privacy_model)

    def cost(rounds: int) -> float:
        cohorts = sampling
        if isinstance(sampling, Balanced):
            cohorts = replace(sampling, rounds=rounds)
        releases = [Release(mechanism, cohorts, rounds, uses), *also]
        quick = fast_epsilon(releases, privacy_model=privacy_model, delta=delta, tuning=tuning)
        # A slow accountant may do better, but not by much.
        if not epsilon < quick < 1.5 * epsilon:
            return quick
        return account(releases, privacy_model=privacy_model, delta=delta, tuning=tuning).epsilon

    rounds = largest_at_most(cost, epsilon, _MOST_ROUNDS)
    if rounds is None:
        raise ConfigError(
            f"epsilon: {epsilon!r} does not pay for a single round at delta {delta!r}"
        )
    return rounds


def calibrate_rate(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    mechanism: Mechanism,
    privacy_model: PrivacyModel,
    uses: int = 1,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> Sampling:
    """The sampling of the same kind with the largest rate (or cohort) that keeps to the budget.

    `sampling` says which kind; its own rate or cohort does not matter.

    >>> who = fv.PrivacyModel("client", "zero-out", "central")
    >>> ask = {"rounds": 100, "mechanism": fv.Gaussian(1.0), "privacy_model": who}
    >>> found = fv.calibrate_rate(epsilon=4.0, delta=1e-5, sampling=fv.Poisson(0.1), **ask)
    >>> 0.05 < found.rate < 0.2
    True
    """
    epsilon, delta = _budget(epsilon, delta, privacy_model)
    rounds = count("rounds", rounds)

    def cost(cohorts: Sampling) -> float:
        releases = [Release(mechanism, cohorts, rounds, uses), *also]
        return fast_epsilon(releases, privacy_model=privacy_model, delta=delta, tuning=tuning)

    if isinstance(sampling, Everyone):
        raise ConfigError("sampling: everyone has no rate to find; use poisson or fixed")
    if isinstance(sampling, (FixedSize, RoundRobin, Balanced)):
        cohort = largest_at_most(
            lambda n: cost(replace(sampling, cohort=n)), epsilon, sampling.clients
        )
        if cohort is None:
            raise ConfigError(f"epsilon: {epsilon!r} does not pay for a cohort of one client")
        return replace(sampling, cohort=cohort)
    if isinstance(sampling, Poisson) and cost(replace(sampling, rate=1.0)) <= epsilon:
        return replace(sampling, rate=1.0)
    # The least inverse rate whose cost keeps to the budget.
    inverse = least_at_most(
        lambda x: cost(replace(sampling, rate=min(1 / x, _below_one(sampling)))),
        epsilon,
        10.0,
        least=1.0,
        most=1 / _LEAST_RATE,
    )
    if inverse is None:
        raise ConfigError(f"epsilon: {epsilon!r} pays for no rate above {_LEAST_RATE:g}")
    return replace(sampling, rate=min(1 / inverse, _below_one(sampling)))


def _budget(epsilon: float, delta: float, privacy_model: PrivacyModel) -> tuple[float, float]:
    """Return epsilon and delta as plain numbers, and refuse what is none."""
    instance_of(PrivacyModel)("privacy_model", privacy_model)
    return positive("epsilon", epsilon), delta_value(delta)


def _guess_noise(
    release: Release, privacy_model: PrivacyModel, epsilon: float, delta: float
) -> float:
    """Where to start: the noise for which all rounds together look like one Gaussian."""
    factor = privacy_model.adjacency.sensitivity_factor
    times = release.rounds if release.amplified else release.counted_participations
    times = max(1, times) * release.uses
    if isinstance(release.mechanism, Laplace) or delta == 0:
        return min(max(factor * times / epsilon, 1e-6), 1e12)
    total = 1 / gaussian_noise(min(epsilon, 1e6), delta)
    rate, sampling = 1.0, release.sampling
    if release.amplified and isinstance(sampling, (Poisson, CappedPoisson)):
        rate = max(sampling.rate, _LEAST_RATE)
    elif release.amplified and isinstance(sampling, FixedSize):
        rate = sampling.cohort / sampling.clients
    if rate == 1:
        guess = factor * math.sqrt(times) / total
    else:
        guess = factor / math.sqrt(math.log1p((total / rate) ** 2 / times))
    return min(max(guess, 1e-6), 1e12)


def _below_one(sampling: Sampling) -> float:
    return math.nextafter(1.0, 0.0) if isinstance(sampling, CappedPoisson) else 1.0
