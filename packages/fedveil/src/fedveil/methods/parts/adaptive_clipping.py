"""Clips that change from round to round, by public counters or by released values only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from fedveil.core.arguments import plain_numbers
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.methods.parts.noise_placement import NoiseContext, NoisePlacement, RoundNoise
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import (
    Gaussian,
    joint_noise_multiplier,
    quantile_noise_multiplier,
)
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.server.optimizers import State

_WIDEST = 1e3  # a tracked clip stays within this factor of the first one
_BIT_NOISE = 0.05  # of the cohort: what Andrew et al. take,
_SHARE = 5.0  # but no less than this many times the noise on updates, which then grows by 2 %
_PER_OCTAVE = 8  # clips in use between C and 2 C: exact samplers are made once for each
_STEPS = math.ceil(math.log2(_WIDEST) * _PER_OCTAVE)  # from the first clip to either end


@dataclass(frozen=True)
class StepBound:
    """An update of clipped steps is as long as its steps allow: norm * (sum of the round's rates).

    Every gradient is clipped to `norm`, so by the triangle inequality no update is longer; the
    clip makes that hold in floating point too. Rates and steps are public.
    """

    norm: float
    order: int = 2

    def clip(self, local: LocalTraining, number: int, state: State) -> Clip:
        if local.steps is None and local.batch_size is not None:
            raise PrivacyRefusal(
                "epochs over batches take as many steps as a client has data, and a bound on "
                "the update must not depend on private sizes",
                "set training.local_steps, or leave training.batch_size out",
            )
        if local.momentum or local.weight_decay or local.penalty:
            raise PrivacyRefusal(
                "momentum, weight decay and penalties lengthen an update beyond its clipped steps",
                "leave them out, or clip the whole update (method dp-fedavg)",
            )
        rates = local.learning_rate.of_round(number, local.steps or local.epochs or 1)
        return Clip(self.norm * math.fsum(rates), self.order)


@dataclass(frozen=True)
class AdaptiveClipping:
    """The clip follows a quantile of the update norms (Andrew et al. 2021).

    Every client adds one bit, whether its update was within the clip; the noisy count is released
    beside the update:

        share <- 1/2 + (sum of (bit - 1/2) + noise of std bit_noise * cohort) / cohort
        C     <- C * exp(-rate * (share - quantile))

    Each release adds (1/2)^2 / std^2 to the cost, accounted together with the update's. At rate 0
    the clip stays and the share of unclipped updates is a private statistic. `bit_noise=None` takes
    0.05 or, where that would cost more, as much as makes the updates' noise grow by 2 %.
    """

    initial: Clip
    quantile: float = 0.5
    rate: float = 0.2
    bit_noise: float | None = None  # std of the noise on the count, as a share of the cohort
    highest: float | None = None  # what the clip never exceeds

    def __post_init__(self) -> None:
        plain_numbers(self)
        if not 0 < self.quantile < 1:
            raise ConfigError(f"privacy.clip_quantile: must be in (0, 1), got {self.quantile}")
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise ConfigError(f"privacy.clip_rate: must be zero or positive, got {self.rate}")
        if self.bit_noise is not None and not 0 < self.bit_noise < math.inf:
            raise PrivacyRefusal(
                f"tracking a quantile with noise {self.bit_noise} would release it unprotected",
                "set privacy.clip_noise to a positive share of the cohort, such as 0.05",
            )
        if self.highest is not None and not self.initial.norm <= self.highest < math.inf:
            raise ConfigError(
                f"privacy.clip_highest: {self.highest:g} is below the clip {self.initial.norm:g}, "
                "which is the first"
            )

    def clip(self, local: LocalTraining, number: int, state: State) -> Clip:
        if "clip_norm" not in state:
            return self.initial
        octaves = math.log2(float(state["clip_norm"]) / self.initial.norm)
        return self._at(min(round(octaves * _PER_OCTAVE), self._most))

    def clips(self) -> Iterator[Clip]:
        """All clips that may ever be in use."""
        for step in range(-_STEPS, self._most + 1):
            yield self._at(step)

    def _at(self, step: int) -> Clip:
        return replace(self.initial, norm=self.initial.norm * 2.0 ** (step / _PER_OCTAVE))

    @property
    def _most(self) -> int:
        """Steps up to the highest clip."""
        if self.highest is None:
            return _STEPS
        return min(_STEPS, math.floor(math.log2(self.highest / self.initial.norm) * _PER_OCTAVE))

    def allows(self, norm: float) -> bool:
        """Whether a tracked clip may ever come to this."""
        below = self.highest is None or norm <= self.highest
        return below and 1 / _WIDEST <= norm / self.initial.norm <= _WIDEST

    def bit_terms(self, placement: NoisePlacement, context: NoiseContext) -> NoiseContext:
        """The count as a sum of vectors of one coordinate, each of norm one half."""
        cohort = context.sampling.expected_cohort
        std = (_BIT_NOISE if self.bit_noise is None else self.bit_noise) * cohort
        if placement.privacy_model(context).trust is Trust.LOCAL:
            std /= math.sqrt(cohort)  # every client adds as much
        noise_multiplier = quantile_noise_multiplier(std)
        if self.bit_noise is None:
            noise_multiplier = max(noise_multiplier, _SHARE * context.noise_multiplier)
        return replace(
            context,
            pipeline=UpdatePipeline(clip=Clip(0.5, self.initial.order)),
            layout=Layout((Slot("below", (1,), 0),)),
            noise_multiplier=noise_multiplier,
        )

    def releases(
        self, placement: NoisePlacement, context: NoiseContext, rounds: int
    ) -> tuple[Release, ...]:
        """The releases of updates and counts together."""
        updates = placement.releases(context, rounds)
        counts = placement.releases(self.bit_terms(placement, context), rounds)
        (update,), (count,) = updates, counts
        if isinstance(update.mechanism, Gaussian) and isinstance(count.mechanism, Gaussian):
            # Both see the same cohort: one Gaussian, sampled once.
            joint = joint_noise_multiplier(
                update.mechanism.noise_multiplier, count.mechanism.noise_multiplier
            )
            return (replace(update, mechanism=Gaussian(joint)),)
        if update.amplified:
            raise PrivacyRefusal(
                "two kinds of noise on one secret cohort have no proved joint amplification",
                "use Gaussian noise, or a fixed clip",
            )
        return updates + counts

    def count_noise(self, placement: NoisePlacement, at: RoundNoise) -> RoundNoise:
        """Return how the count of a round is protected."""
        own = self.bit_terms(placement, at.context)
        pipeline = placement.pipeline(own, None, at.round_number)
        return RoundNoise(own, pipeline, at.round_number)

    def halves(self, at: RoundNoise, clip: Clip, norms: torch.Tensor) -> torch.Tensor:
        """Return what each client adds to the count, `[cohort, width]`: half, with its sign.

        Args:
            at: How the count is protected.
            clip: The clip of the round's updates.
            norms: The norms of the updates, `[cohort]`.
        """
        pipeline = at.pipeline
        halves = torch.where(norms <= clip.norm, 0.5, -0.5).double()[:, None]
        if pipeline.rotation is not None:
            halves = pipeline.rotation.forward(halves, at.round_number)
        if pipeline.granularity is not None:
            halves = (halves / pipeline.granularity).long()  # powers of two: exact
        return halves

    def follow(self, count: float, clients: float, clip: Clip, state: State) -> tuple[State, float]:
        """The clip's next state, and the released share of norms within the present one."""
        share = 0.5 + count / clients
        norm = float(state["clip_norm"]) if "clip_norm" in state else clip.norm
        # Further than from one end to the other it cannot go, and exp() must not overflow.
        far = 2 * math.log(_WIDEST)
        turn = -self.rate * (min(1.0, max(0.0, share)) - self.quantile)
        moved = norm * math.exp(min(far, max(-far, turn)))
        low, high = self.initial.norm / _WIDEST, self.initial.norm * _WIDEST
        if self.highest is not None:
            high = min(high, self.highest)
        return {"clip_norm": torch.tensor([min(high, max(low, moved))], dtype=torch.float64)}, share


ClipRule = StepBound | AdaptiveClipping
