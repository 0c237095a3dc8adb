"""Convolutions through the Fourier transform, every step of it a matrix product.

A convolution is a product at each frequency: images, kernels and gradients are transformed once,
and the forward pass and both gradients become small products over channels, one for each
frequency. With the few positions of federated networks' images, the transforms themselves are
cheap products with fixed matrices, so all of it runs at the speed of large matrix products. On CPU
a 5x5 convolution of 32 into 64 channels trains about twice as fast as by torch's own kernels, and
its rounding errors are no larger.

Images are kept as `[height, width, n, channels]` inside, so that no product needs a transposition.
A spectrum is `[frequencies, parts * n, channels]`, real and imaginary parts below each other; a
third part repeats one of them with its sign changed, which makes a complex product of two real
ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_TAU = 2 * math.pi
CHANNELS = 8  # with fewer the products are too thin
_LARGEST = 1 << 26  # numbers in a spectrum: 256 MB
_IMAGES = 256  # transformed at once where no gradient needs their spectra


@dataclass(frozen=True)
class Shape:
    """Height and width of the images, the kernel and its padding; the stride is 1."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    padding: tuple[int, int]

    @property
    def output(self) -> tuple[int, int]:
        sizes = zip(self.image, self.kernel, self.padding, strict=True)
        height, width = (i + 2 * p - k + 1 for i, k, p in sizes)
        return height, width

    @property
    def period(self) -> tuple[int, int]:
        """The shortest circle on which nothing that is asked for wraps around."""
        (height, width), (above, left) = self.image, self.padding
        return height + above, width + left

    @property
    def rows(self) -> int:
        """Frequencies along the height: half of them, as images are real."""
        return self.period[0] // 2 + 1

    @property
    def frequencies(self) -> int:
        return self.rows * self.period[1]


class Conv2d(nn.Conv2d):
    """A convolution that goes through the Fourier transform where that is faster."""

    @classmethod
    def of(cls, layer: nn.Conv2d) -> Conv2d:
        """With the parameters of a layer that suits."""
        padding = layer.padding
        if isinstance(padding, str):
            raise ValueError("padding by name does not suit")
        own = cls(
            layer.in_channels,
            layer.out_channels,
            (layer.kernel_size[0], layer.kernel_size[1]),
            padding=(padding[0], padding[1]),
            bias=layer.bias is not None,
            device="meta",  # nothing is drawn for weights that are not kept
        )
        own.weight, own.bias = layer.weight, layer.bias
        own.weight.data = own.weight.data.contiguous()
        return own.train(layer.training)

    def forward(self, images: Tensor) -> Tensor:
        padding = self.padding
        here = images.device.type == "cpu" and images.dtype == torch.float32 and images.dim() == 4
        whole = torch.is_grad_enabled() or not here
        parts = (images,) if whole else torch.split(images, _IMAGES)
        size = parts[0].shape
        if not here or isinstance(padding, str) or not pays(size, self.weight.shape, padding):
            return super().forward(images)
        above, left = padding
        done = [convolve(part, self.weight, self.bias, (above, left)) for part in parts]
        return done[0] if len(done) == 1 else torch.cat(done)


def suits(layer: nn.Conv2d) -> bool:
    """Whether `Conv2d` can stand in for this layer, and ever pays."""
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    if not plain or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    fits = all(p < k for p, k in zip(layer.padding, layer.kernel_size, strict=True))
    return fits and layer.in_channels >= CHANNELS and max(layer.kernel_size) > 1


@lru_cache(maxsize=256)
def pays(images: torch.Size, weight: torch.Size, padding: tuple[int, int]) -> bool:
    """Whether a training step through the transform is surely faster, by counting, and its spectra
    take no more memory than they may.

    In units of one multiplication in a large product; what numbers on their way to and from memory
    cost was fitted to measured shapes (`python -m benchmarks.convolution --shapes 150`).
    """
    count, into, height, width = images
    out = weight[0]
    shape = Shape((height, width), (weight[2], weight[3]), padding)
    if 3 * shape.frequencies * count * max(into, out) > _LARGEST:
        return False
    direct = 3 * count * into * out * math.prod(shape.output) * math.prod(shape.kernel)
    products = 12 * shape.frequencies * count * into * out
    transforms = into * _transform(shape, shape.image) + out * _transform(shape, shape.output)
    spectra = 400 * shape.frequencies * count * (into + out)
    kernels = 400 * shape.frequencies * into * out
    calls = 2e7
    return direct > 1.25 * (products + count * transforms + spectra + kernels + calls)


def _transform(shape: Shape, size: tuple[int, int]) -> int:
    """Multiplications there and back for one channel of one image."""
    height, width = size
    return shape.rows * width * (4 * height + 10 * shape.period[1])


class Transform:
    """To the spectrum of images of one size and back: along the height, then along the width."""

    def __init__(self, shape: Shape, size: tuple[int, int], turned: bool) -> None:
        """Parts of the spectrum: real, imaginary, -real; or (`turned`) -imaginary, real,
        imaginary."""
        self.height, self.width = size
        self.rows, self.frequencies = shape.rows, shape.frequencies
        rows = _waves(self.rows, shape.period[0], self.height)  # [rows, 2, height]
        real, imaginary = _waves(shape.period[1], shape.period[1], self.width).unbind(1)
        of_real, of_imaginary = [real, -imaginary], [imaginary, real]
        re, im = torch.cat(of_real, dim=1), torch.cat(of_imaginary, dim=1)  # [columns, 2 width]
        parts = (-im, re, im) if turned else (re, im, -re)
        self._down = _fixed(rows.flatten(0, 1))  # [2 rows, height]
        self._across = _fixed(torch.stack(parts, 1).flatten(0, 1)).expand(self.rows, -1, -1)
        # A frequency stands for its mirror image too, unless it is its own.
        self._back_across = _fixed(torch.stack((re, im), 1).flatten(0, 1).T)
        self._back_across = self._back_across.expand(self.rows, -1, -1)
        self._back_down = _fixed((rows * shares(shape)[:, None, None]).flatten(0, 1).T)

    def spectrum(self, images: Tensor) -> Tensor:
        """Of images `[n, channels, height, width]`: `[frequencies, 3 n, channels]`."""
        count, channels = images.shape[:2]
        plane = images.permute(2, 3, 0, 1).reshape(self.height, -1)
        half = torch.mm(self._down, plane).view(self.rows, 2 * self.width, -1)
        return torch.bmm(self._across, half).view(self.frequencies, 3 * count, channels)

    def images(self, spectrum: Tensor) -> Tensor:
        """From `[frequencies, 2 n, channels]`, channels last in memory."""
        count, channels = spectrum.shape[1] // 2, spectrum.shape[2]
        columns = 2 * self.frequencies // self.rows
        half = torch.bmm(self._back_across, spectrum.view(self.rows, columns, -1))
        plane = torch.mm(self._back_down, half.view(2 * self.rows, -1))
        images = plane.view(self.height, self.width, count, channels).permute(2, 3, 0, 1)
        return images.contiguous(memory_format=torch.channels_last)


class Kernels:
    """To the spectrum of kernels `[out, in, height, width]`, as two tensors of real numbers, and
    back."""

    def __init__(self, shape: Shape) -> None:
        self._size = shape.kernel
        (high, wide), (above, left) = shape.period, shape.padding
        down = torch.arange(shape.kernel[0], dtype=torch.float64) - above
        across = torch.arange(shape.kernel[1], dtype=torch.float64) - left
        rows = torch.arange(shape.rows)[:, None, None, None] / high
        columns = torch.arange(wide)[:, None, None] / wide
        angles = _TAU * (rows * down[:, None] + columns * across)
        angles = angles.reshape(shape.frequencies, -1)
        self._to = (_fixed(angles.cos()), _fixed(-angles.sin()))
        share = shares(shape).repeat_interleave(wide)[:, None]
        self._back = (_fixed(angles.cos() * share), _fixed(-angles.sin() * share))

    def spectrum(self, kernels: Tensor) -> tuple[Tensor, Tensor]:
        out, into = kernels.shape[:2]
        points = kernels.reshape(out * into, -1).T
        real, imaginary = (torch.mm(waves, points).view(-1, out, into) for waves in self._to)
        return real, imaginary

    def kernels(self, real: Tensor, imaginary: Tensor) -> Tensor:
        out, into = real.shape[1:]
        points = torch.mm(real.flatten(1).T, self._back[0])
        points.addmm_(imaginary.flatten(1).T, self._back[1])
        return points.view(out, into, *self._size)


@dataclass(frozen=True)
class ConvolutionMatrices:
    """The fixed matrices of one convolution's shape."""

    inputs: Transform
    outputs: Transform
    kernels: Kernels
    area: int  # positions of the circle


@lru_cache(maxsize=64)
def plan(shape: Shape) -> ConvolutionMatrices:
    outputs = Transform(shape, shape.output, turned=True)
    inputs = Transform(shape, shape.image, turned=False)
    return ConvolutionMatrices(inputs, outputs, Kernels(shape), math.prod(shape.period))


class Convolution(torch.autograd.Function):
    """`conv2d` with stride 1 for float32 images on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        (count, _, *image), (_, _, *kernel) = images.shape, weight.shape
        by = plan(Shape((image[0], image[1]), (kernel[0], kernel[1]), padding))
        x, (real, imaginary) = by.inputs.spectrum(images), by.kernels.spectrum(weight)
        y = torch.bmm(x[:, : 2 * count], real.mT).baddbmm_(x[:, count:], imaginary.mT)
        if bias is not None:
            y[0, :count] += bias * by.area  # the same at every position: frequency 0 alone
        ctx.by = by
        ctx.save_for_backward(x, real, imaginary)
        return by.outputs.images(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, real, imaginary = ctx.saved_tensors
        by, count = ctx.by, len(gradient)
        g = by.outputs.spectrum(gradient)
        upright, turned = g[:, count:], g[:, : 2 * count]
        of_images = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_images = by.inputs.images(torch.bmm(upright, real).baddbmm_(turned, imaginary))
        if ctx.needs_input_grad[1]:
            of_weight = by.kernels.kernels(
                torch.bmm(upright.mT, x[:, : 2 * count]), torch.bmm(upright.mT, x[:, count:])
            )
        if ctx.needs_input_grad[2]:
            of_bias = g[0, count : 2 * count].sum(dim=0)
        return of_images, of_weight, of_bias, None


def convolve(
    images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
) -> Tensor:
    """`conv2d` of images `[n, channels, height, width]`; the padding is smaller than the kernel."""
    outputs: Tensor = Convolution.apply(images, weight, bias, padding)  # type: ignore[no-untyped-call]
    return outputs


def shares(shape: Shape) -> Tensor:
    """Return the weight of each row of frequencies on the way back, `[rows]`."""
    high, wide = shape.period
    rows = torch.arange(shape.rows)
    own_mirror = (rows == 0) | (2 * rows == high)
    return torch.where(own_mirror, 1.0, 2.0).double() / (high * wide)


def _waves(count: int, period: int, length: int) -> Tensor:
    """`exp(-i tau f p / period)` at positions `p` of `count` frequencies, `[count, 2, length]`."""
    positions = torch.arange(length, dtype=torch.float64)
    angles = _TAU / period * torch.arange(count, dtype=torch.float64)[:, None] * positions
    return torch.stack((angles.cos(), -angles.sin()), dim=1)


def _fixed(matrix: Tensor) -> Tensor:
    return matrix.float().contiguous()
