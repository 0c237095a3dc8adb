"""The distributed discrete Gaussian (Kairouz, Liu, Steinke 2021), a baseline of Cheng et al.

    cohort   n clients of a schedule that everybody may know
    client   clip to c; pad to a power of two; random signs (public) and Hadamard rotation;
             divide by the granularity g; round at random until the norm is at most R / g
             add N_Z(0, (s / g)^2) to every coordinate; reduce modulo 2^bits
    server   sum modulo 2^bits, centre, times g, rotate back; / n

The noise that h honest clients add is accounted as a sum of h discrete Gaussians, which is close to
but not one (theory 6.3). The server sees who takes part: sampling gives no credit. A sum that wraps
around costs accuracy and never privacy; the modulus follows from `wrap_probability`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from fedveil.core.units import Adjacency, Trust
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.adaptive_clipping import AdaptiveClipping
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import CLIP, COLLUSION, LUS, method
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.rotation import Rotation


def ddgauss(
    *,
    local: LocalTraining,
    clip: Clip,
    bits: int | None = None,
    wrap_probability: float = 1e-6,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    colluders: int = 0,
    honest_shares: int | None = None,
    sparsity: float = 0.0,
    tracking: AdaptiveClipping | None = None,
    **others: Unpack[parts.Averaging],
) -> Method:
    """Distributed discrete Gaussian (Kairouz, Liu, Steinke 2021).

    Clients add integer shares of noise under a secure sum, so that the server sees one noisy sum
    and no update.

    Args:
        local: The local training of a client.
        clip: The largest norm of an update.
        bits: Of the modulus; the grid follows from it.
        wrap_probability: That a coordinate of a round's sum wraps around; the modulus allows it.
        adjacency: Which change of a client is hidden.
        colluders: Clients that work with the server; their noise protects nobody.
        honest_shares: Noise shares that are sure to be in a sum, if fewer than the others.
        sparsity: Of LUS, see `bounded_sparse`.
        tracking: Lets the clip follow a quantile of the norms, which is accounted.
        others: As of `dp_fedavg`.
    """
    made = dp_fedavg(
        local=local,
        clip=clip,
        placement=DistributedNoise(
            Rotation(), bits, wrap_probability, adjacency, colluders, honest_shares
        ),
        sparsity=sparsity,
        tracking=tracking,
        **others,
    )
    return replace(made, name="ddgauss")


@method(
    "ddgauss",
    what="rotated, rounded updates with discrete Gaussian shares in a modular secure sum",
    source="Kairouz, Liu, Steinke 2021; baseline of Cheng et al.",
    protects="all data of one client",
    towards="everybody, the server included: it sees noisy sums alone",
    keys=(LUS, *CLIP, "privacy.adjacency", *COLLUSION, "privacy.bits"),
    trust=Trust.DISTRIBUTED,
    sampling="balanced",
)
def from_recipe(recipe: Recipe) -> Method:
    privacy = recipe.privacy
    return ddgauss(
        **parts.averaging(recipe),
        clip=parts.clip(recipe),
        bits=privacy.bits,
        adjacency=parts.adjacency(recipe) or Adjacency.ZERO_OUT,
        colluders=privacy.colluders,
        honest_shares=privacy.honest_shares,
        sparsity=recipe.training.sparsity or 0.0,
        tracking=parts.tracking(recipe),
    )
