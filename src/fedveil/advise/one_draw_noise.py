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

from fedveil.client.local_training import LocalTraining
from fedveil.client.update_pipeline import UpdatePipeline
from fedveil.core.errors import PrivacyRefusal
from fedveil.methods.parts.distributed_noise import DistributedNoise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import Noise, NoiseContext, RoundContext
from fedveil.privacy.clipping import Clip
from fedveil.privacy.releases import PrivacyModel, Release


@dataclass(frozen=True)
class OneDrawNoise:
    """Stands in for noise by each client, or in continuous shares; all else is the original's."""

    original: LocalNoise | DistributedNoise

    def privacy_model(self, context: NoiseContext) -> PrivacyModel:
        if context.exact:
            raise PrivacyRefusal(
                "noise in one draw protects nobody", "use it for trials on public data"
            )
        return self.original.privacy_model(context)

    def local(self, context: NoiseContext) -> LocalTraining:
        return self.original.local(context)

    def pipeline(
        self, context: NoiseContext, clip: Clip | None, round_number: int = 0
    ) -> UpdatePipeline:
        return self.original.pipeline(context, clip, round_number)

    def releases(self, context: NoiseContext, rounds: int) -> tuple[Release, ...]:
        return self.original.releases(context, rounds)

    def noise_steps(
        self, context: NoiseContext, pipeline: UpdatePipeline, round_number: int
    ) -> float | None:
        return self.original.noise_steps(context, pipeline, round_number)

    def protect(
        self,
        context: NoiseContext,
        total: Tensor,
        pipeline: UpdatePipeline,
        this_round: RoundContext,
    ) -> Tensor:
        """The sum and all its noise, float32 `[parameters]`."""
        scale = context.noise_multiplier * (pipeline.clip or context.clip).norm
        uploads, size = len(this_round.cohort), len(total)
        draw = np.random.default_rng(this_round.stream().words(4))
        if isinstance(self.original, DistributedNoise):
            scale *= math.sqrt(uploads / context.sampling.expected_cohort)
            noise = scale * draw.standard_normal(size)
        elif self.original.noise is Noise.LAPLACE:
            noise = scale * (draw.gamma(uploads, size=size) - draw.gamma(uploads, size=size))
        else:
            noise = scale * math.sqrt(uploads) * draw.standard_normal(size)
        return (total.double() + torch.from_numpy(noise)).float()


def in_one_draw(method: Method) -> Method:
    """The method with its clients' noise drawn together, where that is the same in law."""
    placement = method.placement
    if isinstance(placement, LocalNoise) or (
        isinstance(placement, DistributedNoise) and placement.rotation is None
    ):
        return replace(method, placement=OneDrawNoise(placement))
    return method
