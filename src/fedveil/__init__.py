"""Differentially private federated learning whose guarantees are true.

    import fedveil as fv

    federation = fv.load("digits")
    method = fv.dp_fedavg(
        rounds=60,
        cohort=fv.CohortRule(size=50),
        local=fv.LocalRule(fv.LearningRate(0.5), epochs=1),
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

from fedveil.loading import uncollected

if TYPE_CHECKING:
    from fedveil.data.federation import Examples, Federation, Task
    from fedveil.data.sources import load
    from fedveil.data.table import from_table
    from fedveil.engine.directory import RunDirectory
    from fedveil.engine.run import Run, Speed
    from fedveil.errors import BadInput, FedveilError, Refused
    from fedveil.local.rule import GradientClip, LearningRate, LocalRule, Schedule
    from fedveil.methods.ae_dpfl import ae_dpfl
    from fedveil.methods.aggregation import Aggregation, Secure
    from fedveil.methods.central_noise import CentralNoise
    from fedveil.methods.cheng import cheng
    from fedveil.methods.clip_rules import ClipTracking
    from fedveil.methods.ddgauss import ddgauss
    from fedveil.methods.dp_fedavg import dp_fedavg
    from fedveil.methods.fedavg import fedavg, fedprox, fedsgd
    from fedveil.methods.fu import fu
    from fedveil.methods.hu import dp_sgd, hu
    from fedveil.methods.liang import dp_fed
    from fedveil.methods.local_noise import LocalNoise
    from fedveil.methods.method import CohortRule, Method, Scheme, Voting
    from fedveil.methods.protection import Noise
    from fedveil.methods.shared_noise import SharedNoise
    from fedveil.models.zoo import build
    from fedveil.planning.plan import Budget, Plan, plan
    from fedveil.privacy.accounting import Release, Setting, account
    from fedveil.privacy.clipping import Clip
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.server.optimizers import Adam, Sgd
    from fedveil.server.smoothing import Smoothing

_HOMES = {
    "fedveil.data.federation": ("Examples", "Federation", "Task"),
    "fedveil.data.sources": ("load",),
    "fedveil.data.table": ("from_table",),
    "fedveil.engine.directory": ("RunDirectory",),
    "fedveil.engine.run": ("Run", "Speed"),
    "fedveil.errors": ("BadInput", "FedveilError", "Refused"),
    "fedveil.local.rule": ("GradientClip", "LearningRate", "LocalRule", "Schedule"),
    "fedveil.methods.ae_dpfl": ("ae_dpfl",),
    "fedveil.methods.aggregation": ("Aggregation", "Secure"),
    "fedveil.methods.central_noise": ("CentralNoise",),
    "fedveil.methods.cheng": ("cheng",),
    "fedveil.methods.clip_rules": ("ClipTracking",),
    "fedveil.methods.ddgauss": ("ddgauss",),
    "fedveil.methods.dp_fedavg": ("dp_fedavg",),
    "fedveil.methods.fedavg": ("fedavg", "fedprox", "fedsgd"),
    "fedveil.methods.fu": ("fu",),
    "fedveil.methods.hu": ("dp_sgd", "hu"),
    "fedveil.methods.liang": ("dp_fed",),
    "fedveil.methods.local_noise": ("LocalNoise",),
    "fedveil.methods.method": ("CohortRule", "Method", "Scheme", "Voting"),
    "fedveil.methods.protection": ("Noise",),
    "fedveil.methods.shared_noise": ("SharedNoise",),
    "fedveil.models.zoo": ("build",),
    "fedveil.planning.plan": ("Budget", "Plan", "plan"),
    "fedveil.privacy.accounting": ("Release", "Setting", "account"),
    "fedveil.privacy.clipping": ("Clip",),
    "fedveil.privacy.guarantee": ("Guarantee",),
    "fedveil.server.optimizers": ("Adam", "Sgd"),
    "fedveil.server.smoothing": ("Smoothing",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Adam",
    "Aggregation",
    "BadInput",
    "Budget",
    "CentralNoise",
    "Clip",
    "ClipTracking",
    "CohortRule",
    "Examples",
    "Federation",
    "FedveilError",
    "GradientClip",
    "Guarantee",
    "LearningRate",
    "LocalNoise",
    "LocalRule",
    "Method",
    "Noise",
    "Plan",
    "Refused",
    "Release",
    "Run",
    "RunDirectory",
    "Schedule",
    "Scheme",
    "Secure",
    "Setting",
    "Sgd",
    "SharedNoise",
    "Smoothing",
    "Speed",
    "Task",
    "Voting",
    "account",
    "ae_dpfl",
    "build",
    "cheng",
    "ddgauss",
    "dp_fed",
    "dp_fedavg",
    "dp_sgd",
    "fedavg",
    "fedprox",
    "fedsgd",
    "from_table",
    "fu",
    "hu",
    "load",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    with uncollected():
        value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
