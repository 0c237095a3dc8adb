"""From a privacy budget to the noise, the rounds or the rate that it buys.

Every answer is accounted again before it is returned and never exceeds the target; the next
smaller noise (0.1 % less), the next round, or a rate 0.1 % larger would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedveil.core.arguments import (
    check_fields,
    count,
    delta_value,
    instance_of,
    positive,
    settle,
)
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


@dataclass(frozen=True)
class _Question:
    """What is asked again and again with one number changed."""

    epsilon: float
    delta: float
    privacy_model: PrivacyModel
    also: tuple[Release, ...] = ()
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_fields(self, privacy_model=instance_of(PrivacyModel))
        settle(self, epsilon=positive("epsilon", self.epsilon), delta=delta_value(self.delta))

    def cost(self, *releases: Release) -> float:
        """Epsilon by the quick accountants: an upper bound on what is reported."""
        return fast_epsilon((*releases, *self.also), **self._how)

    def reported(self, *releases: Release) -> float:
        return account((*releases, *self.also), **self._how).epsilon

    @property
    def _how(self) -> dict[str, Any]:
        return {"privacy_model": self.privacy_model, "delta": self.delta, "tuning": self.tuning}


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
    question = _Question(epsilon, delta, privacy_model, (), tuning)

    def quick(noise: float) -> float:
        return question.cost(*releases(noise))

    def reported(noise: float) -> float:
        return question.reported(*releases(noise))

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
    question = _Question(epsilon, delta, privacy_model, tuple(also), tuning)
    rounds = count("rounds", rounds)

    def release(noise: float) -> Release:
        return Release(make(noise), sampling, rounds, uses, participations)

    noise = least_noise(
        lambda level: (release(level), *question.also),
        epsilon=question.epsilon,
        delta=question.delta,
        privacy_model=privacy_model,
        guess=_guess_noise(question, release(1.0)),
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
    question = _Question(epsilon, delta, privacy_model, tuple(also), tuning)

    def cost(rounds: int) -> float:
        cohorts = sampling
        if isinstance(sampling, Balanced):
            cohorts = replace(sampling, rounds=rounds)
        release = Release(mechanism, cohorts, rounds, uses)
        quick = question.cost(release)
        # A slow accountant may do better, but not by much.
        near = question.epsilon < quick < 1.5 * question.epsilon
        return question.reported(release) if near else quick

    rounds = largest_at_most(cost, question.epsilon, _MOST_ROUNDS)
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
    question = _Question(epsilon, delta, privacy_model, tuple(also), tuning)
    rounds = count("rounds", rounds)

    def cost(cohorts: Sampling) -> float:
        return question.cost(Release(mechanism, cohorts, rounds, uses))

    if isinstance(sampling, Everyone):
        raise ConfigError("sampling: everyone has no rate to find; use poisson or fixed")
    if isinstance(sampling, (FixedSize, RoundRobin, Balanced)):
        cohort = largest_at_most(
            lambda n: cost(replace(sampling, cohort=n)), question.epsilon, sampling.clients
        )
        if cohort is None:
            raise ConfigError(f"epsilon: {epsilon!r} does not pay for a cohort of one client")
        return replace(sampling, cohort=cohort)
    if isinstance(sampling, Poisson) and cost(replace(sampling, rate=1.0)) <= question.epsilon:
        return replace(sampling, rate=1.0)
    # The least inverse rate whose cost keeps to the budget.
    inverse = least_at_most(
        lambda x: cost(replace(sampling, rate=min(1 / x, _below_one(sampling)))),
        question.epsilon,
        10.0,
        least=1.0,
        most=1 / _LEAST_RATE,
    )
    if inverse is None:
        raise ConfigError(f"epsilon: {epsilon!r} pays for no rate above {_LEAST_RATE:g}")
    return replace(sampling, rate=min(1 / inverse, _below_one(sampling)))


def _guess_noise(question: _Question, release: Release) -> float:
    """Where to start: the noise for which all rounds together look like one Gaussian."""
    factor = question.privacy_model.adjacency.sensitivity_factor
    times = release.rounds if release.amplified else release.counted_participations
    times = max(1, times) * release.uses
    if isinstance(release.mechanism, Laplace) or question.delta == 0:
        return min(max(factor * times / question.epsilon, 1e-6), 1e12)
    total = 1 / gaussian_noise(min(question.epsilon, 1e6), question.delta)
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
