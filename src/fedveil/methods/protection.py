"""Where a method's noise is added, and which release that makes.

A protection ties two things that must never drift apart: the noise that is drawn, and the privacy
event that is accounted for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.errors import Refused
from fedveil.local.shaping import Shaping
from fedveil.privacy.accounting import Release, Setting
from fedveil.privacy.calibration import calibrate_noise
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.noise import choose_granularity, gaussian, protect_sum
from fedveil.privacy.sampling import Balanced, FixedSize, RoundRobin, Sampling
from fedveil.privacy.units import Adjacency, Trust, Unit
from fedveil.randomness import Randomness

Cohort = npt.NDArray[np.int64]


class Protection(Protocol):
    """What a Method says about its noise; the noise multiplier is decided by the plan."""

    @property
    def unit(self) -> Unit: ...

    @property
    def trust(self) -> Trust: ...

    def adjacency(self, sampling: Sampling) -> Adjacency:
        """Which change of one unit is hidden under this sampling."""
        ...

    def releases(
        self, noise_multiplier: float, sampling: Sampling, rounds: int
    ) -> tuple[Release, ...]:
        """Everything that leaves in `rounds` rounds."""
        ...

    def calibrate(
        self, epsilon: float, delta: float, sampling: Sampling, rounds: int, setting: Setting
    ) -> float:
        """The least noise multiplier with which `rounds` rounds keep to the budget."""
        ...

    def granularity(
        self, shaping: Shaping, noise_multiplier: float, parameters: int, cohort: int
    ) -> float:
        """The grid on which the exact arithmetic works, for at most `cohort` clients a round."""
        ...

    def protect(
        self,
        total: Tensor,
        shaping: Shaping,
        noise_multiplier: float,
        cohort: Cohort,
        round: int,
        randomness: Randomness,
    ) -> Tensor:
        """The private sum, float32 `[parameters]`, from the engine's sum of shaped updates."""
        ...


@dataclass(frozen=True)
class CentralGaussian:
    """A trusted aggregator adds N(0, (z C)^2) to every coordinate of the sum of clipped updates.

    Exact arithmetic: the updates are integers on a grid, the sum is exact, and the noise is a
    continuous Gaussian rounded to the grid, which is post-processing of the continuous mechanism.
    """

    unit: Unit = Unit.CLIENT
    trust: Trust = Trust.CENTRAL

    def adjacency(self, sampling: Sampling) -> Adjacency:
        """A client that is not there shifts everybody's turn in a schedule: there, it is zeroed."""
        if isinstance(sampling, FixedSize):
            return Adjacency.REPLACE
        if isinstance(sampling, RoundRobin | Balanced):
            return Adjacency.ZERO_OUT
        return Adjacency.ADD_REMOVE

    def releases(
        self, noise_multiplier: float, sampling: Sampling, rounds: int
    ) -> tuple[Release, ...]:
        return (Release(Gaussian(noise_multiplier), sampling, rounds),)

    def calibrate(
        self, epsilon: float, delta: float, sampling: Sampling, rounds: int, setting: Setting
    ) -> float:
        return least_gaussian(epsilon, delta, sampling, rounds, setting)

    def granularity(
        self, shaping: Shaping, noise_multiplier: float, parameters: int, cohort: int
    ) -> float:
        norm = clip_norm(shaping)
        return choose_granularity(norm, noise_multiplier * norm, parameters, cohort)

    def protect(
        self,
        total: Tensor,
        shaping: Shaping,
        noise_multiplier: float,
        cohort: Cohort,
        round: int,
        randomness: Randomness,
    ) -> Tensor:
        std = noise_multiplier * clip_norm(shaping)
        stream = randomness.stream("noise", round)
        if shaping.granularity is None:
            noise = torch.from_numpy(gaussian(stream, len(total), std))
            return (total + noise).float()
        noisy = protect_sum(total.numpy(), std, shaping.granularity, stream)
        return torch.from_numpy(noisy * shaping.granularity).float()


def least_gaussian(
    epsilon: float, delta: float, sampling: Sampling, rounds: int, setting: Setting
) -> float:
    """The least multiplier of Gaussian noise on one release a round that keeps to the budget."""
    found = calibrate_noise(
        epsilon=epsilon, delta=delta, sampling=sampling, rounds=rounds, setting=setting
    )
    if not isinstance(found, Gaussian):
        raise TypeError(f"calibration gave {found!r} where Gaussian noise was asked for")
    return found.noise_multiplier


def clip_norm(shaping: Shaping) -> float:
    """The bound on one client's contribution; without one there is no sensitivity and no epsilon."""
    if shaping.clip is None:
        raise Refused(
            "updates are not clipped, so one client may change the sum without bound",
            "set privacy.clip_norm",
        )
    return shaping.clip.norm
