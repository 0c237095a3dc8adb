"""FedAvg (McMahan et al. 2017): average what clients learned. No noise, no guarantee."""

from __future__ import annotations

from fedveil.local.rule import LocalRule
from fedveil.local.shaping import Shaping
from fedveil.methods.method import CohortRule, Method
from fedveil.server.optimizers import Optimizer, Sgd


def fedavg(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalRule,
    weight_cap: int | None = None,
    optimizer: Optimizer | None = None,
) -> Method:
    """w <- w + server step of  sum_i weight_i * update_i / sum_i weight_i over the cohort."""
    return Method(
        name="fedavg",
        rounds=rounds,
        cohort=cohort,
        local=local,
        shaping=Shaping(weight_cap=weight_cap),
        optimizer=optimizer or Sgd(),
    )
