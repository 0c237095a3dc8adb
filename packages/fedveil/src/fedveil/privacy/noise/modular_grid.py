"""Grids for secure sums: how fine, and modulo which power of two.

A sum that leaves [-M/2, M/2) wraps around. That costs accuracy and never privacy, so the modulus
follows from a stated probability of it, over all coordinates of one round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import count, interval, not_negative, positive
from fedveil.core.arrays import Ints
from fedveil.core.errors import ConfigError
from fedveil.core.randomness import Stream
from fedveil.privacy.noise.grid import choose_granularity, power_of_two_below, share, unsnap

_LONGER = 0.01  # how much rounding may lengthen a rotated update
_SMOOTH = 2.0  # least std of a noise share in grid steps: below, its sum is far from a Gaussian


@dataclass(frozen=True)
class ModularGrid:
    """Integers times `granularity` (a power of two), summed modulo 2^bits."""

    granularity: float
    bits: int

    def centre(self, values: Ints) -> Ints:
        """Reduce integers modulo 2^bits to [-2^(bits-1), 2^(bits-1))."""
        if self.bits == 64:
            return values  # 64-bit integers wrap by themselves
        half = 1 << (self.bits - 1)
        return ((values + half) & ((1 << self.bits) - 1)) - half


@dataclass(frozen=True)
class NoisyIntegers:
    """Vectors that clients send into a sum: integers on the grid, each with a share of the noise.

    `share_std` is in the units of the data; zero if what is sent is private already.
    """

    grid: ModularGrid
    share_std: float

    @property
    def word(self) -> int:
        """Bits of the words that carry the sum; reducing it further is exact."""
        return 32 if self.grid.bits <= 32 else 64

    def noisy(self, whole: Ints, stream: Stream) -> Ints:
        """Integers with one client's share, modulo 2^bits."""
        if self.share_std == 0:
            return self.grid.centre(whole)
        noise = share(len(whole), self.share_std, self.grid.granularity, stream)
        return self.grid.centre(whole + noise)

    def noisy_sum(self, total: Ints, streams: Iterable[Stream]) -> Ints:
        """A sum of integers with everybody's shares: the order does not matter modulo 2^bits."""
        whole = self.grid.centre(total)
        for stream in streams:
            whole = self.noisy(whole, stream)
        return whole

    def values(self, whole: Ints) -> npt.NDArray[np.float64]:
        """A sum, modulo 2^bits or a larger power, in the units of the data."""
        return unsnap(self.grid.centre(whole), self.grid.granularity)


@dataclass(frozen=True)
class NoisyVectors:
    """A sum of `count` vectors of norm `clip_norm`, each with noise of std `share_std`."""

    count: int
    clip_norm: float
    share_std: float
    width: int

    def plain_granularity(self) -> float:
        """A grid too fine to be noticed."""
        noise = math.sqrt(self.count) * self.share_std
        return choose_granularity(self.clip_norm, noise, self.width, self.count)

    def plain_bits(self, granularity: float, wrap_probability: float) -> int:
        """Words, of 32 or 64 bits, that hold the sum of vectors that are not rotated."""
        sent = (self.count, self.clip_norm, granularity, self.share_std)
        return bits_for(largest_sum(*sent, wrap_probability, self.width))

    def rotated_granularity(self, wrap_probability: float, bits: int | None) -> float:
        """The grid for rotated vectors: as coarse as rounding allows, or as fine as `bits` allow.

        Rounding lengthens a vector from c to at most sqrt(c^2 + d g^2 / 4 + c g + sqrt(d) g^2 / 2)
        (theory 6.3 at beta = exp(-1/2)).
        """
        coarsest = power_of_two_below(self.share_std / _SMOOTH)
        if bits is None:
            barely = 2 * _LONGER * self.clip_norm
            barely /= 0.5 + math.sqrt(0.25 + _LONGER * self.width / 2)
            return min(coarsest, power_of_two_below(barely))
        interval("[2, 62]")("privacy.bits", bits)
        least = self.rotated_bits(coarsest, wrap_probability)
        if least > bits:
            raise ConfigError(
                f"privacy.bits: {bits} are too few for {self.count} clients at this noise; "
                f"need {least}"
            )
        granularity = coarsest
        while self.rotated_bits(granularity / 2, wrap_probability) <= bits:
            granularity /= 2
        return granularity

    def rotated_bits(self, granularity: float, wrap_probability: float) -> int:
        """How many bits keep the sum of rotated vectors from wrapping.

        The vectors' sum has length n c at most; random signs make each of its rotated coordinates
        sub-Gaussian with variance (n c)^2 / d. The noise adds n s^2, and each rounding moves a
        coordinate by less than one step.
        """
        variance = (self.count * self.clip_norm) ** 2 / self.width + self.count * self.share_std**2
        spread = math.sqrt(2 * variance * math.log(2 * self.width / wrap_probability))
        return math.ceil(math.log2(spread / granularity + self.count + 1)) + 1


def proportional(granularity: float, clip_norm: float, other_clip_norm: float) -> float:
    """The grid for another clip: a power of two, and relative to the clip at least as fine."""
    if clip_norm == other_clip_norm:
        return granularity
    return power_of_two_below(granularity / clip_norm * other_clip_norm)


def largest_sum(
    cohort: int,
    clip: float,
    granularity: float,
    share_std: float,
    failure_probability: float,
    dimension: int = 1,
) -> int:
    """The largest entry, in size, planned for in the sum of `cohort` noisy vectors.

    Each coordinate of a device's vector is at most `clip` in size, rounded to the grid (at most
    one unit further), plus a discrete Gaussian of standard deviation `share_std`; all three are
    in the units of the vector, `granularity` is one unit of the grid. A discrete Gaussian of
    parameter s is sub-Gaussian with variance proxy s^2 (Canonne, Kamath and Steinke 2020), so the
    sum of the shares exceeds sqrt(2 * cohort * s^2 * ln(2 * dimension / p)) in some coordinate
    with probability at most p. Without noise the sum cannot wrap at all.
    """
    for name, value in (("clip", clip), ("share_std", share_std)):
        not_negative(name, value)
    positive("granularity", granularity)
    for name, number in (("cohort", cohort), ("dimension", dimension)):
        count(name, number)
    if share_std > 0 and not 0 < failure_probability < 1:
        raise ConfigError(
            f"failure_probability = {failure_probability}: noise is unbounded, so a sum wraps "
            "with some probability; name one in (0, 1)"
        )
    signal = cohort * (math.ceil(clip / granularity) + 1)
    noise = 0
    if share_std > 0:
        variance = cohort * (share_std / granularity) ** 2
        noise = math.ceil(math.sqrt(2 * variance * math.log(2 * dimension / failure_probability)))
    return signal + noise


def bits_for(largest: int) -> int:
    """The word size, 32 or 64 bits, that holds a sum whose entries are no larger."""
    for bits in (32, 64):
        if largest < 2 ** (bits - 1):
            return bits
    raise ConfigError(f"granularity: a sum up to {largest:.3g} exceeds 64 bits; use a coarser grid")
