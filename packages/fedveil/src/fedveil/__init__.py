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

`__init__.pyi` lists the public names. They are imported when first used: asking for an epsilon
does not load torch.
"""

import sys
from importlib import import_module

from fedveil.core.loading import homes_of, uncollected

_HOMES = homes_of(__file__)
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    """The public names, and nothing else: what completion offers."""
    return list(__all__)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        here = sys.modules[__name__]  # where Python looks for a name to suggest
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}", name=name, obj=here)
    with uncollected():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
