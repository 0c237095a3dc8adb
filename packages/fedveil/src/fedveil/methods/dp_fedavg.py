"""DP-FedAvg (McMahan et al. 2018): client-level privacy from noise on the sum of updates.

    cohort   every client by its own coin of bias `rate` (Poisson)
    client   local SGD from the shared weights, update clipped to norm C
    server   (sum of updates + N(0, (z C)^2 I)) / (rate * clients), then smoothing, then its
             optimiser

The denominator is the public expected cohort, never the realised one, and noise is released for an
empty cohort too: both are what the Poisson accounting assumes.

Every part can be exchanged: noise by each client or in shares instead of by the aggregator, Laplace
noise beside an L1 clip, a clip that follows a quantile, BLUR's penalty, LUS, a server optimiser.
"""

from __future__ import annotations

from dataclasses import replace

from fedveil.core.arguments import instance_of
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.method import CohortRule, Method
from fedveil.methods.parts.noise_placement import NoisePlacement
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import BLUR, CLIP, LUS, UPDATES, method
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.server.optimizers import Optimizer, Sgd
from fedveil.training.server.smoothing import Smoothing


def dp_fedavg(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalTraining,
    clip: Clip,
    placement: NoisePlacement | None = None,
    penalty: float = 0.0,
    sparsity: float = 0.0,
    by_examples: bool = False,
    weight_cap: int | None = None,
    tracking: AdaptiveClipping | None = None,
    optimizer: Optimizer | None = None,
    smoothing: Smoothing | None = None,
) -> Method:
    """DP-FedAvg: updates are clipped, and Gaussian noise is added to their sum.

    The noise follows from the budget that `fv.plan` is given.

    Args:
        rounds: How many rounds.
        cohort: Who takes part in each.
        local: The local training of a client.
        clip: The largest norm of an update.
        placement: Who adds the noise; None: a trusted aggregator (`CentralNoise`).
        penalty: Of BLUR, see `bounded_sparse`; zero switches it off.
        sparsity: Of LUS, see `bounded_sparse`; zero switches it off.
        by_examples: Whether updates are weighted by their clients' numbers of examples.
        weight_cap: The number of examples from which a weight no longer grows.
        tracking: Lets the clip follow a quantile of the norms, which is accounted.
        optimizer: What the server does with the noisy average (`Sgd`, `Adam`).
        smoothing: What is done to the noisy average before that.

    >>> local = fv.LocalTraining(fv.LearningRate(0.5), epochs=3, batch_size=8)
    >>> half = fv.CohortRule(rate=0.5)
    >>> fv.dp_fedavg(rounds=60, cohort=half, local=local, clip=fv.Clip(0.8)).rounds
    60
    """
    if tracking is not None:
        instance_of(AdaptiveClipping)("tracking", tracking)
    if penalty:
        local = replace(local, penalty=penalty, penalty_radius=clip.norm)
    return Method(
        name="dp-fedavg",
        rounds=rounds,
        cohort=cohort,
        local=local,
        pipeline=UpdatePipeline(clip=clip, sparsity=sparsity, weight_cap=weight_cap),
        placement=placement or CentralNoise(),
        clip_rule=None if tracking is None else replace(tracking, initial=clip),
        optimizer=optimizer or Sgd(),
        smoothing=smoothing,
        by_examples=by_examples,
    )


@method(
    "dp-fedavg",
    what="clipped updates, noise on their sum",
    source="McMahan et al. 2018; baseline of Cheng et al.",
    protects="all data of one client",
    towards="everybody who sees the released models (trusted aggregator)",
    keys=(BLUR, LUS, *CLIP, *UPDATES),
)
def from_recipe(recipe: Recipe) -> Method:
    return dp_fedavg(**parts.clipped(recipe), penalty=recipe.training.penalty or 0.0)
