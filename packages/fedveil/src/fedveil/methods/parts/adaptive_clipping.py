"""A clip that follows a quantile of the update norms, by released counts only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from fedveil.core.arguments import check_fields, interval, plain_numbers
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.methods.parts.clip_rule import ClipRule
from fedveil.methods.parts.noise_placement import NoiseContext, RoundNoise
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import quantile_noise_multiplier
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
class AdaptiveClipping(ClipRule):
    """A clip that follows a quantile of the update norms (Andrew et al. 2021).

    Every client adds one bit, whether its update was within the clip; the noisy count is released
    beside the update:

        share <- 1/2 + (sum of (bit - 1/2) + noise of std bit_noise * cohort) / cohort
        C     <- C * exp(-rate * (share - quantile))

    Each release adds (1/2)^2 / std^2 to the cost, accounted together with the update's.

    Attributes:
        initial: The clip of the first round.
        quantile: The share of updates that should be within the clip.
        rate: How fast the clip moves. At 0 it stays, and the share is a private statistic.
        bit_noise: Std of the noise on the share; None: 0.05 or, where that would cost more, as much
            as makes the updates' noise grow by 2 %.
        highest: The largest clip; None: any.
    """

    initial: Clip
    quantile: float = 0.5
    rate: float = 0.2
    bit_noise: float | None = None  # std of the noise on the count, as a share of the cohort
    highest: float | None = None  # what the clip never exceeds

    tracked = True

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, "privacy.clip_", quantile=interval("(0, 1)"), rate=interval("[0, inf)"))
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

    def state_at(self, norm: float) -> State | None:
        below = self.highest is None or norm <= self.highest
        if not (below and 1 / _WIDEST <= norm / self.initial.norm <= _WIDEST):
            return None
        return {"clip_norm": torch.tensor([norm], dtype=torch.float64)}

    def count_facts(self, facts: NoiseContext, trust: Trust) -> NoiseContext:
        """The count as a sum of vectors of one coordinate, each of norm one half."""
        cohort = facts.sampling.expected_cohort
        std = (_BIT_NOISE if self.bit_noise is None else self.bit_noise) * cohort
        if trust is Trust.LOCAL:
            std /= math.sqrt(cohort)  # every client adds as much
        noise_multiplier = quantile_noise_multiplier(std)
        if self.bit_noise is None:
            noise_multiplier = max(noise_multiplier, _SHARE * facts.noise_multiplier)
        return replace(
            facts,
            pipeline=UpdatePipeline(clip=Clip(0.5, self.initial.order)),
            layout=Layout((Slot("below", (1,), 0),)),
            noise_multiplier=noise_multiplier,
            clip_rule=None,
        )

    def halves(self, count: RoundNoise, clip: Clip, norms: torch.Tensor) -> torch.Tensor:
        pipeline = count.pipeline
        halves = torch.where(norms <= clip.norm, 0.5, -0.5).double()[:, None]
        if pipeline.rotation is not None:
            halves = pipeline.rotation.forward(halves, count.round_number)
        if pipeline.granularity is not None:
            halves = (halves / pipeline.granularity).long()  # powers of two: exact
        return halves

    def follow(self, count: float, clients: float, clip: Clip, state: State) -> tuple[State, float]:
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
