"""Scattering against its definition: sums over pixels in space, in double precision, no Fourier."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.training.models.scattering import Scattering

TAIL = 6.0  # widths after which an envelope is cut off: e^-18 of it is left


def wavelet(scale: int, angle: float, slant: float) -> dict[tuple[int, int], complex]:
    """Morlet's wavelet by offset in pixels: a wave under a bell, less the bell that makes it sum
    to zero (Bruna and Mallat 2013, section 2.1)."""
    width, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    reach = math.ceil(TAIL * width / min(1.0, slant))
    offsets = [(y, x) for y in range(-reach, reach + 1) for x in range(-reach, reach + 1)]
    bells, waves = {}, {}
    for y, x in offsets:
        along = x * math.cos(angle) + y * math.sin(angle)
        across = -x * math.sin(angle) + y * math.cos(angle)
        bell = math.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
        bells[y, x], waves[y, x] = bell, bell * cmath.exp(1j * frequency * along)
    share = sum(waves.values()) / sum(bells.values())
    size = slant / (2 * math.pi * width**2)
    return {at: size * (waves[at] - share * bells[at]) for at in offsets}


def blur(width: float) -> dict[tuple[int, int], complex]:
    reach = math.ceil(TAIL * width)
    line = {i: math.exp(-(i**2) / (2 * width**2)) for i in range(-reach, reach + 1)}
    total = sum(line.values())
    return {(y, x): line[y] * line[x] / total**2 for y in line for x in line}


def convolved(image: np.ndarray, kernel: dict[tuple[int, int], complex]) -> np.ndarray:
    """`sum over o of kernel[o] image[p - o]`, on a torus."""
    found = np.zeros(image.shape, complex)
    for offset, value in kernel.items():
        found += value * np.roll(image, offset, axis=(0, 1))
    return found


def reference(image: np.ndarray, scales: int, angles: int, order: int) -> np.ndarray:
    """`[paths, height, width]`, path by path."""
    step = 2**scales
    high, wide = (-(-size // step) for size in image.shape)
    ends = [(step, (n + 1) * step - s) for n, s in zip((high, wide), image.shape, strict=True)]
    padded = np.pad(image.astype(float), ends, mode="reflect")
    turns = [math.pi * turn / angles for turn in range(angles)]

    def smooth(field: np.ndarray, octave: int) -> np.ndarray:
        blurred = convolved(field, blur(0.8 * 2 ** (scales - 1 - octave))).real
        return blurred[:: step >> octave, :: step >> octave][1 : high + 1, 1 : wide + 1]

    def modulus(field: np.ndarray, octave: int, later: int, turn: float) -> np.ndarray:
        every = 2 ** (later - octave)
        waves = convolved(field, wavelet(later - octave, turn, 4 / angles))
        return np.abs(waves)[::every, ::every]

    paths = [smooth(padded, 0)]
    first = {(j, a): modulus(padded, 0, j, a) for j in range(scales) for a in turns}
    if order >= 1:
        paths += [smooth(field, j) for (j, _), field in first.items()]
    if order == 2:
        for j in range(scales):
            for later in range(j + 1, scales):
                paths += [
                    smooth(modulus(first[j, a], j, later, b), later) for a in turns for b in turns
                ]
    return np.stack(paths)


@pytest.mark.parametrize(
    ("size", "scales", "angles", "order"),
    [
        ((12, 12), 2, 4, 2),
        ((9, 14), 1, 3, 2),
        ((16, 11), 3, 2, 2),
        ((8, 8), 2, 8, 1),
        ((7, 5), 2, 4, 0),
    ],
)
def test_transform_is_its_definition(size, scales, angles, order):
    image = np.random.default_rng(3).random(size).astype(np.float32)
    found = Scattering(*size, scales, angles, order)(torch.from_numpy(image)[None])[0]
    wanted = reference(image, scales, angles, order)
    assert found.shape == wanted.shape == Scattering(*size, scales, angles, order).shape
    # Values are at most 1. A chain of two float32 transforms of at most 40^2 points errs by some
    # log2(1600) * 2^-24 each; tails beyond six widths and below 1e-10 weigh less.
    assert np.abs(found.numpy() - wanted).max() < 3e-6


def test_constant_images_have_no_waves():
    found = Scattering(16, 16, 2, 4)(torch.full((1, 16, 16), 0.7))[0]
    assert torch.allclose(found[0], torch.tensor(0.7), atol=1e-6)
    assert found[1:].abs().max() < 1e-6


def test_a_shift_by_one_step_shifts_the_features():
    step, size = 4, 48
    image = torch.zeros(1, size, size)
    image[0, 20:26, 18:27] = torch.rand(6, 9, generator=torch.Generator().manual_seed(1))
    transform = Scattering(size, size, 2, 4)
    before, after = transform(image), transform(image.roll(step, dims=2))
    assert torch.allclose(before[..., 2:-3], after[..., 3:-2], atol=1e-6)


def test_colours_are_transformed_one_by_one():
    image = torch.rand(3, 10, 10, generator=torch.Generator().manual_seed(2))
    transform = Scattering(10, 10, 2, 4)
    apart = torch.cat([transform(image[one : one + 1]) for one in range(3)])
    assert torch.allclose(transform(image), apart, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ((8, 8, 4), "scales"),
        ((8, 8, 0), "scales"),
        ((8, 8, 2, 0), "angles"),
        ((8, 8, 2, 8, 3), "order"),
    ],
)
def test_impossible_settings_are_refused(settings, named):
    with pytest.raises(ConfigError, match=f"model.{named}"):
        Scattering(*settings)
