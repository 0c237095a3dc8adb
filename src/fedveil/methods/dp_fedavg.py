"""DP-FedAvg (McMahan et al. 2018): client-level privacy from a trusted aggregator's noise.

    cohort   every client by its own coin of bias `rate` (Poisson)
    client   local SGD from the shared weights, update clipped to norm C
    server   (sum of updates + N(0, (z C)^2 I)) / (rate * clients), then its optimiser

The denominator is the public expected cohort, never the realised one, and noise is released for an
empty cohort too: both are what the Poisson accounting assumes.
"""

from __future__ import annotations

from fedveil.local.rule import LocalRule
from fedveil.local.shaping import Shaping
from fedveil.methods.method import CohortRule, Method
from fedveil.methods.protection import CentralGaussian
from fedveil.privacy.clipping import Clip
from fedveil.server.optimizers import Optimizer, Sgd


def dp_fedavg(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalRule,
    clip_norm: float,
    weight_cap: int | None = None,
    optimizer: Optimizer | None = None,
) -> Method:
    """DP-FedAvg with central Gaussian noise; the plan decides how much."""
    return Method(
        name="dp-fedavg",
        rounds=rounds,
        cohort=cohort,
        local=local,
        shaping=Shaping(clip=Clip(clip_norm, 2), weight_cap=weight_cap),
        protection=CentralGaussian(),
        optimizer=optimizer or Sgd(),
    )
