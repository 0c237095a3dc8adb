"""Fast floating-point noise, for simulation only.

The numbers are as good as 32-bit uniforms make them, but their low-order bits betray the value
they were added to, so what is protected with them is reported with arithmetic "idealised". Real
protection comes from the integer samplers beside this module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedveil.core.arguments import not_negative
from fedveil.core.randomness import Stream

Floats = npt.NDArray[np.float32]

LARGEST_GAUSSIAN = math.sqrt(64.0 * math.log(2.0))  # 6.66 standard deviations
LARGEST_LAPLACE = 32.0 * math.log(2.0)  # 22.2 scales

_HALF_BLOCK = 1 << 15
_MASK = np.int32(0x7FFFFFFF)


def gaussian(stream: Stream, count: int, std: float = 1.0) -> Floats:
    """Draw `count` float32 Gaussians with standard deviation `std` (Box-Muller).

    A uniform of 31 bits puts the farthest reachable value at 6.66 std.
    """
    not_negative("std", std)
    out = np.empty(count, dtype=np.float32)
    half = max(1, min(_HALF_BLOCK, (count + 1) // 2))
    bits = np.empty(2 * half, dtype=np.int32)
    radius = np.empty(half, dtype=np.float32)
    angle = np.empty(half, dtype=np.float32)
    for start in range(0, count, 2 * half):
        block = out[start : start + 2 * half]
        pairs = (len(block) + 1) // 2
        stream.fill(bits[: 2 * pairs].view(np.uint8))
        _box_muller(bits[: 2 * pairs], radius[:pairs], angle[:pairs], std, block)
    return out


def _box_muller(
    bits: npt.NDArray[np.int32], radius: Floats, angle: Floats, std: float, out: Floats
) -> None:
    """Gaussians from words `[..., 2 pairs]`, of which an odd number leaves the last sine out."""
    pairs = radius.shape[-1]
    _log_uniform(bits[..., :pairs], radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    radius *= np.float32(std)
    angle[...] = bits[..., pairs:]
    angle *= np.float32(2.0 * math.pi * 2.0**-32)
    first, second = out[..., :pairs], out[..., pairs:]
    np.cos(angle, out=first)
    first *= radius
    both = second.shape[-1]
    np.sin(angle[..., :both], out=second)
    second *= radius[..., :both]


def gaussian_rows(streams: Sequence[Stream], count: int, std: float = 1.0) -> Floats:
    """One row from each stream `[streams, count]`, the same numbers that `gaussian` draws."""
    if not 0 < count <= 2 * _HALF_BLOCK:
        rows = [gaussian(stream, count, std) for stream in streams]
        return np.stack(rows) if rows else np.empty((0, count), dtype=np.float32)
    not_negative("std", std)
    pairs = (count + 1) // 2
    out = np.empty((len(streams), count), dtype=np.float32)
    together = max(1, _HALF_BLOCK // pairs)
    for first in range(0, len(streams), together):
        some = streams[first : first + together]
        bits = np.empty((len(some), 2 * pairs), dtype=np.int32)
        for stream, row in zip(some, bits, strict=True):
            stream.fill(row.view(np.uint8))
        radius = np.empty((len(some), pairs), dtype=np.float32)
        _box_muller(bits, radius, np.empty_like(radius), std, out[first : first + together])
    return out


def laplace(stream: Stream, count: int, scale: float = 1.0) -> Floats:
    """Draw `count` float32 Laplace variables of density exp(-|x|/scale) / (2 scale).

    None is farther from zero than 22.2 scales.
    """
    not_negative("scale", scale)
    out = np.empty(count, dtype=np.float32)
    bits = np.empty(min(count, 2 * _HALF_BLOCK), dtype=np.int32)
    sign = np.empty(len(bits), dtype=np.float32)
    for start in range(0, count, max(1, len(bits))):
        block = out[start : start + len(bits)]
        drawn, s = bits[: len(block)], sign[: len(block)]
        stream.fill(drawn.view(np.uint8))
        s[:] = drawn
        _log_uniform(drawn, block)
        block *= np.float32(scale)
        np.copysign(block, s, out=block)
    return out


def _log_uniform(bits: npt.NDArray[np.int32], out: Floats) -> None:
    """ln(u), u uniform over the odd multiples of 2^-32 (all 31 low bits count)."""
    np.bitwise_and(bits, _MASK, out=bits)
    out[...] = bits
    out += np.float32(0.5)
    out *= np.float32(2.0**-31)
    np.log(out, out=out)
