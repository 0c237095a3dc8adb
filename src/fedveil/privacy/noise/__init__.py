"""Noise: exact integers on a grid to protect, fast floats to simulate."""

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
from fedveil.privacy.noise.integers import (
    Ahead,
    discrete_gaussian,
    discrete_laplace,
    rounded_gaussian,
    rounded_laplace,
)
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
