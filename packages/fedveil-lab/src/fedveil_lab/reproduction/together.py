"""Everybody's local noise drawn in one go: the same law, for thousands of simulated clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import Noise, RoundNoise
from fedveil.privacy.noise.simulated import gaussian, laplace


@dataclass(frozen=True)
class TogetherNoise(LocalNoise):
    """`LocalNoise` whose `b` clients share one stream: only their sum is ever looked at.

    For seeded runs. What is released, and so what is accounted for, is the same.
    """

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        if self.facts.exact:
            return super().protect(at, total)
        scale = at.scale
        stream, clients, size = at.stream(), len(at.cohort), len(total)
        if self.noise is Noise.GAUSSIAN:  # a sum of Gaussians is one
            drawn = gaussian(stream, size, scale * clients**0.5)
        else:
            drawn = laplace(stream, clients * size, scale).reshape(clients, size).sum(axis=0)
        return (total.double() + torch.from_numpy(drawn)).float()


def drawn_together(method: Method) -> Method:
    """The method with its local noise drawn in one go; any other method as it is."""
    own = method.placement
    if type(own) is not LocalNoise:
        return method
    return replace(method, placement=TogetherNoise(own.noise, own.adjacency))
