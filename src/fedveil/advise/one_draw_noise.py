"""The noise of a whole cohort in one draw, for simulations on public data.

Where every client adds noise by itself, a trial sees only the sum, and its law is known: Gaussians
add up to a Gaussian, n Laplace variables to the difference of two Gamma(n) ones. One draw of it is
many times faster, and protects nobody: the clients of a trial have nothing to hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedveil.client.local_training import LocalRule
from fedveil.client.update_pipeline import Shaping
from fedveil.core.errors import Refused
from fedveil.methods.parts.distributed_noise import SharedNoise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import Noise, Occasion, Promise, Terms
from fedveil.privacy.accounting import Release
from fedveil.privacy.clipping import Clip


@dataclass(frozen=True)
class OneDrawNoise:
    """Stands in for noise by each client, or in continuous shares; all else is the original's."""

    original: LocalNoise | SharedNoise

    def promise(self, terms: Terms) -> Promise:
        if terms.exact:
            raise Refused("noise in one draw protects nobody", "use it for trials on public data")
        return self.original.promise(terms)

    def local(self, terms: Terms) -> LocalRule:
        return self.original.local(terms)

    def shaping(self, terms: Terms, clip: Clip | None, round: int = 0) -> Shaping:
        return self.original.shaping(terms, clip, round)

    def releases(self, terms: Terms, rounds: int) -> tuple[Release, ...]:
        return self.original.releases(terms, rounds)

    def noise_steps(self, terms: Terms, shaping: Shaping, round: int) -> float | None:
        return self.original.noise_steps(terms, shaping, round)

    def protect(self, terms: Terms, total: Tensor, shaping: Shaping, occasion: Occasion) -> Tensor:
        """The sum and all its noise, float32 `[parameters]`."""
        scale = terms.noise_multiplier * (shaping.clip or terms.clip).norm
        uploads, size = len(occasion.cohort), len(total)
        draw = np.random.default_rng(occasion.stream().words(4))
        if isinstance(self.original, SharedNoise):
            scale *= math.sqrt(uploads / terms.sampling.expected_cohort)
            noise = scale * draw.standard_normal(size)
        elif self.original.noise is Noise.LAPLACE:
            noise = scale * (draw.gamma(uploads, size=size) - draw.gamma(uploads, size=size))
        else:
            noise = scale * math.sqrt(uploads) * draw.standard_normal(size)
        return (total.double() + torch.from_numpy(noise)).float()


def in_one_draw(method: Method) -> Method:
    """The method with its clients' noise drawn together, where that is the same in law."""
    protection = method.protection
    if isinstance(protection, LocalNoise) or (
        isinstance(protection, SharedNoise) and protection.rotation is None
    ):
        return replace(method, protection=OneDrawNoise(protection))
    return method
