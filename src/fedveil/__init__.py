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

if TYPE_CHECKING:
    from fedveil.data.federation import Examples, Federation, Task
    from fedveil.data.sources import load
    from fedveil.data.table import from_table
    from fedveil.engine.directory import RunDirectory
    from fedveil.engine.run import Run, Speed
    from fedveil.errors import BadInput, FedveilError, Refused
    from fedveil.local.rule import GradientClip, LearningRate, LocalRule, Schedule
    from fedveil.methods.dp_fedavg import dp_fedavg
    from fedveil.methods.fedavg import fedavg
    from fedveil.methods.method import CohortRule, Method, Scheme
    from fedveil.models.zoo import build
    from fedveil.plan.plan import Budget, Plan, plan
    from fedveil.privacy.accounting import Release, Setting, account
    from fedveil.privacy.clipping import Clip
    from fedveil.privacy.guarantee import Guarantee
    from fedveil.server.optimizers import Adam, Sgd

_HOMES = {
    "fedveil.data.federation": ("Examples", "Federation", "Task"),
    "fedveil.data.sources": ("load",),
    "fedveil.data.table": ("from_table",),
    "fedveil.engine.directory": ("RunDirectory",),
    "fedveil.engine.run": ("Run", "Speed"),
    "fedveil.errors": ("BadInput", "FedveilError", "Refused"),
    "fedveil.local.rule": ("GradientClip", "LearningRate", "LocalRule", "Schedule"),
    "fedveil.methods.dp_fedavg": ("dp_fedavg",),
    "fedveil.methods.fedavg": ("fedavg",),
    "fedveil.methods.method": ("CohortRule", "Method", "Scheme"),
    "fedveil.models.zoo": ("build",),
    "fedveil.plan.plan": ("Budget", "Plan", "plan"),
    "fedveil.privacy.accounting": ("Release", "Setting", "account"),
    "fedveil.privacy.clipping": ("Clip",),
    "fedveil.privacy.guarantee": ("Guarantee",),
    "fedveil.server.optimizers": ("Adam", "Sgd"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Adam",
    "BadInput",
    "Budget",
    "Clip",
    "CohortRule",
    "Examples",
    "Federation",
    "FedveilError",
    "GradientClip",
    "Guarantee",
    "LearningRate",
    "LocalRule",
    "Method",
    "Plan",
    "Refused",
    "Release",
    "Run",
    "RunDirectory",
    "Schedule",
    "Scheme",
    "Setting",
    "Sgd",
    "Speed",
    "Task",
    "account",
    "build",
    "dp_fedavg",
    "fedavg",
    "from_table",
    "load",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
