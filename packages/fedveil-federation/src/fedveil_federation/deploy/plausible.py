"""Which sums honest sites can make: a longer one was made by somebody who sent other integers.

Masks hide single uploads, so a hub cannot see who keeps to the clip. It sees the sum, and knows how
long that can get. An honest upload is at most as long as its clip, and rounding it to the grid of
granularity g moves each of its d coordinates by less than g. The noise of n shares of std s is
sub-Gaussian with variance n s^2 in every coordinate (a discrete Gaussian is, Canonne, Kamath and
Steinke 2020), so by Hsu, Kakade and Zhang (2012)

    P(|noise|^2 > n s^2 (d + 2 sqrt(d t) + 2 t)) <= exp(-t)

A sum that is longer than all this together is refused, and the round releases nothing.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedveil.methods.parts.noise_placement import Drawn, Noise, RoundNoise

FALSE_ALARM = 1e-9  # the chance that honest sites are refused in one sum, at most
_ROUNDING = 1 + 1e-5  # released sums are single precision


def longest_noise(kind: Noise, scale: float, width: int, chance: float = FALSE_ALARM) -> float:
    """Return a length that noise exceeds with at most the given chance.

    Args:
        kind: Gaussian (also a sum of discrete Gaussians), or Laplace.
        scale: the standard deviation of a coordinate; for Laplace its scale.
        width: how many coordinates there are.
        chance: in (0, 1).
    """
    t = -math.log(chance)
    if kind is Noise.GAUSSIAN:
        return scale * math.sqrt(width + 2 * math.sqrt(width * t) + 2 * t)
    # Absolute values are exponential, and their sum, which the L2 norm does not exceed, a gamma.
    return scale * (width + math.sqrt(2 * width * t) + t)


def implausible(summands: RoundNoise, total: Tensor, uploads: int) -> str:
    """Say why a sum cannot be one of honest uploads; nothing if it can be.

    Args:
        summands: what was summed.
        total: the sum in the units of an update, float [width or less].
        uploads: how many there are in it; one by one, where each brings all its noise.

    Returns:
        The reason to refuse it, or "".
    """
    clip, grid, noise = summands.clip_norm, summands.grid, summands.noise
    if clip is None or grid is None or noise is None:
        return ""
    width, bound = summands.width, 0.0
    if summands.integers is not None:
        std = summands.integers.share_std * math.sqrt(uploads)
        bound = longest_noise(Noise.GAUSSIAN, std, width)
    elif noise.drawn is not Drawn.BY_SERVER:
        kind = Noise.LAPLACE if summands.clip.order == 1 else Noise.GAUSSIAN
        bound = longest_noise(kind, summands.scale, width)
    bound += uploads * (clip + math.sqrt(width) * grid)
    norm = float(total.double().norm())
    if norm <= _ROUNDING * bound:
        return ""
    return (
        f"the sum has length {norm:.4g}, and {uploads} honest sites with their noise reach "
        f"{bound:.4g} at most: one of them sent something else than a clipped update"
    )
