"""Noise on every local gradient (Hu et al.): what may be certified about one record.

A client takes `local_steps` steps on batches of `batch_size` of its records; per-example gradients
are clipped to `clip_norm`, summed, divided by the fixed batch size, and Gaussian noise of std
`gradient_std` is added to the mean. One record then moves one mean gradient by at most
s * clip_norm / batch_size, with s = 2 under replace and 1 under zero-out.

Dividing by the number of noise shares in a secure sum is right for one local step and false in
general for more: the runs drift apart after the first touch of the record, and later steps blow
the difference up. It holds if every update map is non-expansive, which `NonExpansive` certifies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fedveil.core.arguments import (
    built,
    check_fields,
    count,
    instance_of,
    not_negative,
    optional,
    positive,
    settle,
)
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.discrete_sums import DiscreteSumStep
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.steps import Step
from fedveil.privacy.contract import CONTINUOUS_SHARES, Mechanism, Use, mechanism
from fedveil.privacy.mechanisms import EVERY_ADJACENCY, EVERY_TRUST
from fedveil.privacy.refusals import AdjacencyRefused, AmplificationRefused, GradientRefused
from fedveil.privacy.rounding import at_least

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release


class Loss(StrEnum):
    """Losses of linear models whose gradient step is known to be non-expansive."""

    LOGISTIC = "logistic"  # binary
    SQUARED = "squared"  # (prediction - target)^2 / 2
    SOFTMAX = "softmax"  # several classes, gradients not clipped


@dataclass(frozen=True)
class NonExpansive:
    """Certificate that plain SGD on a linear model brings no two weight vectors further apart.

    input_norm: every input, *bias coordinate included*, is projected to this L2 norm.
    learning_rates: of the local steps in order; one number if they are all the same.
    l2_penalty: strength of a penalty added *after* clipping.
    clipped: per-example gradients, weights and bias jointly, are clipped. Clipping keeps logistic
        and squared losses convex, but a clipped softmax step can expand.
    momentum: must be zero, and nothing nonlinear may follow the last noise.
    """

    loss: Loss
    input_norm: float
    learning_rates: tuple[float, ...]
    l2_penalty: float = 0.0
    clipped: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.loss not in tuple(Loss):
            raise GradientRefused(
                f"no non-expansive certificate exists for loss {self.loss!r} (a neural network, "
                "say): after the first touch of a record two runs may drift apart without bound",
                "use a linear model with logistic, squared or unclipped softmax loss, or account "
                "under local trust, or clip the whole update and add noise once",
            )
        if not isinstance(self.learning_rates, (tuple, list)) or not self.learning_rates:
            raise ConfigError(f"learning_rates: need one or more, got {self.learning_rates!r}")
        rates = tuple(positive("learning_rate", one) for one in self.learning_rates)
        settle(self, loss=Loss(self.loss), learning_rates=rates)
        check_fields(self, input_norm=positive, l2_penalty=not_negative)
        if self.momentum != 0:
            raise GradientRefused(
                f"momentum {self.momentum} carries an old difference into later steps",
                "use plain SGD on the clients; momentum of the server is free",
            )
        if self.loss is Loss.SOFTMAX and self.clipped:
            raise GradientRefused(
                "a clipped softmax step can bring two weight vectors further apart",
                "leave softmax gradients unclipped: they are bounded by sqrt(2) * input_norm",
            )
        if self.loss is Loss.SQUARED and not self.clipped:
            raise GradientRefused(
                "unclipped gradients of the squared loss are unbounded", "clip per example"
            )
        largest, allowed = max(self.learning_rates), 2 / (self.smoothness + self.l2_penalty)
        if largest > allowed:
            raise GradientRefused(
                f"learning rate {largest:g} above 2 / (smoothness + penalty) = {allowed:g}: such a "
                "step expands",
                f"use at most {allowed:.6g}, or project inputs to a smaller norm",
            )

    @property
    def smoothness(self) -> float:
        """Bound on the curvature of one example's loss."""
        share = {Loss.LOGISTIC: 0.25, Loss.SQUARED: 1.0, Loss.SOFTMAX: 0.5}[self.loss]
        return share * self.input_norm**2

    def gradient_bound(self) -> float:
        """Norm of one example's gradient if it is not clipped."""
        return self.input_norm * (math.sqrt(2) if self.loss is Loss.SOFTMAX else 1.0)

    def drift(self, uses: int) -> float:
        """Sum of the learning rates of the `uses` largest steps, over the last one."""
        rates = self.learning_rates
        if len(rates) == 1:
            return float(uses)
        return math.fsum(sorted(rates, reverse=True)[:uses]) / rates[-1]


@dataclass(frozen=True)
class _Gradients(Mechanism):
    """The parameters, checks and refusals that both mechanisms on gradients share.

    Attributes:
        clip_norm: Bound on one example's gradient.
        batch_size: What a sum of clipped gradients is divided by.
        gradient_std: Noise on the mean gradient.
        local_steps: Steps in a round.
        record_uses: Most times that one record is touched in a round (`record_uses` counts them).
        shares: Clients in the secure sum, colluders included; None if uploads are seen one by one.
        certificate: Needed to divide by the shares when there is more than one local step.
    """

    clip_norm: float
    batch_size: int
    gradient_std: float
    local_steps: int
    record_uses: int
    shares: int | None = None
    certificate: NonExpansive | None = None
    adjacencies = EVERY_ADJACENCY
    level = "gradient_std"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, clip_norm=positive, batch_size=count)
        check_fields(self, local_steps=count, record_uses=count, shares=optional(count))
        if self.record_uses > self.local_steps:
            raise ConfigError(
                f"record_uses: need at most local_steps={self.local_steps} (no batch holds a "
                f"record twice), got {self.record_uses}"
            )
        if isinstance(self.certificate, Mapping):
            settle(self, certificate=built(NonExpansive, self.certificate, "certificate"))
        certificate = self.certificate
        if certificate is None:
            return
        instance_of(NonExpansive)("certificate", certificate)
        rates = certificate.learning_rates
        if len(rates) not in (1, self.local_steps):
            raise ConfigError(
                f"learning_rates: need one, or one for each of {self.local_steps} local steps, "
                f"got {len(rates)}"
            )
        if not certificate.clipped and self.clip_norm < certificate.gradient_bound():
            raise GradientRefused(
                f"unclipped gradients reach {certificate.gradient_bound():g}, above the bound "
                f"{self.clip_norm:g} that is accounted",
                f"account with clip_norm {certificate.gradient_bound():.6g}",
            )

    def noise_shares(self) -> int | None:
        return self.shares

    def check(self, release: Release, model: PrivacyModel) -> None:
        if release.amplified:
            raise AmplificationRefused(
                "noisy gradients on a secret sample of clients have no proved amplification here",
                "count participations, or clip the whole update and add noise once",
            )
        if model.unit is Unit.CLIENT:
            raise GradientRefused(
                "per-example clipping bounds one record, not a whole client",
                "use unit record, or clip the whole update and add noise once",
            )
        if model.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyRefused(
                "add-remove of a record changes the batches of all others",
                "use adjacency replace or zero-out",
            )
        if model.trust is not Trust.LOCAL and self.shares is None:
            raise GradientRefused(
                f"{model.trust} trust needs the number of noise shares in a sum",
                "give shares, or account under local trust",
            )

    def rests_on(self) -> tuple[str, ...]:
        proof = self.certificate
        if proof is None:
            return ()
        return (
            f"Local steps bring no two models further apart: {proof.loss} loss of a linear model, "
            f"inputs of length {at_least(proof.input_norm, 6)} at most, bias included.",
        )


@mechanism("noisy-gradients")
@dataclass(frozen=True)
class NoisyGradients(_Gradients):
    """Continuous Gaussian noise on every mean gradient of a client."""

    law = "Gaussian noise on gradients"
    trusts = EVERY_TRUST

    def step(self, use: Use) -> Step:
        return GaussianStep(1 / self.sensitivity(use.factor, use.honest_shares))

    def not_certified(self, model: PrivacyModel) -> str:
        return "" if model.trust is Trust.LOCAL else CONTINUOUS_SHARES

    def sensitivity(self, factor: int, honest_shares: int | None) -> float:
        """Gaussian-DP parameter mu of one round; `factor` is 2 for replace, 1 for zero-out."""
        one_step = factor * self.clip_norm / (self.batch_size * self.gradient_std)
        undivided = one_step * math.sqrt(self.record_uses)
        if honest_shares is None:
            return undivided
        if self.local_steps == 1:
            return one_step / math.sqrt(honest_shares)
        if self.certificate is None:
            raise GradientRefused(
                f"{self.local_steps} noisy local steps: the noise of other clients does not cover "
                "a record once the runs have drifted apart",
                "give a NonExpansive certificate (linear models), take one local step, account "
                "under local trust, or clip the whole update and add noise once",
            )
        # Condition on all noise but the last step's: the runs are `drift` steps apart at most,
        # and the last noises of all honest clients add up.
        divided = one_step * self.certificate.drift(self.record_uses) / math.sqrt(honest_shares)
        return min(undivided, divided)


@mechanism("grid-gradients")
@dataclass(frozen=True)
class GridGradients(_Gradients):
    """Noisy gradients on integers: weights are rounded to nearest before the last, discrete, noise.

    Each client's last step adds discrete Gaussian noise of std learning_rate * gradient_std on a
    grid of spacing `granularity`; `dimension` weights. The noise is exact; the steps before it are
    taken in floating point, so more than one of them is not certified.
    """

    shares: int = 0
    certificate: NonExpansive = None  # type: ignore[assignment]
    granularity: float = 0.0
    dimension: int = 0
    law = "discrete Gaussian noise on gradients in shares"
    trusts = EVERY_TRUST - {Trust.LOCAL}

    def __post_init__(self) -> None:
        if self.certificate is None:
            raise GradientRefused(
                "gradients on a grid without a certificate: nothing bounds how far apart two runs "
                "are when the last noise comes",
                "give a NonExpansive certificate, or account NoisyGradients under local trust",
            )
        super().__post_init__()
        check_fields(self, granularity=positive, dimension=count, shares=count)

    @property
    def share_std(self) -> float:
        """Std of one client's last noise, in grid units."""
        return self.certificate.learning_rates[-1] * self.gradient_std / self.granularity

    def grid_sensitivity(self, factor: int) -> tuple[float, float]:
        """L2 and L1 distance of two rounded uploads, in grid units."""
        reach = self.certificate.drift(self.record_uses) * self.certificate.learning_rates[-1]
        root = math.sqrt(self.dimension)
        l2 = factor * reach * self.clip_norm / (self.batch_size * self.granularity) + root
        return l2, min(root * l2, l2**2)

    def step(self, use: Use) -> Step:
        l2, l1 = self.grid_sensitivity(use.factor)
        shares = use.honest_shares or self.shares
        return DiscreteSumStep(l2, l1, self.share_std, shares, self.dimension)

    def not_certified(self, model: PrivacyModel) -> str:
        if self.local_steps == 1:
            return ""
        return (
            "that several local steps keep two runs together is proved for real numbers; here they "
            "are taken in floating point, whose rounding may bring the runs further apart"
        )


def record_uses(*, local_steps: int, records: int, batch_size: int) -> int:
    """How often one record is touched in a round: a new shuffle each round, last batch dropped.

    ceil(local_steps / whole batches), not ceil(local_steps * batch_size / records).
    """
    local_steps = count("local_steps", local_steps)
    records, batch_size = count("records", records), count("batch_size", batch_size)
    # With fewer records than a batch, one short batch is all there is (still divided by its size).
    batches = max(1, records // batch_size)
    return -(-local_steps // batches)
