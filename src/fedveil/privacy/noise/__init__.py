"""Noise: exact integers on a grid to protect, fast floats to simulate."""

from fedveil.privacy.noise.discrete_gaussian import discrete_gaussian
from fedveil.privacy.noise.discrete_laplace import discrete_laplace
from fedveil.privacy.noise.rounded_gaussian import rounded_gaussian
from fedveil.privacy.noise.simulated import gaussian, laplace

__all__ = [
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "laplace",
    "rounded_gaussian",
]
