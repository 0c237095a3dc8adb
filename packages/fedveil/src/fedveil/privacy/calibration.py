"""From a privacy budget to the noise, the rounds or the rate that it buys.

Every answer is accounted again before it is returned and never exceeds the target; the next
smaller noise (0.1 % less), the next round, or a rate 0.1 % larger would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fedveil.core.arguments import count, delta_value, instance_of, positive
from fedveil.core.errors import ConfigError
from fedveil.privacy.accounting import account, fast_epsilon
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.monotone_search import largest_at_most, least_at_most
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    RoundRobin,
    Sampling,
    SecretPoisson,
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
) -> float | None:
    """The least noise with which `releases(noise)` keep to the budget; None if none does.

    `releases` must cost less the higher their noise. `quickly` stops at a little more noise where
    only a slow accountant proves that less will do.
    """
    epsilon, terms = _terms(epsilon, delta, privacy_model, tuning)

    def reported(noise: float) -> float:
        return account(releases(noise), **terms).epsilon

    def quick(noise: float) -> float:
        return fast_epsilon(releases(noise), **terms)

    noise = least_at_most(quick, epsilon, guess)
    if noise is None or quickly or reported(noise) >= 0.999 * quick(noise):
        return noise
    # A slow accountant beats the quick ones: search again with it.
    return least_at_most(reported, epsilon, noise) or noise


def calibrate_noise(**asked: Any) -> Gaussian:
    """Return the least Gaussian noise that keeps to a budget.

    Args:
        asked: What `calibrate_mechanism` takes beside the mechanism.

    >>> import fedveil as fv
    >>> who = fv.PrivacyModel(fv.Unit.CLIENT, fv.Adjacency.ZERO_OUT, fv.Trust.CENTRAL)
    >>> noise = fv.calibrate_noise(
    ...     epsilon=4, delta=1e-5, sampling=fv.Poisson(0.01), rounds=1000, privacy_model=who
    ... )
    >>> round(noise.noise_multiplier, 2)  # noise on the sum, in units of the clip
    0.73
    """
    return calibrate_mechanism(Gaussian, **asked)


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
    """Return the mechanism `make(level)` with the least level of noise that keeps to the budget.

    Args:
        make: Gaussian, Laplace, DiscreteGaussian, or any function whose mechanism costs less the
            higher its argument, such as `lambda std: replace(discrete_sum, share_std=std)`.
        epsilon, delta: The budget, of `rounds` rounds and of `also` together.
        sampling, rounds, uses, participations: As in a `Release`.
        privacy_model: Who is protected from whom.
        also: Other releases from the same data.
        tuning: What is charged for tuning.

    Raises:
        ConfigError: No amount of noise keeps to the budget.
    """
    epsilon, terms = _terms(epsilon, delta, privacy_model, tuning)
    rounds = count("rounds", rounds)
    noise = least_noise(
        lambda level: (Release(make(level), sampling, rounds, uses, participations), *also),
        epsilon=epsilon,
        guess=math.sqrt(rounds) / epsilon,
        **terms,
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
    """Return the largest number of rounds within the budget.

    Args:
        epsilon: The budget.
        delta: Its small probability.
        sampling: Who takes part.
        mechanism: Of each release.
        privacy_model: Who is protected from whom.
        uses: How often a cohort is used in a round.
        also: Releases beside these rounds.
        tuning: Runs that chose settings on the same data, and are charged.

    >>> who = fv.PrivacyModel("client", "zero-out", "central")
    >>> ask = {"sampling": fv.Everyone(), "mechanism": fv.Gaussian(10.0), "privacy_model": who}
    >>> fv.calibrate_rounds(epsilon=1.0, delta=1e-5, **ask)
    7
    """
    epsilon, terms = _terms(epsilon, delta, privacy_model, tuning)

    def cost(rounds: int) -> float:
        cohorts = sampling
        if isinstance(sampling, Balanced):
            cohorts = replace(sampling, rounds=rounds)
        releases = [Release(mechanism, cohorts, rounds, uses), *also]
        quick = fast_epsilon(releases, **terms)
        # A slow accountant may do better, but not by much.
        if not epsilon < quick < 1.5 * epsilon:
            return quick
        return account(releases, **terms).epsilon

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
    """Return the sampling of the same kind with the largest rate, or cohort, within the budget.

    Args:
        epsilon: The budget.
        delta: Its small probability.
        sampling: Of the kind that is wanted; its rate or cohort does not matter.
        rounds: How many rounds.
        mechanism: Of each release.
        privacy_model: Who is protected from whom.
        uses: How often a cohort is used in a round.
        also: Releases beside these rounds.
        tuning: Runs that chose settings on the same data, and are charged.

    >>> who = fv.PrivacyModel("client", "zero-out", "central")
    >>> ask = {"rounds": 100, "mechanism": fv.Gaussian(1.0), "privacy_model": who}
    >>> sampling = fv.calibrate_rate(epsilon=4.0, delta=1e-5, sampling=fv.Poisson(0.1), **ask)
    >>> 0.05 < sampling.rate < 0.2
    True
    """
    epsilon, terms = _terms(epsilon, delta, privacy_model, tuning)
    rounds = count("rounds", rounds)

    def cost(cohorts: Sampling) -> float:
        return fast_epsilon([Release(mechanism, cohorts, rounds, uses), *also], **terms)

    if isinstance(sampling, Everyone | SecretPoisson):
        raise ConfigError("sampling: everyone has no rate to find; use poisson or fixed")
    if isinstance(sampling, FixedSize | RoundRobin | Balanced):
        cohort = largest_at_most(
            lambda n: cost(replace(sampling, cohort=n)), epsilon, sampling.clients
        )
        if cohort is None:
            raise ConfigError(f"epsilon: {epsilon!r} does not pay for a cohort of one client")
        return replace(sampling, cohort=cohort)
    # A capped cohort has a rate below 1.
    largest = math.nextafter(1.0, 0.0) if isinstance(sampling, CappedPoisson) else 1.0

    def at(inverse: float) -> Sampling:
        return replace(sampling, rate=min(1 / inverse, largest))

    inverse = least_at_most(lambda x: cost(at(x)), epsilon, 10.0, least=1.0, most=1 / _LEAST_RATE)
    if inverse is None:
        raise ConfigError(f"epsilon: {epsilon!r} pays for no rate above {_LEAST_RATE:g}")
    return at(inverse)


def _terms(
    epsilon: float, delta: float, privacy_model: PrivacyModel, tuning: Tuning | None
) -> tuple[float, dict[str, Any]]:
    """Return epsilon, and what every account of a search is told; refuse what is no budget."""
    instance_of(PrivacyModel)("privacy_model", privacy_model)
    epsilon, delta = positive("epsilon", epsilon), delta_value(delta)
    return epsilon, {"privacy_model": privacy_model, "delta": delta, "tuning": tuning}
