"""From a privacy budget to the noise, the rounds or the rate that it buys.

Every answer is accounted again before it is returned and never exceeds the target; the next
smaller noise (0.1 % less), the next round, or a rate 0.1 % larger would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedveil.errors import BadInput
from fedveil.privacy.accountants.exact import gaussian_noise
from fedveil.privacy.accounting import account, fast_epsilon
from fedveil.privacy.arguments import LARGEST_COUNT, count, delta_value, positive
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Mechanism,
)
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.root import least_at_most
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

_MOST_ROUNDS = 10**9
_LEAST_RATE = 1e-9


@dataclass(frozen=True)
class _Question:
    """What is asked again and again with one number changed."""

    epsilon: float
    delta: float
    setting: Setting
    also: tuple[Release, ...]
    tuning: Tuning | None

    def cost(self, release: Release) -> float:
        """Epsilon of the release by the quick accountants: an upper bound on what is reported."""
        return fast_epsilon(
            (release, *self.also), setting=self.setting, delta=self.delta, tuning=self.tuning
        )

    def reported(self, release: Release) -> float:
        return account(
            (release, *self.also), setting=self.setting, delta=self.delta, tuning=self.tuning
        ).epsilon


def calibrate_noise(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    setting: Setting,
    mechanism: type[Gaussian | Laplace | DiscreteGaussian] | DiscreteGaussianSum = Gaussian,
    uses: int = 1,
    participations: int | None = None,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> Gaussian | Laplace | DiscreteGaussian | DiscreteGaussianSum:
    """The least noise with which `rounds` rounds (and the releases `also`) keep to the budget.

    mechanism: Gaussian, Laplace or DiscreteGaussian; or a DiscreteGaussianSum whose share_std is
        to be found and whose other fields hold.
    """
    question = _question(epsilon, delta, setting, also, tuning)
    rounds = count("rounds", rounds)

    def release(noise: float) -> Release:
        return Release(_with_noise(mechanism, noise), sampling, rounds, uses, participations)

    guess = _guess_noise(question, release(1.0), mechanism)
    noise = least_at_most(lambda x: question.cost(release(x)), question.epsilon, guess)
    if noise is None:
        raise BadInput(f"epsilon: no amount of noise gives {epsilon!r} at delta {delta!r} here")
    # Where a slow accountant beats the quick ones, less noise will do: search again with it.
    if question.reported(release(noise)) < 0.999 * question.cost(release(noise)):
        noise = least_at_most(lambda x: question.reported(release(x)), question.epsilon, noise)
    return _with_noise(mechanism, noise or math.inf)


def calibrate_rounds(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    mechanism: Mechanism,
    setting: Setting,
    uses: int = 1,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> int:
    """The most rounds that keep to the budget."""
    question = _question(epsilon, delta, setting, also, tuning)

    def fits(rounds: int) -> bool:
        cohorts = sampling
        if isinstance(sampling, Balanced):
            cohorts = replace(sampling, rounds=rounds)
        release = Release(mechanism, cohorts, rounds, uses)
        return question.cost(release) <= question.epsilon or (
            question.reported(release) <= question.epsilon
        )

    if not fits(1):
        raise BadInput(f"epsilon: {epsilon!r} does not pay for a single round at delta {delta!r}")
    return _largest(fits, _MOST_ROUNDS)


def calibrate_rate(
    *,
    epsilon: float,
    delta: float,
    sampling: Sampling,
    rounds: int,
    mechanism: Mechanism,
    setting: Setting,
    uses: int = 1,
    also: Sequence[Release] = (),
    tuning: Tuning | None = None,
) -> Sampling:
    """The sampling of the same kind with the largest rate (or cohort) that keeps to the budget."""
    question = _question(epsilon, delta, setting, also, tuning)
    rounds = count("rounds", rounds)

    def cost(cohorts: Sampling) -> float:
        return question.cost(Release(mechanism, cohorts, rounds, uses))

    if isinstance(sampling, Everyone):
        raise BadInput("sampling: everyone has no rate to find; use poisson or fixed")
    if isinstance(sampling, (FixedSize, RoundRobin, Balanced)):
        if cost(replace(sampling, cohort=1)) > question.epsilon:
            raise BadInput(f"epsilon: {epsilon!r} does not pay for a cohort of one client")
        fits = lambda n: cost(replace(sampling, cohort=n)) <= question.epsilon  # noqa: E731
        return replace(sampling, cohort=_largest(fits, sampling.clients))
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
        raise BadInput(f"epsilon: {epsilon!r} pays for no rate above {_LEAST_RATE:g}")
    return replace(sampling, rate=min(1 / inverse, _below_one(sampling)))


def _question(
    epsilon: float, delta: float, setting: Setting, also: Sequence[Release], tuning: Tuning | None
) -> _Question:
    return _Question(positive("epsilon", epsilon), delta_value(delta), setting, tuple(also), tuning)


def _with_noise(
    mechanism: type[Gaussian | Laplace | DiscreteGaussian] | DiscreteGaussianSum, noise: float
) -> Gaussian | Laplace | DiscreteGaussian | DiscreteGaussianSum:
    if isinstance(mechanism, DiscreteGaussianSum):
        return replace(mechanism, share_std=noise)
    return mechanism(noise)


def _guess_noise(
    question: _Question,
    release: Release,
    mechanism: type[Gaussian | Laplace | DiscreteGaussian] | DiscreteGaussianSum,
) -> float:
    """Where to start: the noise for which all rounds together look like one Gaussian."""
    factor = question.setting.adjacency.sensitivity_factor
    times = max(1, (release.rounds if release.amplified else release.counted_participations))
    times *= release.uses
    if mechanism is Laplace or question.delta == 0:
        return min(max(factor * times / question.epsilon, 1e-6), 1e12)
    total = 1 / gaussian_noise(min(question.epsilon, 1e6), question.delta)
    rate = 1.0
    if release.amplified:
        sampling = release.sampling
        if isinstance(sampling, (Poisson, CappedPoisson)):
            rate = sampling.rate
        elif isinstance(sampling, FixedSize):
            rate = sampling.cohort / sampling.clients
    guess = factor / math.sqrt(math.log1p((total / rate) ** 2 / times))
    if rate == 1:
        guess = factor * math.sqrt(times) / total
    if isinstance(mechanism, DiscreteGaussianSum):
        guess *= mechanism.clip_norm / math.sqrt(mechanism.shares)
    return min(max(guess, 1e-6), 1e12)


def _below_one(sampling: Sampling) -> float:
    return math.nextafter(1.0, 0.0) if isinstance(sampling, CappedPoisson) else 1.0


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest whole number up to `most` that fits, if all smaller ones do; 1 does."""
    low, high = 1, 2
    most = min(most, LARGEST_COUNT)
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
