"""Noise by a trusted aggregator that partly cancels from round to round, for public schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Entropy
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.noise_placement import Noise, NoiseContext, RoundContext, RoundNoise
from fedveil.privacy.correlated import (
    ONE,
    CorrelatedGaussian,
    Factor,
    FactorKind,
    factor_of,
    noise_ratio,
)
from fedveil.privacy.noise.grid import unsnap
from fedveil.privacy.releases import Release


@dataclass(frozen=True)
class CorrelatedNoise(CentralNoise):
    """Fresh noise z C less a part of the noise of the `bands` - 1 rounds before.

    `bands=None` takes as many as the schedule allows: the rounds from one turn of a client to its
    next. `momentum` is the server's, to which an optimised factor is fitted.
    """

    kind: FactorKind = FactorKind.OPTIMISED
    bands: int | None = None
    momentum: float = 0.0
    white: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, kind=one_of(FactorKind))
        if self.noise is not Noise.GAUSSIAN:
            raise PrivacyRefusal(
                "correlated Laplace noise has no proof", "use privacy.noise gaussian"
            )
        if self.bands is not None and self.bands < 1:
            raise ConfigError(f"privacy.bands: must be at least 1, got {self.bands}")

    def factor(self, context: NoiseContext) -> Factor:
        """The factor that noise is drawn with, and accounted."""
        bands = self.bands or min(context.sampling.separation, context.rounds)
        if bands == 1 < context.rounds and self.bands is None and not context.sampling.amplifies:
            raise ConfigError(
                "privacy.correlated: a client may come back in the very next round, so no noise "
                "can cancel; use sampling round-robin with cohorts of at most half of the clients"
            )
        return factor_of(self.kind, bands, context.rounds, self.momentum)

    def noise_ratio(self, context: NoiseContext) -> float:
        """The error of the weights beside that of independent noise of the same multiplier."""
        return noise_ratio(self.factor(context), context.rounds, self.momentum)

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        law = CorrelatedGaussian(context.noise_multiplier, self.factor(context))
        return (Release(law, context.sampling, rounds),)

    def noise_steps(self, at: RoundNoise) -> float | None:
        steps = super().noise_steps(at)
        return None if steps is None else steps * ONE

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        memory, std = this_round.memory, at.scale
        if memory is None or at.pipeline.clip != at.context.clip:
            raise RuntimeError("correlated noise needs a memory, and one clip in all rounds")
        grid, factor = at.grid, self.factor(at.context)
        if memory.next_round != this_round.round_number:
            # After an interruption a simulation draws the same noise again; nothing else can.
            seeded = this_round.randomness.entropy is Entropy.SEEDED
            memory.begin(0 if seeded else this_round.round_number)
            for missed in range(memory.next_round, this_round.round_number):
                stream = replace(this_round, round_number=missed).stream()
                memory.draw(stream, len(total), std, grid, factor)
        noise = memory.draw(this_round.stream(), len(total), std, grid, factor)
        noisy = total + torch.from_numpy(noise)
        if grid is None:
            return noisy.float()
        return torch.from_numpy(unsnap(noisy.numpy(), grid)).float()
