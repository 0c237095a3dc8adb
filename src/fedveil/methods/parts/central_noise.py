"""Noise that a trusted aggregator adds to the sum of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.client.local_training import LocalRule
from fedveil.client.update_pipeline import Shaping
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.noise_placement import Noise, Occasion, Promise, Terms, hidden_change
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.noise import (
    choose_granularity,
    gaussian,
    laplace,
    protect_sum,
    protect_sum_laplace,
    unsnap,
)
from fedveil.privacy.refusals import SensitivityRefused


@dataclass(frozen=True)
class CentralNoise:
    """Noise z C on every coordinate of the sum, where C bounds one client's update.

    Exact arithmetic: the updates are integers on a grid, the sum is exact, and Gaussian noise is a
    continuous one rounded to the grid, which is post-processing of the continuous mechanism.
    """

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency | None = None  # None: the one that the sampling's proof is about
    colluders: int = 0

    def promise(self, terms: Terms) -> Promise:
        adjacency = hidden_change(terms, self.adjacency)
        return Promise(Unit.CLIENT, adjacency, Trust.CENTRAL, self.colluders)

    def local(self, terms: Terms) -> LocalRule:
        return terms.local

    def shaping(self, terms: Terms, clip: Clip | None, round: int = 0) -> Shaping:
        clip = clip or terms.clip
        if terms.exact:
            return replace(terms.shaping, clip=clip, granularity=fine_grid(terms, clip))
        return terms.shaping if clip == terms.shaping.clip else replace(terms.shaping, clip=clip)

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        return (Release(mechanism_of(self.noise, terms), terms.sampling, rounds),)

    def noise_steps(self, terms: Terms, shaping: Shaping, round: int) -> float | None:
        return whole_noise(terms, shaping)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        scale = terms.noise_multiplier * (shaping.clip or terms.clip).norm
        stream, gauss = occasion.stream(), self.noise is Noise.GAUSSIAN
        if shaping.granularity is None:
            drawn = (gaussian if gauss else laplace)(stream, len(total), scale)
            return (total + torch.from_numpy(drawn)).float()
        add = protect_sum if gauss else protect_sum_laplace
        noisy = add(total.numpy(), scale, shaping.granularity, stream)
        return torch.from_numpy(unsnap(noisy, shaping.granularity)).float()


def mechanism_of(noise: Noise, terms: Terms) -> Gaussian | Laplace:
    """What one participation releases. Laplace noise needs a bound in L1, its own norm."""
    if noise is Noise.LAPLACE:
        if terms.clip.order != 1:
            raise SensitivityRefused(
                "Laplace noise beside a clip in L2: in L1 such an update is longer, by up to the "
                "root of the number of weights",
                "clip in L1 (Clip(norm, order=1)), or use Gaussian noise",
            )
        return Laplace(terms.noise_multiplier)
    return Gaussian(terms.noise_multiplier)


def whole_noise(terms: Terms, shaping: Shaping) -> float | None:
    """Noise z C in steps of the grid."""
    if shaping.granularity is None:
        return None
    return terms.noise_multiplier * (shaping.clip or terms.clip).norm / shaping.granularity


def fine_grid(terms: Terms, clip: Clip) -> float:
    """A grid on which neither the updates nor the noise lose anything that could be noticed."""
    noise, width = terms.noise_multiplier * clip.norm, terms.shaping.width(terms.layout)
    return choose_granularity(clip.norm, noise, width, terms.clients, order=clip.order)
