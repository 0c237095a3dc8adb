"""Noise that every client adds to its own upload: nobody needs to be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.arrays import Ints
from fedveil.core.randomness import Stream
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.methods.parts.central_noise import mechanism_of
from fedveil.methods.parts.noise_placement import (
    Drawn,
    Noise,
    NoisePlacement,
    RoundNoise,
    noisy_integers,
    on_grid,
    with_shares,
)
from fedveil.privacy.contract import Mechanism
from fedveil.privacy.releases import PrivacyModel


@dataclass(frozen=True)
class LocalNoise(NoisePlacement):
    """Noise z C on every coordinate of each upload. Sampling gives no credit: uploads are seen."""

    noise: Noise = Noise.GAUSSIAN
    adjacency: Adjacency = Adjacency.REPLACE

    white = True

    def __post_init__(self) -> None:
        check_fields(self, noise=one_of(Noise), adjacency=one_of(Adjacency))

    @property
    def drawn(self) -> Drawn:
        return Drawn.BY_EACH

    def privacy_model(self) -> PrivacyModel:
        return PrivacyModel(Unit.CLIENT, self.adjacency, Trust.LOCAL)

    def mechanism(self) -> Mechanism:
        return mechanism_of(self.noise, self.facts)

    def deviation(self, at: RoundNoise, clients: int) -> float | None:
        return at.scale * self.noise.deviation * math.sqrt(clients)

    def protect(self, at: RoundNoise, total: Tensor) -> Tensor:
        """Return the sum of noisy uploads: each client's noise comes from its own stream."""
        if at.grid is None:
            return with_shares(at, total, at.scale, self.noise)
        whole = total.numpy().copy()
        nothing = np.zeros(len(whole), dtype=np.int64)
        for stream in at.streams():
            # Integers add exactly: the noisy uploads' sum is the sum plus everybody's noise.
            whole += self.upload(at, nothing, stream)
        return self.decode(at, whole)

    def upload(self, at: RoundNoise, row: Ints, stream: Stream) -> Ints:
        return noisy_integers(self.noise, row, at.scale, at.grid, stream)

    def decode(self, at: RoundNoise, whole: Ints) -> Tensor:
        return on_grid(whole, at.grid)
