"""Laplacian smoothing of a released update (Liang et al., eq. 1-2), exactly and in linear time.

    A x = v,   A = I + strength * L,   L the Laplacian of a ring of d nodes

is what the paper's Fourier form solves: the circulant matrix with eigenvalues
1 + 2 strength (1 - cos(2 pi k / d)). It keeps the mean and lowers the variance of independent
noise by (1 + 2 s) / (1 + 4 s)^(3/2) on long vectors.

Being a function of a value that is already private, it costs no privacy at any strength, and
therefore it may only be applied to the noisy aggregate: see `Method`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, one_of
from fedveil.core.errors import ConfigError
from fedveil.training.models.flat import Layout, Slot

Floats = npt.NDArray[np.float32]

_NEGLIGIBLE = 2.0**-40  # against float32's 2^-24


class Order(StrEnum):
    """Which weights of a convolution are neighbours: those along the last axis come first."""

    OUT_IN_KERNEL = "out-in-kernel"  # as torch stores them
    IN_OUT_KERNEL = "in-out-kernel"
    KERNEL_IN_OUT = "kernel-in-out"  # as TensorFlow stores them
    KERNEL_OUT_IN = "kernel-out-in"


@dataclass(frozen=True)
class Smoothing:
    """Smooths each tensor of an update by itself, or the `flat` update as one long ring."""

    strength: float
    flat: bool = False
    order: Order = Order.OUT_IN_KERNEL

    def __post_init__(self) -> None:
        check_fields(self, order=one_of(Order))
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ConfigError(f"server.smoothing: must be zero or positive, got {self.strength}")

    def __call__(self, update: Tensor, layout: Layout) -> Tensor:
        """The smoothed update, float32 `[parameters]`."""
        if self.strength == 0:
            return update
        places = _places(layout, self.order)
        values = np.array(update.numpy(), dtype=np.float32)  # a copy: the parts change in place
        if places is not None:
            values = values[places]
        starts = [0] if self.flat else [slot.start for slot in layout]
        for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
            values[start:stop] = smooth(values[start:stop], self.strength)
        if places is not None:
            ordered, values = values, np.empty_like(values)
            values[places] = ordered
        return torch.from_numpy(values)


def smooth(vector: Floats, strength: float) -> Floats:
    """Solve `(I + strength L) x = vector` on a ring of any length, float32 `[d]`."""
    if len(vector) == 1:
        return vector
    if len(vector) == 2:  # both neighbours are the same node
        half: Floats = (vector - vector[::-1]) / np.float32(2 + 8 * strength)
        return (vector + vector[::-1]) / np.float32(2) + half
    from scipy.linalg import lapack  # a tenth of a second that most runs need not wait

    chain = _chain(len(vector), strength)
    solution: Floats = lapack.spttrs(chain.diagonal, chain.off_diagonal, vector)[0]
    gap = np.float32(chain.correction * (float(solution[0]) - float(solution[-1])))
    reach = len(chain.closing)
    solution[:reach] -= gap * chain.closing
    solution[-reach:] += gap * chain.closing[::-1]
    return solution


@dataclass(frozen=True, eq=False)
class _Chain:
    """The open chain T = A - strength (e_0 - e_last)(e_0 - e_last)', factored as L D L'.

    By Sherman and Morrison, A^-1 v = y - correction * (y_0 - y_last) * closing with y = T^-1 v and
    closing = T^-1 (e_0 - e_last). T's eigenvalues are at least 1 and the correction's denominator
    is at least 1, so nothing cancels. `closing` is odd and fades from both ends: only its first
    part, up to the middle, is kept.
    """

    diagonal: Floats
    off_diagonal: Floats
    closing: Floats
    correction: float


@lru_cache(maxsize=256)
def _chain(length: int, strength: float) -> _Chain:
    from scipy.linalg import lapack

    # In double precision: the factors are made once and used every round.
    diagonal = np.full(length, 1 + 2 * strength)
    diagonal[[0, -1]] = 1 + strength
    diagonal, off_diagonal, _ = lapack.dpttrf(diagonal, np.full(length - 1, -strength))
    closing = np.zeros(length)
    closing[0], closing[-1] = 1, -1
    closing = lapack.dpttrs(diagonal, off_diagonal, closing)[0]
    correction = strength / (1 + strength * (closing[0] - closing[-1]))
    closing = closing[: length // 2]  # the middle of an odd number is zero
    closing = closing[closing > _NEGLIGIBLE * closing[0]]
    return _Chain(
        diagonal.astype(np.float32),
        off_diagonal.astype(np.float32),
        closing.astype(np.float32),
        float(correction),
    )


@lru_cache(maxsize=8)
def _places(layout: Layout, order: Order) -> npt.NDArray[np.int64] | None:
    """Where each weight comes from when convolutions are put in this order; None: as they are."""
    axes = {
        Order.OUT_IN_KERNEL: (0, 1, 2, 3),
        Order.IN_OUT_KERNEL: (1, 0, 2, 3),
        Order.KERNEL_IN_OUT: (2, 3, 1, 0),
        Order.KERNEL_OUT_IN: (2, 3, 0, 1),
    }[order]
    if order is Order.OUT_IN_KERNEL or not any(_is_convolution(slot) for slot in layout):
        return None
    places = np.arange(layout.size)
    for slot in filter(_is_convolution, layout):
        part = places[slot.start : slot.stop].reshape(slot.shape)
        places[slot.start : slot.stop] = part.transpose(axes).reshape(-1).copy()
    return places


def _is_convolution(slot: Slot) -> bool:
    return len(slot.shape) == 4
