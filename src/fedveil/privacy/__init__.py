"""Privacy: who is protected, what is released, what it costs.

The names below are the public ones; each is loaded from its module when first used, so that
importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedveil.core.units import Adjacency, Arithmetic, Entropy, Trust, Unit
    from fedveil.privacy.accountants.steps import (
        DENSE,
        MIXED,
        WHOLE,
        GaussianStep,
        LaplaceStep,
        Step,
        ZcdpStep,
    )
    from fedveil.privacy.accounting import account, default_delta, per_client_epsilons
    from fedveil.privacy.calibration import (
        calibrate_mechanism,
        calibrate_noise,
        calibrate_rate,
        calibrate_rounds,
    )
    from fedveil.privacy.contract import Mechanism, Use, mechanism
    from fedveil.privacy.gradient_perturbation import (
        GridGradients,
        NoisyGradients,
        NonExpansive,
        record_uses,
    )
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.privacy.mechanisms import (
        DiscreteGaussian,
        DiscreteGaussianSum,
        Gaussian,
        Laplace,
        NoisyVotes,
        Zcdp,
        joint_noise_multiplier,
        quantile_noise_multiplier,
    )
    from fedveil.privacy.releases import PrivacyModel, Release
    from fedveil.privacy.sampling import (
        Balanced,
        CappedPoisson,
        Everyone,
        FixedSize,
        Poisson,
        RoundRobin,
    )
    from fedveil.privacy.tuning import AllRuns, RandomRuns

_HOMES = {
    "fedveil.core.units": "Adjacency Arithmetic Entropy Trust Unit",
    ".accountants.steps": "DENSE MIXED WHOLE GaussianStep LaplaceStep Step ZcdpStep",
    ".accounting": "account default_delta per_client_epsilons",
    ".calibration": "calibrate_mechanism calibrate_noise calibrate_rate calibrate_rounds",
    ".contract": "Mechanism Use mechanism",
    ".gradient_perturbation": "GridGradients NoisyGradients NonExpansive record_uses",
    ".guarantee": "Guarantee",
    ".mechanisms": "DiscreteGaussian DiscreteGaussianSum Gaussian Laplace NoisyVotes "
    "Zcdp joint_noise_multiplier quantile_noise_multiplier",
    ".releases": "PrivacyModel Release",
    ".sampling": "Balanced CappedPoisson Everyone FixedSize Poisson RoundRobin",
    ".tuning": "AllRuns RandomRuns",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "DENSE", "MIXED", "WHOLE", "Adjacency", "AllRuns", "Arithmetic", "Balanced", "CappedPoisson",
    "DiscreteGaussian", "DiscreteGaussianSum", "Entropy", "Everyone", "FixedSize", "Gaussian",
    "GaussianStep", "GridGradients", "Guarantee", "Laplace", "LaplaceStep", "Mechanism",
    "NoisyGradients", "NoisyVotes", "NonExpansive", "Poisson", "PrivacyModel", "RandomRuns",
    "Release", "RoundRobin", "Step", "Trust", "Unit", "Use", "Zcdp", "ZcdpStep", "account",
    "calibrate_mechanism", "calibrate_noise", "calibrate_rate", "calibrate_rounds",
    "default_delta", "joint_noise_multiplier", "mechanism", "per_client_epsilons",
    "quantile_noise_multiplier", "record_uses",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name], __name__), name)


def __dir__() -> list[str]:
    return __all__
