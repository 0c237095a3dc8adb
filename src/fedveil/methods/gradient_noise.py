"""Noise on every local gradient (Hu et al.): one record of one client is protected.

Which proof applies is decided here, from the model, the number of local steps and the secure sum:

    alone     uploads seen one by one, or several steps of a model that may expand: undivided
    one step  under a secure sum, all clients' noise covers the record
    convex    several steps of a non-expansive linear model under a secure sum

The fourth way, clipping the whole update and adding noise once, protects clients and is
`SharedNoise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor, nn

from fedveil.data.federation import Task
from fedveil.errors import BadInput, Refused
from fedveil.local.batches import batches_per_epoch, step_counts
from fedveil.local.rule import GradientClip, LocalRule
from fedveil.local.shaping import Shaping
from fedveil.methods.protection import Occasion, Promise, Terms, certain_cohort, worst_case
from fedveil.models.zoo import Linear
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.gradient_perturbation import Loss, NoisyGradients, NonExpansive
from fedveil.privacy.refusals import GradientRefused
from fedveil.privacy.units import Adjacency, Trust, Unit


class Proof(StrEnum):
    """Why a record is protected, and by how much of the noise."""

    ALONE = "alone"  # by its own client's noise
    ONE_STEP = "one-step"  # by the noise of the whole sum
    CONVEX = "convex"  # by the last noise of the whole sum; drift is bounded


@dataclass(frozen=True)
class GradientNoise:
    """Gaussian noise of std z G / batch_size on every mean gradient, per-example clip G.

    `secure_sum` hides single uploads from the server; whether that lowers epsilon is decided by
    `proof`. `colluders` bring no noise.
    """

    secure_sum: bool = True
    adjacency: Adjacency = Adjacency.REPLACE
    colluders: int = 0
    honest_shares: int | None = None

    def proof(self, terms: Terms) -> Proof:
        """The strongest statement that is proved for these terms."""
        if not self.secure_sum:
            return Proof.ALONE
        if _most_steps(terms) == 1:
            return Proof.ONE_STEP
        return Proof.ALONE if non_expansive(terms) is None else Proof.CONVEX

    def promise(self, terms: Terms) -> Promise:
        _check(terms)
        if self.proof(terms) is Proof.ALONE:
            return Promise(Unit.RECORD, self.adjacency, Trust.LOCAL)
        return Promise(
            Unit.RECORD, self.adjacency, Trust.DISTRIBUTED, self.colluders, self.honest_shares
        )

    def local(self, terms: Terms) -> LocalRule:
        return replace(terms.local, gradient_noise=self._std(terms))

    def shaping(self, terms: Terms, clip: Clip | None) -> Shaping:
        return terms.shaping

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        proof = self.proof(terms)
        gradients = NoisyGradients(
            clip_norm=_clip(terms).norm,
            batch_size=_batch(terms),
            gradient_std=self._std(terms),
            local_steps=_most_steps(terms),
            record_uses=_record_uses(terms),
            shares=None if proof is Proof.ALONE else certain_cohort(terms.sampling),
            certificate=non_expansive(terms) if proof is Proof.CONVEX else None,
        )
        seen = worst_case(terms.sampling, rounds)
        return (Release(gradients, terms.sampling, rounds, participations=seen),)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        """The noise is in the updates already."""
        return total.float()

    def _std(self, terms: Terms) -> float:
        return terms.noise_multiplier * _clip(terms).norm / _batch(terms)


def non_expansive(terms: Terms) -> NonExpansive | None:
    """The certificate that local steps bring no two runs further apart, if there is one.

    Two classes scored by a softmax are a logistic model of the difference of their weights: one
    example's gradient is a multiple of (-x, x), of length sqrt(2) |x|, and clipping it keeps the
    loss convex. With more classes the certificate needs a clip that never acts.
    """
    model, rule, task = terms.module, terms.local, terms.federation.task
    if not isinstance(model, Linear) or model.input_norm is None:
        return None
    if rule.penalty or rule.projection_radius is not None:
        return None
    reach = math.hypot(model.input_norm, 1.0)  # the bias is a coordinate of one
    clipped = True
    if task is Task.REGRESSION:
        loss = Loss.SQUARED
    elif terms.federation.classes == 2:
        loss, reach = Loss.LOGISTIC, math.sqrt(2) * reach
    else:
        loss, clipped = Loss.SOFTMAX, False
    rates = dict.fromkeys(rule.learning_rate.of_round(0, _most_steps(terms)))
    try:
        certificate = NonExpansive(
            loss, reach, tuple(rates), rule.weight_decay, clipped, rule.momentum
        )
    except GradientRefused:
        return None
    if not clipped and _clip(terms).norm < certificate.gradient_bound():
        return None
    return certificate


def _check(terms: Terms) -> None:
    for name, layer in terms.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise Refused(
                f"per-example clipping with batch normalisation ({name or 'the model'}): it mixes "
                "the examples of a batch, so one record moves every example's gradient",
                "use group normalisation",
            )
    _clip(terms)
    _batch(terms)
    if terms.shaping.clip is not None or terms.shaping.sparsity or terms.shaping.weight_cap:
        raise BadInput("gradient noise: updates are already private; shape them on the server")


def _clip(terms: Terms) -> GradientClip:
    clip = terms.local.gradient_clip
    if clip is None or not clip.per_example or clip.order != 2:
        raise Refused(
            "gradient noise protects a record only if each example's gradient is clipped in L2",
            "use method hu or dp-sgd, which do",
        )
    return clip


def _batch(terms: Terms) -> int:
    if terms.local.batch_size is None:
        raise BadInput(
            "training.batch_size: set it; the sum of clipped gradients is divided by a fixed number"
        )
    return terms.local.batch_size


def _most_steps(terms: Terms) -> int:
    return int(step_counts(terms.federation.sizes, terms.local).max())


def _record_uses(terms: Terms) -> int:
    """The most times that a record is touched in a round: epochs begun, over all clients.

    Sizes may be used: they stay fixed when a record is replaced.
    """
    sizes = terms.federation.sizes
    steps, batches = step_counts(sizes, terms.local), batches_per_epoch(sizes, terms.local)
    return int((-(-steps // batches)).max())
