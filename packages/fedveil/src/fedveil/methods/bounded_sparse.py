"""DP-FedAvg with BLUR and LUS (Cheng et al., Algorithm 2): updates that are short by themselves.

    cohort   every agent by a coin of bias p
    client   Q steps on  f + (lambda / 2) max(0, |w - w_t|^2 - S^2)          BLUR, eq. 5-7:
                 add lambda (w - w_t) to the gradient while |w - w_t| > S
             keep in each layer the s = (1 - c) d_j entries with the largest
                 |gradient at the final weights * update|                    LUS, eq. 11-13
             clip to norm S, always last
    server   (sum + noise of std sigma S on every coordinate) / (p N)

BLUR is a soft penalty and LUS depends on the data: both act before the clip, and neither changes
the guarantee, which is DP-FedAvg's. Corrections: noise covers all coordinates and no mask is ever
sent; the denominator is p N, not the realised |P_t|, which would betray itself; noise is added by a
trusted aggregator (Poisson cohorts, amplified) or split into shares under a secure sum (scheduled
cohorts, no amplification). The paper's mix of both, Algorithm 1, holds if the agents toss the coins
in secret and all of them add a share (`training.sampling = "secret-poisson"`). gamma of Lemma 2 is
prod_{j > q} (1 - lambda eta [|w_j - w_t| > S]), which is what the steps compute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from fedveil.core.errors import ConfigError
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.method import Method
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import BLUR, CLIP, LUS, UPDATES, method
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LocalTraining


def bounded_sparse(
    *,
    local: LocalTraining,
    clip: Clip,
    penalty: float = 0.4,
    **others: Unpack[parts.Clipped],
) -> Method:
    """DP-FedAvg with updates that are short before they are clipped (Cheng et al.).

    Args:
        local: The local training of a client.
        clip: The largest norm of an update.
        penalty: BLUR's lambda: how strongly a client is pulled back once its update exceeds the
            clip. Zero switches it off.
        others: As of `dp_fedavg`. `sparsity` is LUS's c, the share of each tensor's entries that is
            set to zero (0.7); zero switches it off.
    """
    sparsity = others.setdefault("sparsity", 0.7)
    if penalty == sparsity == 0:
        raise ConfigError("training.penalty, training.sparsity: with neither, use method dp-fedavg")
    made = dp_fedavg(local=local, clip=clip, penalty=penalty, **others)
    return replace(made, name="bounded-sparse")


@method(
    "bounded-sparse",
    aliases=("cheng",),
    what="DP-FedAvg with bounded local updates (BLUR) and sparse ones (LUS)",
    source="Cheng et al., local regularization and sparsification",
    protects="all data of one client",
    towards="everybody who sees the released models (trusted aggregator, or a secure sum)",
    keys=(BLUR, LUS, *CLIP, *UPDATES),
)
def from_recipe(recipe: Recipe) -> Method:
    training, arguments = recipe.training, parts.clipped(recipe)
    if training.sparsity is None:
        del arguments["sparsity"]
    penalty = 0.4 if training.penalty is None else training.penalty
    return bounded_sparse(**arguments, penalty=penalty)
