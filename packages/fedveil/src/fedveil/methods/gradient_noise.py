"""Gradient perturbation with secure aggregation (Hu et al., Algorithm 1), and DP-SGD.

    cohort   r of n devices, everybody equally often (balanced, public schedule)
    client   tau steps on disjoint shuffled batches of gamma records              (eq. 5-6)
                 g = (1 / gamma) sum of per-example gradients, each clipped to G
                 theta <- theta - eta (g + b),   b ~ N(0, sigma^2 I)
    server   secure sum of the uploads / r                                        (eq. 7-9)

One record moves a mean gradient by at most 2 G / gamma (Corollary 1). What follows for a round
depends on who sees what; the paper's division by r (Theorem 1) is false for tau > 1 and is only
available as a claim in `reproduction.claims.hu`. What is certified, chosen by `GradientNoise.proof`
(e = times that a record is touched in a round, h = r - colluders - losses planned for):

    1  alone     mu^2 = e (2 G / (gamma sigma))^2               any model, no trust at all
    2  one step  mu   = 2 G / (gamma sigma sqrt(h))             tau = 1, secure sum
    3  convex    mu   = 2 e G / (gamma sigma) min(1/sqrt(e), 1/sqrt(h))   non-expansive steps
    4  client    the whole update clipped, noise in shares of z C / sqrt(r): `unit` client

DP-SGD, the baseline, takes one step a round; the noise of the r devices of that round counts, not
that of all n.

`unit` person: "person" for "record". The mean gradient of a person's records is clipped once, and
batches are drawn from persons. A person at up to k sites makes k contributions to a sum. Clipped
means of gradients are not the gradients of a convex loss, so proof 3 is for records only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Required, TypedDict, Unpack

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts import from_recipe as parts
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.gradient_noise import GradientNoise
from fedveil.methods.parts.method import CohortRule, Method
from fedveil.methods.recipes.sections import Recipe
from fedveil.methods.registry import CHANGE, COLLUSION, SECRET_BATCHES, UNIT, method
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.server.optimizers import Optimizer, Sgd
from fedveil.training.server.smoothing import Smoothing


class Perturbed(TypedDict, total=False):
    """Arguments of `gradient_noise` that `dp_sgd` hands on to it."""

    rounds: Required[int]
    cohort: Required[CohortRule]
    clip_norm: Required[float]
    sites_per_person: int | None
    secure_sum: bool
    trusted: bool
    adjacency: Adjacency | None
    colluders: int
    honest_shares: int | None
    optimizer: Optimizer | None
    smoothing: Smoothing | None


def gradient_noise(
    *,
    rounds: int,
    cohort: CohortRule,
    local: LocalTraining,
    clip_norm: float,
    unit: Unit = Unit.RECORD,
    sites_per_person: int | None = None,
    secure_sum: bool = True,
    trusted: bool = False,
    adjacency: Adjacency | None = None,
    colluders: int = 0,
    honest_shares: int | None = None,
    optimizer: Optimizer | None = None,
    smoothing: Smoothing | None = None,
) -> Method:
    """Noise on the gradients of every local step, to protect single records (Hu et al.).

    Whether the noise of other clients counts is decided by the plan, from the model and the steps.

    Args:
        rounds: How many rounds.
        cohort: Who takes part in each.
        local: The local training of a client.
        clip_norm: The bound of one example's gradient (their G); for unit person, of the mean
            gradient of a person's records; for unit client, of a whole update, whose local steps
            have no noise.
        unit: Whose data are protected.
        sites_per_person: Clients at which a person may be (1); what it has at others does not
            count.
        secure_sum: Whether the server sees sums of uploads only.
        trusted: Whether the server sees uploads as they are and adds the noise, for one local step.
        adjacency: Which change of a unit is hidden.
        colluders: Clients that work with the server; their noise protects nobody.
        honest_shares: Noise shares that are sure to be in a sum, if fewer than the others.
        optimizer: What the server does with the average.
        smoothing: What is done to the average before that.
    """
    if sites_per_person is not None and unit is not Unit.PERSON:
        raise ConfigError(
            f"sites_per_person: unit {unit} has none. Use unit person, or leave it out."
        )
    if one_of(Unit)("unit", unit) is Unit.CLIENT:
        placement: DistributedNoise | GradientNoise = DistributedNoise(
            adjacency=adjacency or Adjacency.ZERO_OUT,
            colluders=colluders,
            honest_shares=honest_shares,
        )
        pipeline = UpdatePipeline(clip=Clip(clip_norm))
    else:
        sites = 1 if unit is Unit.PERSON and sites_per_person is None else sites_per_person
        clip = GradientClip(clip_norm, per_example=True, sites_per_person=sites)
        local = replace(local, gradient_clip=clip)
        usual = Adjacency.REPLACE if local.batch_rate is None else Adjacency.ZERO_OUT
        placement = GradientNoise(
            secure_sum and not trusted, adjacency or usual, colluders, honest_shares, trusted
        )
        pipeline = UpdatePipeline()
    return Method(
        name="gradient-noise",
        rounds=rounds,
        cohort=cohort,
        local=local,
        pipeline=pipeline,
        placement=placement,
        optimizer=optimizer or Sgd(),
        smoothing=smoothing,
    )


def dp_sgd(
    *, local: LocalTraining, unit: Unit = Unit.RECORD, **others: Unpack[Perturbed]
) -> Method:
    """Take one noisy gradient step a round across clients (DP-SGD), to protect records or persons.

    Each example's gradient is clipped to `clip_norm`, and noise is added to the mean. With
    `local.batch_rate` batches are secret, which lowers epsilon. Works with any model that treats
    examples one by one. The arguments are those of `gradient_noise`.
    """
    if one_of(Unit)("unit", unit) is Unit.CLIENT:
        raise ConfigError(
            "privacy.unit: method dp-sgd protects records or persons; leave training.method out, "
            "and one that protects the unit is chosen"
        )
    one = replace(local, steps=1, epochs=None)
    return replace(gradient_noise(local=one, unit=unit, **others), name="dp-sgd")


@method(
    "gradient-noise",
    aliases=("hu",),
    what="per-example clipping, noise on every local gradient, secure sum",
    source="Hu et al., concentrated differential privacy",
    protects="one record of one client (or, unit person or client, all of its data)",
    towards="everybody; the server sees the sum of uploads alone",
    keys=(*UNIT, *CHANGE, *COLLUSION, *SECRET_BATCHES),
    trust=Trust.DISTRIBUTED,
    sampling="balanced",
    unit=Unit.RECORD,
)
def from_recipe(recipe: Recipe) -> Method:
    trust, unit = parts.trust(recipe, Trust.DISTRIBUTED), _unit(recipe)
    if trust is Trust.CENTRAL or (unit is Unit.CLIENT and trust is Trust.LOCAL):
        raise ConfigError(
            f"privacy.trust: gradient-noise has no {trust} trust; use distributed (secure sum)"
            + ("" if unit is Unit.CLIENT else " or local (without)")
        )
    return gradient_noise(local=parts.local(recipe), unit=unit, **_arguments(recipe, trust))


@method(
    "dp-sgd",
    what="one noisy gradient step of every client in a round, secure sum",
    source="Abadi et al. 2016; baseline of Hu et al.",
    protects="one record of one client (or, unit person, all records of a person)",
    towards="everybody; the server sees the sum of uploads alone",
    keys=(*UNIT, *CHANGE, *COLLUSION, *SECRET_BATCHES),
    trust=Trust.DISTRIBUTED,
    sampling="balanced",
    unit=Unit.RECORD,
    secret_batches=True,
)
def dp_sgd_recipe(recipe: Recipe) -> Method:
    arguments = _arguments(recipe, parts.trust(recipe, Trust.DISTRIBUTED))
    return dp_sgd(local=parts.local(recipe), unit=_unit(recipe), **arguments)


def _unit(recipe: Recipe) -> Unit:
    unit = recipe.privacy.unit
    return Unit.RECORD if unit is None else one_of(Unit)("privacy.unit", unit)


def _arguments(recipe: Recipe, trust: Trust) -> Perturbed:
    privacy, common = recipe.privacy, parts.common(recipe)
    return {
        "rounds": common["rounds"],
        "cohort": common["cohort"],
        "optimizer": common["optimizer"],
        "smoothing": common["smoothing"],
        "clip_norm": parts.clip_norm(recipe),
        "sites_per_person": privacy.sites_per_person,
        "secure_sum": trust is Trust.DISTRIBUTED,
        "trusted": trust is Trust.CENTRAL,
        "adjacency": parts.adjacency(recipe),
        "colluders": privacy.colluders,
        "honest_shares": privacy.honest_shares,
    }
