"""From a privacy budget to the noise that meets it."""

from __future__ import annotations

from fedveil.privacy.accounting import account
from fedveil.privacy.arguments import positive
from fedveil.privacy.mechanisms import Gaussian
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import Sampling


def calibrate_noise(
    *, epsilon: float, delta: float, sampling: Sampling, rounds: int, setting: Setting
) -> Gaussian:
    """The least Gaussian noise whose accounted epsilon does not exceed `epsilon`."""
    epsilon = positive("epsilon", epsilon)

    def cost(noise: float) -> float:
        release = Release(Gaussian(noise), sampling, rounds)
        return account([release], setting=setting, delta=delta).epsilon

    low, high = 0.5, 1.0
    while cost(high) > epsilon:
        low, high = high, 2 * high
    while cost(low) <= epsilon:
        low, high = low / 2, low
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return Gaussian(high)
