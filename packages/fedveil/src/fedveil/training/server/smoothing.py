"""Laplacian smoothing of a released update (Liang et al., eq. 1-2), by the Fourier transform.

    A x = v,   A = I + strength * L,   L the Laplacian of a ring of d nodes

The circulant matrix has the eigenvalues
1 + 2 strength (1 - cos(2 pi k / d)). It keeps the mean and lowers the variance of independent
noise by (1 + 2 s) / (1 + 4 s)^(3/2) on long vectors.

Being a function of a value that is already private, it costs no privacy at any strength, and
therefore it may only be applied to the noisy aggregate: see `Method`.

The strength may be chosen by what was released (`AUTO`). Noise of known deviation s was added, so
that Stein's estimate of the risk of c A^-1 y as an estimate of x, from y = x + noise alone,

    |y|^2 - 2 c (y'A^-1 y - s^2 tr A^-1) + c^2 |A^-1 y|^2 - d s^2,

has no bias for any c and any strength. Per round it asks for far too much smoothing, for noise of
many rounds averages out by itself. So y is the sum of all averages so far, c is free (the length of
a step is the learning rate's affair), and the strength of the least risk smooths this round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, not_negative, one_of
from fedveil.core.errors import ConfigError
from fedveil.training.models.flat import Layout, Slot
from fedveil.training.server.optimizers import State

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

AUTO = "auto"
STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_TOTAL, _VARIANCE = "smoothing_total", "smoothing_variance"  # in a run's state


class Order(StrEnum):
    """Which weights of a convolution are neighbours: those along the last axis come first."""

    OUT_IN_KERNEL = "out-in-kernel"  # as torch stores them
    IN_OUT_KERNEL = "in-out-kernel"
    KERNEL_IN_OUT = "kernel-in-out"  # as TensorFlow stores them
    KERNEL_OUT_IN = "kernel-out-in"


@dataclass(frozen=True)
class Smoothing:
    """Smooths each tensor of an update by itself, or the `flat` update as one long ring.

    A strength of "auto" is chosen in every round, for each tensor, by what was released so far.
    """

    strength: float | str
    flat: bool = False
    order: Order = Order.OUT_IN_KERNEL

    def __post_init__(self) -> None:
        check_fields(self, order=one_of(Order))
        if self.automatic:
            return
        not_negative("server.smoothing ('auto' or a number)", self.strength)

    @property
    def automatic(self) -> bool:
        return self.strength == AUTO

    def __call__(self, update: Tensor, layout: Layout) -> Tensor:
        """Return the smoothed update, float32 `[parameters]`; the strength is a number."""
        return self._smoothed(update, layout, lambda part: float(self.strength))

    def step(
        self, average: Tensor, layout: Layout, deviation: float | None, state: State
    ) -> tuple[Tensor, State]:
        """Smooth a round's released average.

        Args:
            average: Float32 `[parameters]`.
            layout: Where its tensors are.
            deviation: Standard deviation of the noise on each of its coordinates, if known.
            state: What the run remembers of earlier rounds.

        Returns:
            The smoothed average, and what is to be remembered beside the optimiser's state.

        Raises:
            ConfigError: The strength is automatic and the deviation unknown.
        """
        if not self.automatic:
            return self(average, layout), {}
        if deviation is None:
            raise ConfigError("server.smoothing: 'auto' needs noise of known size. Give a number")
        total, variance = average, torch.tensor([deviation**2], dtype=torch.float64)
        if _TOTAL in state:
            total, variance = state[_TOTAL] + average, state[_VARIANCE] + variance
        spread = math.sqrt(float(variance))
        places = _places(layout, self.order)
        released = total.numpy() if places is None else total.numpy()[places]
        smoothed = self._smoothed(
            average, layout, lambda part: best_strength(released[part], spread)
        )
        return smoothed, {_TOTAL: total, _VARIANCE: variance}

    def _smoothed(
        self, update: Tensor, layout: Layout, strength: Callable[[slice], float]
    ) -> Tensor:
        places = _places(layout, self.order)
        values = np.array(update.numpy(), dtype=np.float32)  # a copy: the parts change in place
        if places is not None:
            values = values[places]
        starts = [0] if self.flat else [slot.start for slot in layout]
        for part in map(slice, starts, [*starts[1:], len(values)]):
            if chosen := strength(part):
                values[part] = smooth(values[part], chosen)
        if places is not None:
            ordered, values = values, np.empty_like(values)
            values[places] = ordered
        return torch.from_numpy(values)


def best_strength(released: Floats, deviation: float) -> float:
    """Return the strength of `STRENGTHS` with the least estimated risk, at its best length.

    Args:
        released: A value with white noise, `[d]`.
        deviation: Of the noise on each coordinate.

    Returns:
        0.0 where no strength shows anything beyond the noise.
    """
    signal, energy = _agreement(released, deviation, np.array(STRENGTHS))
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(signal > 0, signal**2 / energy, 0.0)
    return STRENGTHS[int(np.argmax(gain))]


def stein_risk(released: Floats, deviation: float, strength: float, length: float = 1.0) -> float:
    """Return Stein's estimate of the squared error of `length * smooth(released, strength)`.

    Args:
        released: A value with independent noise, `[d]`.
        deviation: Of the noise on each coordinate.
        strength: Of the smoothing.
        length: A factor, such as that of a shorter step.
    """
    signal, energy = _agreement(released, deviation, np.array([strength]))
    size = float(np.square(released, dtype=np.float64).sum()) - len(released) * deviation**2
    return size - 2 * length * float(signal[0]) + length**2 * float(energy[0])


def _agreement(released: Floats, deviation: float, strengths: Doubles) -> tuple[Doubles, Doubles]:
    """Return, by strength, the estimated product of the smoothed value with what it should be, and
    the smoothed value's own square."""
    length = len(released)
    waves = np.abs(np.fft.rfft(released.astype(np.float64))) ** 2 / length
    count = np.full(len(waves), 2.0)  # real values: every wave but the first and last comes twice
    count[0] = 1.0
    if length % 2 == 0:
        count[-1] = 1.0
    kept = 1 / (1 + strengths[:, None] * _ring(length, len(waves)))
    return kept @ (count * (waves - deviation**2)), kept**2 @ (count * waves)


def smooth(vector: Floats, strength: float) -> Floats:
    """Solve `(I + strength L) x = vector` on a ring of any length, float32 `[d]`."""
    waves = np.fft.rfft(vector.astype(np.float64))
    waves /= 1 + strength * _ring(len(vector), len(waves))
    return np.fft.irfft(waves, len(vector)).astype(np.float32)


def _ring(length: int, waves: int) -> Doubles:
    """The Laplacian's eigenvalues on a ring of so many nodes, for the first waves."""
    return np.asarray(2 - 2 * np.cos(2 * np.pi * np.arange(waves) / length))


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
