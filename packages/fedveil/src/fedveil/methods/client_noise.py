"""Client-based DP-FedAvg (Fu et al., Algorithm 1): every upload carries its own noise.

    cohort   b clients in turn (round-robin); a client takes part T_l = ceil(b T_g / N) times
    client   E full-batch steps  theta <- theta - eta_k clip(grad f_l(theta), zeta)       (eq. 1)
             upload  theta_E - theta_0 + w,   w ~ Laplace or Gaussian on every coordinate
    server   theta <- theta + mean of the b uploads;   eta_k = 2 / (mu (k + gamma))   (Theorem 3)

The whole gradient is clipped, so an upload is at most zeta * sum(eta_k) long whatever the data: in
L1 for Laplace (Theorem 1), in L2 for Gaussian noise. Noise follows that bound from round to round,
with one multiplier for all. Corrections: a replaced client moves an upload twice as far (the
factor s of theory 3); T_l is rounded up; models are averaged as differences, with equal weights,
for n_l is as private as the rest. The paper's own claims are `reproduction.claims.fu`.
"""

from __future__ import annotations

from dataclasses import replace

from fedveil.core.arguments import one_of
from fedveil.core.units import Adjacency, Trust
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.clip_rule import StepBound
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import CohortRule, Method
from fedveil.methods.parts.noise_placement import Noise, NoisePlacement
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import UPDATES, method
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.server.optimizers import Optimizer, Sgd
from fedveil.training.server.smoothing import Smoothing


def client_noise(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalTraining,
    clip_norm: float,
    noise: Noise = Noise.GAUSSIAN,
    adjacency: Adjacency = Adjacency.REPLACE,
    placement: NoisePlacement | None = None,
    optimizer: Optimizer | None = None,
    smoothing: Smoothing | None = None,
) -> Method:
    """Every client adds the whole noise to its upload, so that nobody is trusted (Fu et al.).

    Args:
        rounds: How many rounds.
        cohort: Who takes part in each.
        local: The local training of a client; `local.steps` is their E.
        clip_norm: The bound of one step's gradient (their zeta): L2 for Gaussian noise, L1 for
            Laplace.
        noise: Gaussian or Laplace.
        adjacency: Which change of a client is hidden.
        placement: Another noise placement, in the place of `LocalNoise`.
        optimizer: What the server does with the average.
        smoothing: What is done to the average before that.
    """
    noise = one_of(Noise)("noise", noise)
    order = 1 if noise is Noise.LAPLACE else 2
    return Method(
        name="client-noise",
        rounds=rounds,
        cohort=cohort,
        local=replace(local, batch_size=None, gradient_clip=GradientClip(clip_norm, order)),
        pipeline=UpdatePipeline(),
        placement=placement or LocalNoise(noise, adjacency),
        clip_rule=StepBound(clip_norm, order),
        optimizer=optimizer or Sgd(),
        smoothing=smoothing,
    )


@method(
    "client-noise",
    aliases=("fu",),
    what="clipped full-batch steps, Laplace or Gaussian noise on every upload",
    source="Fu et al., tuning iteration times",
    protects="all data of one client",
    towards="everybody, the server included (local noise)",
    keys=UPDATES,
    trust=Trust.LOCAL,
    sampling="round-robin",
)
def from_recipe(recipe: Recipe) -> Method:
    trust = parts.trust(recipe, Trust.LOCAL)
    return client_noise(
        **parts.common(recipe),
        clip_norm=parts.clip_norm(recipe),
        noise=parts.noise(recipe),
        adjacency=parts.adjacency(recipe) or Adjacency.REPLACE,
        placement=None if trust is Trust.LOCAL else parts.placement(recipe, trust),
    )
