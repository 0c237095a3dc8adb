"""DP-Fed and DP-Fed-LS (Liang et al., Algorithm 1): projected local steps, smoothed noisy sums.

    cohort   a random set of m = tau K clients, of fixed size or by coins (Poisson)
    client   E epochs of  w_j <- w_j - eta_t mean gradient;   w_j <- w + clip(w_j - w, G)
    server   w <- w + (1 / m) A_sigma^-1 (sum of w_j - w  +  N(0, nu^2 I))            (eq. 1-2)

The projection after every step keeps each update in the ball of radius G, so the final clip changes
nothing; it makes the bound hold in exact arithmetic. A_sigma is the circulant Laplacian that eq. 2
solves by Fourier transforms. Corrections: nu = z G with z accounted for the sampler that is used
(under fixed-size sampling a replaced client moves the sum by 2 G, so the same z buys less), the
denominator is the expected m, and noise is on the whole vector before it is smoothed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from fedveil.core.errors import ConfigError
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.method import Method
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import LUS, UPDATES, method
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.server.smoothing import Smoothing


def dp_fed(*, local: LocalTraining, clip: Clip, **others: Unpack[parts.Clipped]) -> Method:
    """DP-Fed of Liang et al. (`clip.norm` is their G): DP-FedAvg, with arguments as of `dp_fedavg`.
    With a smoothing it is `laplacian_smoothing`."""
    if clip.order != 2 or others.get("tracking") is not None:
        raise ConfigError("training.method: dp-fed projects to a Euclidean ball of fixed radius")
    made = dp_fedavg(local=replace(local, projection_radius=clip.norm), clip=clip, **others)
    return replace(made, name="dp-fed" if made.smoothing is None else "laplacian-smoothing")


def laplacian_smoothing(
    *, local: LocalTraining, clip: Clip, **others: Unpack[parts.Clipped]
) -> Method:
    """DP-Fed-LS of Liang et al.: DP-FedAvg whose noisy average is smoothed, at no cost in privacy.
    The strength of `smoothing` (1 if left out) is their sigma; the rest is as for `dp_fedavg`."""
    others["smoothing"] = others.get("smoothing") or Smoothing(1.0)
    return dp_fed(local=local, clip=clip, **others)


@method(
    "dp-fed",
    what="local models projected to a ball after every step, noise on their sum",
    source="Liang et al., Laplacian smoothing",
    protects="all data of one client",
    towards="everybody who sees the released models (trusted aggregator)",
    keys=(LUS, *UPDATES),
)
def dp_fed_recipe(recipe: Recipe) -> Method:
    if recipe.server.smoothing:
        raise ConfigError("server.smoothing: dp-fed goes without; use method laplacian-smoothing")
    return dp_fed(**parts.clipped(recipe))


@method(
    "laplacian-smoothing",
    aliases=("dp-fed-ls", "liang"),
    what="DP-Fed whose noisy sum is smoothed by a ring's Laplacian",
    source="Liang et al., Laplacian smoothing (there: DP-Fed-LS)",
    protects="all data of one client",
    towards="everybody who sees the released models (trusted aggregator)",
    keys=(LUS, *UPDATES),
)
def from_recipe(recipe: Recipe) -> Method:
    server = replace(recipe.server, smoothing=recipe.server.smoothing or 1.0)
    return laplacian_smoothing(**parts.clipped(replace(recipe, server=server)))
