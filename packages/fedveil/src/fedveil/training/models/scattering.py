"""Wavelet scattering of images (Mallat 2012; Bruna and Mallat 2013): features that nobody trains.

    order 0   x * phi
    order 1   |x * psi_j1| * phi
    order 2   ||x * psi_j1| * psi_j2| * phi,   j1 < j2

psi are Morlet wavelets at `scales` octaves and `angles` orientations, phi is a Gaussian as wide as
2^scales pixels, and all is sampled every 2^scales pixels. The filters are formulas: no data enter
them. Channels come in the order of the paths above, by scale and then by angle.

Every example is transformed by itself, in calls whose shapes depend on the image's size alone, so
its features have the same bits whatever else is transformed before, after or beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedveil.core.arguments import check_fields, count, one_of
from fedveil.core.errors import ConfigError

# The usual Morlet family: centre frequency 3 pi / 4, bandwidth 0.8, both halved by every octave.
_FREQUENCY = 3 * math.pi / 4
_WIDTH = 0.8
_PERIODS = 3  # periods of the grid over which tails are wrapped around: below float32's precision


def gaussian(size: int, width: float) -> npt.NDArray[np.float64]:
    """A Gaussian of sum 1 around 0 on a ring of `size` points."""
    shifts = np.arange(-_PERIODS, _PERIODS + 1)[:, None] * size
    values = np.exp(-((np.arange(size) + shifts) ** 2) / (2 * width**2)).sum(0)
    return np.asarray(values / values.sum())


def morlet(
    shape: tuple[int, int], scale: int, angle: float, slant: float
) -> npt.NDArray[np.complex128]:
    """The wavelet of one scale and angle around 0 on a torus of this shape; its sum is zero.

    Its envelope is `1 / slant` times as long across the wave as along it.
    """
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    envelope, wave = np.zeros(shape), np.zeros(shape, complex)
    for down in range(-_PERIODS, _PERIODS + 1):
        for right in range(-_PERIODS, _PERIODS + 1):
            y = (np.arange(shape[0]) + down * shape[0])[:, None]
            x = (np.arange(shape[1]) + right * shape[1])[None, :]
            along = x * math.cos(angle) + y * math.sin(angle)
            across = y * math.cos(angle) - x * math.sin(angle)
            bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
            envelope += bell
            wave += bell * np.exp(1j * frequency * along)
    # Without the second term a constant image would not vanish.
    centred = wave - envelope * (wave.sum() / envelope.sum())
    return np.asarray(centred * (slant / (2 * math.pi * width**2)))


@dataclass(frozen=True)
class Scattering:
    """The transform for images `[channels, height, width]`.

    Images are continued by reflection. `order` is that of the longest paths, 0 to 2.
    """

    height: int
    width: int
    scales: int = 2
    angles: int = 8
    order: int = 2

    def __post_init__(self) -> None:
        check_fields(self, "model.", scales=count, angles=count, order=one_of((0, 1, 2)))
        if 2**self.scales > min(self.height, self.width):
            raise ConfigError(
                f"model.scales: {self.scales} octaves are {2**self.scales} pixels, and images have "
                f"{self.height} x {self.width}"
            )

    @property
    def groups(self) -> tuple[int, ...]:
        """Channels of each combination of scales; those of one differ in angles only."""
        first = (self.angles,) * self.scales if self.order >= 1 else ()
        pairs = math.comb(self.scales, 2) if self.order == 2 else 0
        return (1, *first, *(self.angles**2,) * pairs)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what comes out for one colour: paths, height, width."""
        step = 2**self.scales
        return sum(self.groups), -(-self.height // step), -(-self.width // step)

    @cached_property
    def _padded(self) -> tuple[int, int]:
        """Image and a margin of 2^scales pixels on both sides, in whole steps."""
        step = 2**self.scales
        return self.shape[1] * step + 2 * step, self.shape[2] * step + 2 * step

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        """Which pixels stand where in the padded image."""
        step = 2**self.scales

        def reflected(size: int, padded: int) -> Tensor:
            ends = (step, padded - size - step)
            return torch.from_numpy(np.pad(np.arange(size), ends, mode="reflect"))

        return reflected(self.height, self._padded[0]), reflected(self.width, self._padded[1])

    @cached_property
    def _wavelets(self) -> dict[tuple[int, int], Tensor]:
        """By octave of the grid and of the wavelet: Fourier transforms `[angles, h, w]`, which are
        real because a wavelet's mirror image is its conjugate."""
        turns = [math.pi * turn / self.angles for turn in range(self.angles)]
        found = {}
        for grid in range(self.scales if self.order == 2 else 1):
            shape = (self._padded[0] >> grid, self._padded[1] >> grid)
            for octave in range(grid + (grid > 0), self.scales):
                waves = [morlet(shape, octave - grid, turn, 4 / self.angles) for turn in turns]
                spectra = np.stack([np.fft.fft2(wave).real for wave in waves])
                found[grid, octave] = _single(spectra / 4 ** (octave - grid))  # for `_sampled`
        return found

    @cached_property
    def _averages(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """By octave of the grid: `[out, in]` matrices that blur and sample rows and columns."""

        def average(size: int, out: int, grid: int) -> Tensor:
            bell = gaussian(size, _WIDTH * 2 ** (self.scales - 1 - grid))
            step = 2 ** (self.scales - grid)
            centres = step * (1 + np.arange(out))  # past the margin
            rows = np.stack([np.roll(bell, centre) for centre in centres])
            return _single(rows)

        _, high, wide = self.shape
        return tuple(
            (
                average(self._padded[0] >> grid, high, grid),
                average(self._padded[1] >> grid, wide, grid).T.contiguous(),
            )
            for grid in range(self.scales)
        )

    def __call__(self, image: Tensor) -> Tensor:
        """Features `[colours, paths, height, width]` of one float32 image."""
        if image.shape[1:] != (self.height, self.width):
            raise ConfigError(f"scattering: made for {self.height} x {self.width} pixels")
        rows, columns = self._rows
        padded = image[:, rows][:, :, columns].contiguous()
        paths = [self._averaged(padded[:, None], 0)]
        if self.order == 0:
            return paths[0]
        first = [self._modulus(padded[:, None], 0, octave) for octave in range(self.scales)]
        paths += [self._averaged(one, octave) for octave, one in enumerate(first)]
        if self.order == 2:
            for octave, one in enumerate(first):
                for later in range(octave + 1, self.scales):
                    paths.append(self._averaged(self._modulus(one, octave, later), later))
        return torch.cat(paths, dim=1)

    def _modulus(self, images: Tensor, grid: int, octave: int) -> Tensor:
        """`|images * psi|` of `[colours, n, h, w]` on a grid: `[colours, n * angles, h', w']`."""
        spectra = torch.fft.fft2(images)[:, :, None] * self._wavelets[grid, octave]
        waves = torch.fft.ifft2(_sampled(spectra.flatten(1, 2), 2 ** (octave - grid)))
        return torch.sqrt(waves.real.square() + waves.imag.square())

    def _averaged(self, images: Tensor, grid: int) -> Tensor:
        """`images * phi`, one value for each step."""
        rows, columns = self._averages[grid]
        return rows @ images @ columns


def _single(values: npt.NDArray[np.float64]) -> Tensor:
    """As float32, without what vanishes beside the largest: products with it would be subnormal
    numbers, with which processors are slow."""
    small = np.abs(values) < 1e-10 * np.abs(values).max()
    return torch.from_numpy(np.where(small, 0.0, values).astype(np.float32))


def _sampled(spectra: Tensor, step: int) -> Tensor:
    """Spectra of `step^2` times the images of which every `step`-th row and column is kept:
    aliases fold up."""
    if step == 1:
        return spectra
    high, wide = spectra.shape[-2] // step, spectra.shape[-1] // step
    rows = [spectra[..., i * high : (i + 1) * high, :] for i in range(step)]
    folded = sum(rows[1:], rows[0])
    columns = [folded[..., i * wide : (i + 1) * wide] for i in range(step)]
    return sum(columns[1:], columns[0])
