"""Scores for a choice of local steps and rounds: convergence bounds with the papers' errors mended.

A score looks at whole arrays of choices at once. Fu's is a bound for smooth, strongly convex
losses, as sound as the constants given to it; Hu's and Cheng's are heuristics and say so. No
constant may be measured on private data: they come from the user, or from public or proxy data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import ConfigError
from fedveil_lab.reproduction.claims.claim import check
from fedveil_lab.reproduction.claims.hu import convergence_terms


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Standard deviation over sensitivity of the exact Gaussian mechanism."""
    from dp_accounting import gaussian_mechanism  # half a second that others need not wait

    check("epsilon", epsilon)
    check("delta", delta)
    return float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))


Numbers = NDArray[np.float64]


class Score(Protocol):
    """A number to make small; infinite where it does not apply."""

    name: ClassVar[str]
    heuristic: ClassVar[str]  # why it is only a heuristic; empty for a bound

    def __call__(self, local_steps: Numbers, rounds: Numbers) -> Numbers: ...


@dataclass(frozen=True)
class FuBound:
    """Theorem 3 of Fu et al.: a bound on the expected squared distance to the optimum.

    strong_convexity, smoothness: mu and lambda (L) of the losses.
    gradient_bound: G, on the norm of every client's gradient.
    heterogeneity: Gamma, the optimum minus the mean of the clients' own optima.
    initial_distance: squared distance to the optimum at the start.
    noise_constant, growth: C_M and z; a round's averaged noise has variance of at most
        eta^2 * C_M * local_steps^2 * rounds^z (z = 2 Laplace, 1 Gaussian).
    noise_curve: pairs (rounds, C_M * rounds^z) from an accountant, in order; then the noise is read
        off between them and `noise_constant`, `growth` serve the rules of thumb only.

    The learning rate is 2/(mu*(k + max(8*lambda/mu, local_steps))) at step k.
    """

    strong_convexity: float
    smoothness: float
    gradient_bound: float
    heterogeneity: float
    initial_distance: float
    clients: int
    cohort: int
    noise_constant: float
    growth: float
    noise_curve: tuple[tuple[float, float], ...] = ()
    name: ClassVar[str] = "fu"
    heuristic: ClassVar[str] = ""

    def __post_init__(self) -> None:
        _check(self, "heterogeneity", "noise_constant", "growth")
        if self.growth > 2:
            raise ConfigError(
                "growth: must be at most 2 (2 for Laplace noise, 1 for Gaussian), got "
                f"{self.growth:g}"
            )
        if self.strong_convexity > self.smoothness:
            raise ConfigError(
                f"strong_convexity = {self.strong_convexity:g} is above smoothness = "
                f"{self.smoothness:g}: a loss cannot be more strongly convex than it is smooth"
            )

    def __call__(self, local_steps: Numbers, rounds: Numbers) -> Numbers:
        return self.after(local_steps * rounds, local_steps, rounds)

    def after(self, steps: Numbers, local_steps: Numbers, rounds: Numbers) -> Numbers:
        """The bound after `steps` steps of a run whose noise is made for `rounds` rounds."""
        squared = self.gradient_bound**2
        without_noise = (
            6 * self.smoothness * self.heterogeneity
            + 8 * (local_steps - 1) ** 2 * squared
            + 4 * local_steps**2 * squared * self.sampling_error
        )
        noise = local_steps**2 * self._variance(rounds)
        offset = np.maximum(8 * self.smoothness / self.strong_convexity, local_steps)
        scale = 4 / self.strong_convexity**2
        done = np.floor_divide(steps, local_steps)
        settled = (scale * without_noise + offset * self.initial_distance) / (steps + offset)
        result: Numbers = settled + scale * done * noise / (steps + offset - 1) ** 2
        return result

    def _variance(self, rounds: Numbers) -> Numbers:
        """Variance of a round's averaged noise over (eta * local_steps)^2."""
        if self.noise_curve:
            known, values = np.log(np.array(self.noise_curve)).T
            wanted = np.log(rounds)
            # Beyond the last pair the curve goes on as steeply as it came.
            slope = (values[-1] - values[-2]) / (known[-1] - known[-2]) if len(known) > 1 else 0.0
            beyond = slope * np.maximum(0.0, wanted - known[-1])
            between: Numbers = np.exp(np.interp(wanted, known, values) + beyond)
            return between
        variance: Numbers = self.noise_constant * np.asarray(rounds, np.float64) ** self.growth
        return variance

    @property
    def sampling_error(self) -> float:
        """(N-b)/((N-1)b): variance of a mean over a cohort; 0 if everybody takes part."""
        if self.cohort == self.clients:
            return 0.0
        return (self.clients - self.cohort) / ((self.clients - 1) * self.cohort)


@dataclass(frozen=True)
class HuScore:
    """Theorem 2 of Hu et al. with its constants mended: a bound on the mean squared gradient norm.

    Noise of std sigma is added to every mean gradient. With `epsilon` and `delta` it is calibrated
    by what is proved for one record: `2*G/batch_size * e*min(1/sqrt(e), 1/sqrt(h))` a round, where
    e counts the record's uses and h the honest shares that may be credited (1: no credit; more
    only with the convex certificate or one local step).
    """

    initial_gap: float
    learning_rate: float
    smoothness: float
    gradient_variance: float
    gradient_bound: float
    batch_size: int
    records: int
    dimension: int
    clients: int
    cohort: int
    epsilon: float
    delta: float
    honest_shares: int = 1
    name: ClassVar[str] = "hu"
    heuristic: ClassVar[str] = (
        "heuristic: Hu's theorem ignores that clients differ; with different clients it is false"
    )

    def __post_init__(self) -> None:
        _check(self, "gradient_variance")
        _at_most("batch_size", self.batch_size, "records", self.records)
        _at_most("honest_shares", self.honest_shares, "cohort", self.cohort)

    def __call__(self, local_steps: Numbers, rounds: Numbers) -> Numbers:
        condition = self.learning_rate * self.smoothness
        allowed = 5 * condition + 6 * (local_steps * condition) ** 2 <= 1
        variance = self.noise_variance(local_steps, rounds)
        return np.where(allowed, self.with_variance(variance, local_steps, rounds), np.inf)

    def with_variance(self, variance: Numbers, local_steps: Numbers, rounds: Numbers) -> Numbers:
        """The theorem for noise of this variance, where its condition on the rate holds."""
        noise, drift = convergence_terms(
            self.learning_rate,
            self.smoothness,
            self.gradient_variance,
            self.batch_size,
            self.dimension,
            np.sqrt(variance),
            self.cohort,
            local_steps,
        )
        start = 2 * self.initial_gap / (self.learning_rate * local_steps * rounds)
        return np.asarray(start + noise + drift)

    def noise_variance(self, local_steps: Numbers, rounds: Numbers) -> Numbers:
        """sigma^2 of the noise on every step's mean gradient that the budget asks for."""
        uses = np.ceil(local_steps / (self.records // self.batch_size))
        turns = np.ceil(rounds * self.cohort / self.clients)
        credit = np.minimum(uses, uses**2 / self.honest_shares)
        unit = 2 * self.gradient_bound / self.batch_size * gaussian_sigma(self.epsilon, self.delta)
        variance: Numbers = unit**2 * credit * turns
        return variance


@dataclass(frozen=True)
class ChengScore:
    """Corollary 1 of Cheng et al. with every constant it leaves open set to one."""

    learning_rate: float
    server_learning_rate: float
    dimension: int
    clients: int
    cohort: int
    epsilon: float
    delta: float
    name: ClassVar[str] = "cheng"
    heuristic: ClassVar[str] = (
        "heuristic: the corollary gives orders of growth only; its constants are set to one"
    )

    def __post_init__(self) -> None:
        _check(self)

    def __call__(self, local_steps: Numbers, rounds: Numbers) -> Numbers:
        speed = self.server_learning_rate * self.learning_rate
        travelled = speed * local_steps * rounds
        noise = self.dimension * math.log(1 / self.delta) / (self.clients * self.epsilon) ** 2
        result: Numbers = (
            1 / travelled
            + (self.learning_rate * local_steps) ** 2
            + speed / self.cohort
            + travelled * noise
        )
        return result


def _check(score: FuBound | HuScore | ChengScore, *or_zero: str) -> None:
    """Refuse numbers that a score's constants cannot be."""
    for field in fields(score):
        if field.type in ("int", "float"):
            check(field.name, getattr(score, field.name), zero=field.name in or_zero)
    _at_most("cohort", score.cohort, "clients", score.clients)


def _at_most(name: str, value: int, limit: str, most: int) -> None:
    if value > most:
        raise ConfigError(f"{name}: must be at most {limit}={most}, got {value}")
