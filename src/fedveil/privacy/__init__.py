"""Privacy: who is protected, what is released, what it costs.

The names below are the public ones; each is loaded from its module when first used, so that
importing this package costs nothing.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "mechanisms": [
        "DiscreteGaussian",
        "DiscreteGaussianSum",
        "Gaussian",
        "Laplace",
        "NoisyVotes",
        "Zcdp",
        "joint_noise_multiplier",
        "quantile_noise_multiplier",
    ],
    "gradient_perturbation": ["GridGradients", "NoisyGradients", "NonExpansive", "record_uses"],
    "sampling": ["Balanced", "CappedPoisson", "Everyone", "FixedSize", "Poisson", "RoundRobin"],
    "releases": ["Release", "Setting"],
    "tuning": ["AllRuns", "RandomRuns"],
    "accounting": ["account", "default_delta", "per_client_epsilons"],
    "guarantee": ["Guarantee"],
    "calibration": [
        "calibrate_mechanism",
        "calibrate_noise",
        "calibrate_rate",
        "calibrate_rounds",
    ],
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
