"""Noise by a trusted aggregator that partly cancels from round to round, for public schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Entropy
from fedveil.methods.parts.central_noise import CentralNoise
from fedveil.methods.parts.noise_placement import Noise, RoundNoise, on_grid
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.correlated import (
    ONE,
    CorrelatedGaussian,
    Factor,
    FactorKind,
    factor_of,
    noise_ratio,
)


@dataclass(frozen=True)
class CorrelatedNoise(CentralNoise):
    """Fresh noise z C less a part of the noise of the `bands` - 1 rounds before.

    `bands=None` takes as many as the schedule allows: the rounds from one turn of a client to its
    next. `momentum` is the server's, to which an optimised factor is fitted.
    """

    kind: FactorKind = FactorKind.OPTIMISED
    bands: int | None = None
    momentum: float = 0.0

    fixed_clip = True
    white = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, kind=one_of(FactorKind))
        if self.noise is not Noise.GAUSSIAN:
            raise PrivacyRefusal(
                "correlated Laplace noise has no proof", "use privacy.noise gaussian"
            )
        if self.bands is not None and self.bands < 1:
            raise ConfigError(f"privacy.bands: must be at least 1, got {self.bands}")

    @cached_property
    def factor(self) -> Factor:
        """The factor that noise is drawn with, and accounted."""
        rounds, sampling = self.facts.rounds, self.facts.sampling
        bands = self.bands or min(sampling.separation, rounds)
        if bands == 1 < rounds and self.bands is None and not sampling.amplifies:
            raise ConfigError(
                "privacy.correlated: a client may come back in the very next round, so no noise "
                "can cancel; use sampling round-robin with cohorts of at most half of the clients"
            )
        return factor_of(self.kind, bands, rounds, self.momentum)

    @property
    def noise_ratio(self) -> float:
        return noise_ratio(self.factor, self.facts.rounds, self.momentum)

    def mechanism(self) -> Mechanism:
        return CorrelatedGaussian(self.facts.noise_multiplier, self.factor)

    def noise_steps(self, at: RoundNoise) -> float | None:
        steps = super().noise_steps(at)
        return None if steps is None else steps * ONE

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        memory, std, grid = at.memory, at.scale, at.grid
        if memory is None or at.pipeline.clip != self.facts.clip:
            raise RuntimeError("correlated noise needs a memory, and one clip in all rounds")
        if memory.next_round != at.round_number:
            # After an interruption a simulation draws the same noise again; nothing else can.
            seeded = at.randomness.entropy is Entropy.SEEDED
            memory.begin(0 if seeded else at.round_number)
            for missed in range(memory.next_round, at.round_number):
                stream = replace(at, round_number=missed).stream()
                memory.draw(stream, len(total), std, grid, self.factor)
        noise = memory.draw(at.stream(), len(total), std, grid, self.factor)
        noisy = total + torch.from_numpy(noise)
        return noisy.float() if grid is None else on_grid(noisy.numpy(), grid)
