"""Noise on every local gradient (Hu et al.): one record of one client is protected.

Which proof applies is decided here, from the model, the number of local steps and the secure sum:

    alone     uploads seen one by one, or several steps of a model that may expand: undivided
    one step  under a secure sum, all clients' noise covers the record
    convex    several steps of a non-expansive linear model under a secure sum

The fourth way, clipping the whole update and adding noise once, protects clients and is
`DistributedNoise`.

Exact arithmetic. Alone: each mean gradient is rounded to a grid and a Gaussian rounded to that grid
is added. Under a secure sum: uploads are rounded to the nearest point of a grid, and the last
step's noise is a discrete Gaussian share on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor, nn

from fedveil.core.arguments import check_fields, flag, one_of
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.certificate import non_expansive
from fedveil.methods.parts.local_steps import least_noise, local_steps, longest_way, rates
from fedveil.methods.parts.noise_placement import (
    NoiseContext,
    RoundContext,
    RoundNoise,
    decoded,
    fixed_cohort_size,
    in_shares,
    worst_case,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import DiscreteGaussianSum
from fedveil.privacy.noise.grid import power_of_two_below
from fedveil.privacy.noise.modular_grid import ModularGrid, NoisyIntegers, bits_for
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.training.client.local_training import GradientClip, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline

_ROUNDING = 1e-3  # how much rounding an upload may add to what one record moves
_ROOM = 4.0  # uploads may be this much longer than gradients and noise make them; then they are cut
_LONGEST = 2.0**29  # of an upload, in steps of its grid: squares still add up in 64 bits
_BELOW_NOISE = 2.0**-10  # the grid of uploads that are private already, beside their noise
_WRAP = 1e-6  # probability that a round's sum leaves its words: costs accuracy, not privacy


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

    def __post_init__(self) -> None:
        check_fields(self, adjacency=one_of(Adjacency), secure_sum=flag)

    def proof(self, context: NoiseContext) -> Proof:
        """The strongest statement that is proved for these terms."""
        if not self.secure_sum:
            return Proof.ALONE
        if context.local.projection_radius is not None:
            return Proof.ALONE  # what follows a client's own noise keeps it from adding up
        if local_steps(context).most == 1:
            return Proof.ONE_STEP
        honest = fixed_cohort_size(context.sampling) - self.colluders
        assumed = context.honest_shares(self.honest_shares)
        if assumed is not None:
            honest = min(honest, assumed)
        if honest <= local_steps(context).uses or non_expansive(context) is None:
            return Proof.ALONE
        return Proof.CONVEX

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        _check(context, self.secure_sum)
        if self.proof(context) is Proof.ALONE:
            return PrivacyModel(Unit.RECORD, self.adjacency, Trust.LOCAL)
        return in_shares(Unit.RECORD, self.adjacency, self, context)

    def local(self, context: NoiseContext) -> LocalTraining:
        alone = self.proof(context) is Proof.ALONE
        return replace(
            context.local,
            gradient_noise=self._std(context),
            gradient_grid=_gradient_grid(context) if context.exact and alone else None,
            last_step_noise=alone or not context.exact,
        )

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        if self.proof(context) is Proof.ALONE:
            if context.secure is None:
                return context.pipeline
            # Uploads are private as they are: bounding and rounding them costs no privacy.
            grid = self._private_grid(context, round_number)
            room = min(self._reach(context, round_number), _LONGEST * grid)
        elif context.exact:
            # The clip never acts: one that did could bring two rounded uploads further apart.
            grid = self._upload_grid(context, round_number)
            room = self._reach(context, round_number)
        else:
            return context.pipeline
        return replace(context.pipeline, clip=Clip(room), granularity=grid)

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(context.sampling, rounds)
        return (Release(self._mechanism(context), context.sampling, rounds, participations=seen),)

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        """The noise is in the updates already, but for the shares on a grid."""
        integers = self.integers(at)
        if integers is None:
            return total.float()
        return self.decode(at, integers.noisy_sum(total.numpy(), this_round.streams()))

    def integers(self, at: RoundNoise) -> NoisyIntegers | None:
        grid, clip = at.grid, at.pipeline.clip
        if grid is None or clip is None:
            return None
        std = self._share_std(at.context, at.round_number)
        clients, size = fixed_cohort_size(at.context.sampling), at.context.layout.size
        bits = bits_for(clients, clip.norm, grid, std, _WRAP, size).bits
        return NoisyIntegers(ModularGrid(grid, bits), std)

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        return decoded(self.integers(at), whole)

    def noise_steps(self, at: RoundNoise) -> float | None:
        context, number = at.context, at.round_number
        if not context.exact:
            return None
        if self.proof(context) is Proof.ALONE:
            return self._std(context) / _gradient_grid(context)
        return self._share_std(context, number) / self._upload_grid(context, number)

    def _reach(self, context: NoiseContext, round_number: int) -> float:
        """A length that no upload has: clipped gradients, and more noise than ever comes."""
        noise = self._std(context) * (math.sqrt(context.layout.size) + 6)
        steps = longest_way(context, round_number) / (1 - context.local.momentum)
        return _ROOM * steps * (_bound(context) + noise)

    def _private_grid(self, context: NoiseContext, round_number: int) -> float:
        """Far below the noise of an upload."""
        return power_of_two_below(
            _BELOW_NOISE * least_noise(context, round_number) * self._std(context)
        )

    def _upload_grid(self, context: NoiseContext, round_number: int) -> float:
        return power_of_two_below(self._coarsest_grid(context, round_number))

    def _coarsest_grid(self, context: NoiseContext, round_number: int) -> float:
        """What the grid of a round's uploads does not exceed.

        Rounding adds at most a step in each coordinate to what one record moves, and no upload is
        longer than `_LONGEST` steps. Beside the rate of the last step this is largest in the first
        round: rates within a round become more alike as they fall.
        """
        reach = rates(context, round_number)[-1] * _clip(context).norm / _batch(context)
        fine = _ROUNDING * reach / math.sqrt(context.layout.size)
        return max(fine, 2 * self._reach(context, round_number) / _LONGEST)

    def _share_std(self, context: NoiseContext, round_number: int) -> float:
        """The noise that comes with an upload: the last step's, if uploads are not private yet."""
        alone = self.proof(context) is Proof.ALONE
        return 0.0 if alone else rates(context, round_number)[-1] * self._std(context)

    def _std(self, context: NoiseContext) -> float:
        return context.noise_multiplier * _bound(context) / _batch(context)

    def _mechanism(self, context: NoiseContext) -> Mechanism:
        """What one participation releases, in any round.

        Noise and sensitivity fall together with the rates, and grids are powers of two: beside the
        rate no round's grid is coarser than the one that is accounted.
        """
        proof, count = self.proof(context), local_steps(context)
        steps, uses = count.most, count.uses
        bound, batch, std = _bound(context), _batch(context), self._std(context)
        if proof is Proof.ALONE:
            return NoisyGradients(bound, batch, std, steps, uses)
        shares, rate = fixed_cohort_size(context.sampling), rates(context, 0)[-1]
        certificate = non_expansive(context) if proof is Proof.CONVEX else None
        if not context.exact:
            return NoisyGradients(bound, batch, std, steps, uses, shares, certificate)
        grid, size = self._coarsest_grid(context, 0) * (1 + 1e-12), context.layout.size
        if certificate is not None:
            return GridGradients(bound, batch, std, steps, uses, shares, certificate, grid, size)
        # One step: a record moves an upload by at most 2 rate G / batch before it is rounded.
        return DiscreteGaussianSum(rate * bound / batch, grid, rate * std, shares, size, 0.0)


def _bound(context: NoiseContext) -> float:
    """What one example's gradient counts for: its clip, and in exact arithmetic a little more.

    A sum of b clipped gradients in single precision is off by at most b * 2^-24 times the sum of
    their lengths, and each mean is rounded to a grid. Neighbouring batches err differently, so
    both errors widen what one record can do.
    """
    clip, batch = _clip(context).norm, _batch(context)
    return clip * (1 + batch * (batch + 4) * 2.0**-24 + 2e-6) if context.exact else clip


def _gradient_grid(context: NoiseContext) -> float:
    """Rounding moves a gradient by half a step in each coordinate: 1e-6 of what a record does."""
    step = 2e-6 * _clip(context).norm / (_batch(context) * math.sqrt(context.layout.size))
    return power_of_two_below(step)


def _check(context: NoiseContext, secure_sum: bool) -> None:
    for name, layer in context.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise PrivacyRefusal(
                f"per-example clipping with batch normalisation ({name or 'the model'}): it mixes "
                "the examples of a batch, so one record moves every example's gradient",
                "use group normalisation",
            )
    _clip(context)
    _batch(context)
    shaping = context.pipeline
    if shaping.clip is not None or shaping.sparsity or shaping.weight_cap:
        raise ConfigError("gradient noise: updates are already private; shape them on the server")
    if context.exact and (context.local.projection_radius is not None or context.local.momentum):
        raise ConfigError("gradient noise: on integers it goes with plain steps, without momentum")
    decays = secure_sum and context.local.weight_decay
    if context.exact and decays and local_steps(context).most == 1:
        raise PrivacyRefusal(
            "weight decay in the one step of a round: beside large weights a gradient is rounded, "
            "and one record can move an upload by more than its clip",
            "leave training.weight_decay out, or use privacy.trust local",
        )


def _clip(context: NoiseContext) -> GradientClip:
    clip = context.local.gradient_clip
    if clip is None or not clip.per_example or clip.order != 2:
        raise PrivacyRefusal(
            "gradient noise protects a record only if each example's gradient is clipped in L2",
            "use method gradient-noise or dp-sgd, which do",
        )
    return clip


def _batch(context: NoiseContext) -> int:
    if context.local.batch_size is None:
        raise ConfigError(
            "training.batch_size: set it; the sum of clipped gradients is divided by a fixed number"
        )
    return context.local.batch_size
