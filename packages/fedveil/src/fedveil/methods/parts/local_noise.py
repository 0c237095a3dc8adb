"""Noise that every client adds to its own upload: nobody needs to be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.arrays import Ints
from fedveil.core.randomness import Stream
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.central_noise import fine_pipeline, mechanism_of
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    RoundContext,
    RoundNoise,
    noise_of_each,
    noisy_integers,
    worst_case,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise.grid import unsnap
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.training.client.local_training import LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline


@dataclass(frozen=True)
class LocalNoise:
    """Noise z C on every coordinate of each upload. Sampling gives no credit: uploads are seen."""

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency = Adjacency.REPLACE
    white: ClassVar[bool] = True  # independent between coordinates and rounds, of known size

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(Noise), adjacency=one_of(Adjacency))

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        return PrivacyModel(Unit.CLIENT, self.adjacency, Trust.LOCAL)

    def local(self, context: NoiseContext) -> LocalTraining:
        return context.local

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        return fine_pipeline(context, clip or context.clip)

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(context.sampling, rounds)
        mechanism = mechanism_of(self.noise, context)
        return (Release(mechanism, context.sampling, rounds, participations=seen),)

    def noise_steps(self, at: RoundNoise) -> float | None:
        return None if at.grid is None else at.scale / at.grid

    def deviation(self, at: RoundNoise, clients: int) -> float:
        """Return the standard deviation of the noise on a coordinate of the sum of uploads."""
        return at.scale * self.noise.deviation * math.sqrt(clients)

    def protect(self, at: RoundNoise, total: Tensor, this_round: RoundContext) -> Tensor:
        """The sum of noisy uploads: each client's noise is drawn by itself, from its own stream."""
        if at.grid is None:
            return noise_of_each(self.noise, total, at.scale, this_round)
        whole = total.numpy().copy()
        nothing = np.zeros(len(whole), dtype=np.int64)
        for stream in this_round.streams():
            # Integers add exactly: the noisy uploads' sum is the sum plus everybody's noise.
            whole += self.upload(at, nothing, stream)
        return torch.from_numpy(unsnap(whole, at.grid)).float()

    def upload(self, at: RoundNoise, row: Ints, stream: Stream) -> Ints:
        """What a client sends: its integers with its own noise."""
        if at.grid is None:
            raise ValueError("only uploads on a grid have integers")
        return noisy_integers(self.noise, row, at.scale, at.grid, stream)
