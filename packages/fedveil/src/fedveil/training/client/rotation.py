"""A random rotation that spreads a vector evenly over its coordinates, and back.

Rounding to a coarse grid and reducing modulo a small number are gentle on vectors whose
coordinates are all of the same size: after random signs and a Hadamard transform, coordinates of a
vector of length c are sub-Gaussian with variance c^2 / d. The signs are public.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedveil.core.randomness import Stream

SHORT = 128  # width up to which rows are rotated by sums and differences


@dataclass(frozen=True)
class Rotation:
    """Signs from a public key and the round, then the Hadamard transform over the square root of
    the width. The width is the next power of two; a vector is padded with zeros to it."""

    key: int = 0

    def width(self, size: int) -> int:
        return 1 << max(0, size - 1).bit_length()

    def forward(self, rows: Tensor, round_number: int) -> Tensor:
        """Rotate rows `[clients, size]` to float32 `[clients, width]`; norms are kept. Each row
        alone, where products of several would show one in another."""
        width = self.width(rows.shape[1])
        padded = rows.new_zeros(len(rows), width)
        padded[:, : rows.shape[1]] = rows
        padded *= _signs(self.key, round_number, width).to(rows.dtype)
        if width > SHORT and len(rows) > 1:
            rotated = torch.cat([hadamard(row[None].clone()) for row in padded])
        else:
            rotated = hadamard(padded)
        return rotated / math.sqrt(width)

    def backward(self, vector: Tensor, round_number: int, size: int) -> Tensor:
        """The vector `[size]` whose rotation is `vector` `[width]`."""
        width = len(vector)
        rotated = hadamard(vector[None])[0] / math.sqrt(width)
        return (rotated * _signs(self.key, round_number, width).to(rotated.dtype))[:size]


def hadamard(rows: Tensor) -> Tensor:
    """Multiply each row `[clients, 2^k]` by the Hadamard matrix (entries +1 and -1), which is its
    own inverse up to the factor 2^k. Six levels at a time, as products with a small matrix; short
    rows by sums and differences, of which no row's depend on another (`privacy.lanes`)."""
    count, width = rows.shape
    if width <= SHORT:
        return _butterflies(rows)
    left = width.bit_length() - 1
    done = 1
    while left:
        levels = min(6, left)
        side = 1 << levels
        matrix = _matrix(levels).to(rows.dtype)
        # Axes: blocks still to mix, the `side` values mixed now, what is mixed already.
        cube = rows.view(count, width // (side * done), side, done)
        rows = cube[..., 0] @ matrix if done == 1 else torch.matmul(matrix, cube)
        rows = rows.reshape(count, width)
        done, left = done * side, left - levels
    return rows


def _butterflies(rows: Tensor) -> Tensor:
    count, width = rows.shape
    done = 1
    while done < width:
        pairs = rows.view(count, -1, 2, done)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        rows = torch.stack((first + second, first - second), dim=2).view(count, width)
        done *= 2
    return rows


@lru_cache(maxsize=8)
def _matrix(levels: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(levels):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


@lru_cache(maxsize=4)
def _signs(key: int, round_number: int, width: int) -> Tensor:
    stream = Stream(hashlib.sha256(f"fedveil/rotation/{key}/{round_number}".encode()).digest())
    bits = np.unpackbits(stream.words(-(-width // 64)).view(np.uint8), count=width)
    return torch.from_numpy(1.0 - 2.0 * bits)
