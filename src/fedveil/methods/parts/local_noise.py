"""Noise that every client adds to its own upload: nobody needs to be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedveil.client.local_training import LocalTraining
from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.core.randomness import Stream
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.central_noise import fine_grid, mechanism_of, whole_noise
from fedveil.methods.parts.noise_placement import (
    Noise,
    NoiseContext,
    RoundContext,
    worst_case,
)
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise import gaussian, laplace, protect_sum, protect_sum_laplace, unsnap
from fedveil.privacy.noise.modular_grid import Ints
from fedveil.privacy.releases import PrivacyModel, Release


@dataclass(frozen=True)
class LocalNoise:
    """Noise z C on every coordinate of each upload. Sampling gives no credit: uploads are seen."""

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency = Adjacency.REPLACE

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        return PrivacyModel(Unit.CLIENT, self.adjacency, Trust.LOCAL)

    def local(self, context: NoiseContext) -> LocalTraining:
        return context.local

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        clip = clip or context.clip
        pipeline = replace(context.pipeline, clip=clip)
        return (
            replace(pipeline, granularity=fine_grid(context, clip)) if context.exact else pipeline
        )

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(context.sampling, rounds)
        mechanism = mechanism_of(self.noise, context)
        return (Release(mechanism, context.sampling, rounds, participations=seen),)

    def noise_steps(
        self, context: NoiseContext, pipeline: UpdatePipeline, round_number: int
    ) -> float | None:
        return whole_noise(context, pipeline)

    def protect(
        self,
        context: NoiseContext,
        total: Tensor,
        pipeline: UpdatePipeline,
        this_round: RoundContext,
    ) -> Tensor:
        """The sum of noisy uploads: each client's noise is drawn by itself, from its own stream."""
        grid = pipeline.granularity
        if grid is None:
            noisy, scale = total.double().numpy().copy(), self._scale(context, pipeline)
            draw = gaussian if self.noise is Noise.GAUSSIAN else laplace
            for client in this_round.cohort:
                noisy += draw(this_round.stream(client), len(total), scale)
            return torch.from_numpy(noisy).float()
        whole = total.numpy().copy()
        nothing = np.zeros(len(whole), dtype=np.int64)
        for client in this_round.cohort:
            # Integers add exactly: the noisy uploads' sum is the sum plus everybody's noise.
            whole += self.upload(context, nothing, pipeline, this_round.stream(client))
        return torch.from_numpy(unsnap(whole, grid)).float()

    def upload(
        self, context: NoiseContext, row: Ints, pipeline: UpdatePipeline, stream: Stream
    ) -> Ints:
        """What a client sends: its integers with its own noise."""
        if pipeline.granularity is None:
            raise ValueError("only uploads on a grid have integers")
        add = protect_sum if self.noise is Noise.GAUSSIAN else protect_sum_laplace
        return add(row, self._scale(context, pipeline), pipeline.granularity, stream)

    @staticmethod
    def _scale(context: NoiseContext, pipeline: UpdatePipeline) -> float:
        return context.noise_multiplier * (pipeline.clip or context.clip).norm
