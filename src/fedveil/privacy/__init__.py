"""Privacy: who is protected, what is released, what it costs.

The names below are the public ones; each is loaded from its module when first used, so that
importing this package costs nothing.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "units": ["Adjacency", "Arithmetic", "Entropy", "Trust", "Unit"],
    "mechanisms": ["DiscreteGaussian", "DiscreteGaussianSum", "Gaussian", "Laplace", "Zcdp"],
    "sampling": ["Balanced", "CappedPoisson", "Everyone", "FixedSize", "Poisson", "RoundRobin"],
    "accounting": ["Release", "Setting", "account"],
    "guarantee": ["Guarantee"],
    "calibration": ["calibrate_noise"],
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
