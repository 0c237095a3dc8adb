"""Differentially private federated learning whose guarantees are true.

    import fedveil as fv

    federation = fv.load("digits")
    method = fv.dp_fedavg(
        rounds=60,
        cohort=fv.CohortRule(size=50),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(1.0),
    )
    model = fv.build("logistic", federation)
    plan = fv.plan(method, federation, model, budget=fv.Budget(epsilon=8))
    print(plan.guarantee.statement)
    run = fv.Run(plan)
    print(run.finish())
    trained = run.model()

Names are imported when first used: asking for an epsilon does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveil.core.loading import uncollected

if TYPE_CHECKING:
    from fedveil.client.local_training import GradientClip, LearningRate, LocalTraining, Schedule
    from fedveil.client.update_pipeline import UpdatePipeline
    from fedveil.core.errors import ConfigError, FedveilError, PrivacyRefusal
    from fedveil.data.federation import Examples, Federation, Task
    from fedveil.data.partition import IID, ByOwner
    from fedveil.data.table import from_table
    from fedveil.datasets import load
    from fedveil.datasets.source import Pool, Source
    from fedveil.methods.ae_dpfl import ae_dpfl
    from fedveil.methods.bounded_sparse import bounded_sparse
    from fedveil.methods.client_noise import client_noise
    from fedveil.methods.ddgauss import ddgauss
    from fedveil.methods.dp_fedavg import dp_fedavg
    from fedveil.methods.fedavg import fedavg, fedprox, fedsgd
    from fedveil.methods.gradient_noise import dp_sgd, gradient_noise
    from fedveil.methods.laplacian_smoothing import dp_fed, laplacian_smoothing
    from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
    from fedveil.methods.parts.aggregation import Aggregation, Secure
    from fedveil.methods.parts.central_noise import CentralNoise
    from fedveil.methods.parts.distributed_noise import DistributedNoise
    from fedveil.methods.parts.local_noise import LocalNoise
    from fedveil.methods.parts.method import CohortRule, Method, Scheme, Voting
    from fedveil.methods.parts.noise_placement import Noise, NoisePlacement
    from fedveil.methods.registry import Key, method
    from fedveil.models.zoo import build
    from fedveil.planning.plan import Budget, Plan, plan
    from fedveil.privacy.accounting import PrivacyModel, Release, account
    from fedveil.privacy.clipping import Clip
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.recipes.sections import Recipe
    from fedveil.run.directory import RunDirectory
    from fedveil.run.run import Run, Speed
    from fedveil.server.optimizers import Adam, Sgd
    from fedveil.server.smoothing import Smoothing

_HOMES = {
    "fedveil.data.federation": ("Examples", "Federation", "Task"),
    "fedveil.data.partition": ("IID", "ByOwner"),
    "fedveil.datasets": ("load",),
    "fedveil.datasets.source": ("Pool", "Source"),
    "fedveil.data.table": ("from_table",),
    "fedveil.run.directory": ("RunDirectory",),
    "fedveil.run.run": ("Run", "Speed"),
    "fedveil.core.errors": ("ConfigError", "FedveilError", "PrivacyRefusal"),
    "fedveil.client.local_training": ("GradientClip", "LearningRate", "LocalTraining", "Schedule"),
    "fedveil.client.update_pipeline": ("UpdatePipeline",),
    "fedveil.methods.ae_dpfl": ("ae_dpfl",),
    "fedveil.methods.registry": ("Key", "method"),
    "fedveil.recipes.sections": ("Recipe",),
    "fedveil.methods.parts.aggregation": ("Aggregation", "Secure"),
    "fedveil.methods.parts.central_noise": ("CentralNoise",),
    "fedveil.methods.bounded_sparse": ("bounded_sparse",),
    "fedveil.methods.parts.adaptive_clipping": ("AdaptiveClipping",),
    "fedveil.methods.ddgauss": ("ddgauss",),
    "fedveil.methods.dp_fedavg": ("dp_fedavg",),
    "fedveil.methods.fedavg": ("fedavg", "fedprox", "fedsgd"),
    "fedveil.methods.client_noise": ("client_noise",),
    "fedveil.methods.gradient_noise": ("dp_sgd", "gradient_noise"),
    "fedveil.methods.laplacian_smoothing": ("dp_fed", "laplacian_smoothing"),
    "fedveil.methods.parts.local_noise": ("LocalNoise",),
    "fedveil.methods.parts.method": ("CohortRule", "Method", "Scheme", "Voting"),
    "fedveil.methods.parts.noise_placement": ("Noise", "NoisePlacement"),
    "fedveil.methods.parts.distributed_noise": ("DistributedNoise",),
    "fedveil.models.zoo": ("build",),
    "fedveil.planning.plan": ("Budget", "Plan", "plan"),
    "fedveil.privacy.accounting": ("Release", "PrivacyModel", "account"),
    "fedveil.privacy.clipping": ("Clip",),
    "fedveil.privacy.guarantee": ("Guarantee",),
    "fedveil.server.optimizers": ("Adam", "Sgd"),
    "fedveil.server.smoothing": ("Smoothing",),
}
# Earlier names, by their papers' authors, and today's.
_RENAMED = {"cheng": "bounded_sparse", "fu": "client_noise", "hu": "gradient_noise"}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "IID",
    "Adam",
    "AdaptiveClipping",
    "Aggregation",
    "Budget",
    "ByOwner",
    "CentralNoise",
    "Clip",
    "CohortRule",
    "ConfigError",
    "DistributedNoise",
    "Examples",
    "Federation",
    "FedveilError",
    "GradientClip",
    "Guarantee",
    "Key",
    "LearningRate",
    "LocalNoise",
    "LocalTraining",
    "Method",
    "Noise",
    "NoisePlacement",
    "Plan",
    "Pool",
    "PrivacyModel",
    "PrivacyRefusal",
    "Recipe",
    "Release",
    "Run",
    "RunDirectory",
    "Schedule",
    "Scheme",
    "Secure",
    "Sgd",
    "Smoothing",
    "Source",
    "Speed",
    "Task",
    "UpdatePipeline",
    "Voting",
    "account",
    "ae_dpfl",
    "bounded_sparse",
    "build",
    "client_noise",
    "ddgauss",
    "dp_fed",
    "dp_fedavg",
    "dp_sgd",
    "fedavg",
    "fedprox",
    "fedsgd",
    "from_table",
    "gradient_noise",
    "laplacian_smoothing",
    "load",
    "method",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from warnings import warn

        warn(f"fedveil.{name} is now {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    with uncollected():
        value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
