"""Noise that every client adds to its own upload: nobody needs to be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedveil.client.local_training import LocalRule
from fedveil.client.update_pipeline import Shaping
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.central_noise import fine_grid, mechanism_of, whole_noise
from fedveil.methods.parts.noise_placement import Noise, Occasion, Promise, Terms, worst_case
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.noise import gaussian, laplace, protect_sum, protect_sum_laplace, unsnap


@dataclass(frozen=True)
class LocalNoise:
    """Noise z C on every coordinate of each upload. Sampling gives no credit: uploads are seen."""

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency = Adjacency.REPLACE

    def promise(self, terms: Terms) -> Promise:
        return Promise(Unit.CLIENT, self.adjacency, Trust.LOCAL)

    def local(self, terms: Terms) -> LocalRule:
        return terms.local

    def shaping(self, terms: Terms, clip: Clip | None, round: int = 0) -> Shaping:
        clip = clip or terms.clip
        shaping = replace(terms.shaping, clip=clip)
        return replace(shaping, granularity=fine_grid(terms, clip)) if terms.exact else shaping

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        seen = worst_case(terms.sampling, rounds)
        mechanism = mechanism_of(self.noise, terms)
        return (Release(mechanism, terms.sampling, rounds, participations=seen),)

    def noise_steps(self, terms: Terms, shaping: Shaping, round: int) -> float | None:
        return whole_noise(terms, shaping)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        """The sum of noisy uploads: each client's noise is drawn by itself, from its own stream."""
        scale = terms.noise_multiplier * (shaping.clip or terms.clip).norm
        gauss, grid = self.noise is Noise.GAUSSIAN, shaping.granularity
        if grid is None:
            noisy = total.double().numpy().copy()
            for client in occasion.cohort:
                noisy += (gaussian if gauss else laplace)(
                    occasion.stream(client), len(total), scale
                )
            return torch.from_numpy(noisy).float()
        add = protect_sum if gauss else protect_sum_laplace
        whole = total.numpy().copy()
        nothing = np.zeros(len(whole), dtype=np.int64)
        for client in occasion.cohort:
            # Integers add exactly: the noisy uploads' sum is the sum plus everybody's noise.
            whole += add(nothing, scale, grid, occasion.stream(client))
        return torch.from_numpy(unsnap(whole, grid)).float()
