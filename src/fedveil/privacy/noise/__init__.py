"""Noise: exact integers on a grid to protect, fast floats to simulate."""

from fedveil.privacy.noise.ahead import Ahead
from fedveil.privacy.noise.discrete_gaussian import discrete_gaussian
from fedveil.privacy.noise.discrete_laplace import discrete_laplace
from fedveil.privacy.noise.grid import (
    choose_granularity,
    protect_sum,
    protect_sum_laplace,
    share,
    snap_conditional,
    snap_rows,
    snap_rows_stochastic,
    unsnap,
)
from fedveil.privacy.noise.rounded import rounded_gaussian, rounded_laplace
from fedveil.privacy.noise.simulated import gaussian, gaussian_rows, laplace

__all__ = [
    "Ahead",
    "choose_granularity",
    "discrete_gaussian",
    "discrete_laplace",
    "gaussian",
    "gaussian_rows",
    "laplace",
    "protect_sum",
    "protect_sum_laplace",
    "rounded_gaussian",
    "rounded_laplace",
    "share",
    "snap_conditional",
    "snap_rows",
    "snap_rows_stochastic",
    "unsnap",
]
