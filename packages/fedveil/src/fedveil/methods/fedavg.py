"""FedAvg, FedSGD (McMahan et al. 2017) and FedProx (Li et al. 2020). No noise, no guarantee.

cohort   any sampler
client   local SGD from the shared weights w0
         FedSGD: one step on all records; FedProx: + penalty / 2 |w - w0|^2 in the loss
server   w <- w + server step of  sum_i weight_i * update_i / sum_i weight_i  over the cohort
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from fedveil.core.errors import ConfigError
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.method import CohortRule, Method
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import BLUR, method
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.server.optimizers import Optimizer, Sgd
from fedveil.training.server.smoothing import Smoothing


def fedavg(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalTraining,
    by_examples: bool = False,
    weight_cap: int | None = None,
    optimizer: Optimizer | None = None,
    smoothing: Smoothing | None = None,
) -> Method:
    """FedAvg: clients train, the server averages. Nothing is clipped and nobody is protected.

    Args:
        rounds: How many rounds.
        cohort: Who takes part in each.
        local: The local training of a client.
        by_examples: Whether updates are weighted by their clients' numbers of examples.
        weight_cap: The number of examples from which a weight no longer grows.
        optimizer: What the server does with the average (`Sgd`, `Adam`).
        smoothing: What is done to the average before that.
    """
    return Method(
        name="fedavg",
        rounds=rounds,
        cohort=cohort,
        local=local,
        pipeline=UpdatePipeline(weight_cap=weight_cap),
        optimizer=optimizer or Sgd(),
        smoothing=smoothing,
        by_examples=by_examples,
    )


def fedsgd(*, local: LocalTraining, **others: Unpack[parts.Averaging]) -> Method:
    """FedSGD: FedAvg with a single step on all of a client's examples. Arguments as of `fedavg`."""
    one = replace(local, steps=1, epochs=None, batch_size=None)
    return replace(fedavg(local=one, **others), name="fedsgd")


def fedprox(*, local: LocalTraining, penalty: float, **others: Unpack[parts.Averaging]) -> Method:
    """FedProx: FedAvg whose local steps are pulled back towards the shared weights. Nobody is
    protected.

    Args:
        local: The local training of a client.
        penalty: The gradient of penalty / 2 |w - w0|^2 is added at every local step, where w0 are
            the shared weights.
        others: As of `fedavg`.
    """
    if not penalty > 0:
        raise ConfigError(f"training.penalty: fedprox needs a positive one, got {penalty}")
    pulled = replace(local, penalty=penalty, penalty_radius=0.0)
    return replace(fedavg(local=pulled, **others), name="fedprox")


@method("fedavg", what="averages what clients learned", source="McMahan et al. 2017")
def fedavg_recipe(recipe: Recipe) -> Method:
    return fedavg(**parts.averaging(recipe))


@method("fedsgd", what="averages one gradient of each client", source="McMahan et al. 2017")
def fedsgd_recipe(recipe: Recipe) -> Method:
    return fedsgd(**parts.averaging(recipe))


@method(
    "fedprox",
    what="FedAvg with a pull back to the shared weights",
    source="Li et al. 2020",
    keys=(BLUR,),
)
def fedprox_recipe(recipe: Recipe) -> Method:
    penalty = recipe.training.penalty
    return fedprox(**parts.averaging(recipe), penalty=0.1 if penalty is None else penalty)
