"""Speed of convolutions through the Fourier transform, on one core.

`python -m benchmarks.convolution [--json]`: layers of W4, W5 and W7, forward and backward, against
torch's own kernels, interleaved. `--shapes 150` adds as many shapes drawn at random (about two
minutes) and says what the choice between the two is worth.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedveil.training.engines import fourier
from fedveil.training.engines.memory import keep_freed_memory

_SECONDS = 0.3  # of each measurement


@dataclass(frozen=True)
class Layer:
    """A convolution of square images that keeps their size, unless `padded` is false."""

    images: int
    into: int
    out: int
    size: int
    kernel: int
    padded: bool = True

    @property
    def padding(self) -> int:
        return self.kernel // 2 if self.padded else 0

    @property
    def chosen(self) -> bool:
        """Whether an engine would take the Fourier transform."""
        images = torch.Size((self.images, self.into, self.size, self.size))
        weight = torch.Size((self.out, self.into, self.kernel, self.kernel))
        enough = self.into >= fourier.CHANNELS
        return enough and fourier.pays(images, weight, (self.padding, self.padding))

    @property
    def operations(self) -> float:
        """Multiplications of the plain way, forward and backward."""
        side = self.size + 2 * self.padding - self.kernel + 1
        return 3.0 * self.images * self.into * self.out * (side * self.kernel) ** 2

    def __str__(self) -> str:
        side = f"{self.size}x{self.size}"
        return (
            f"{self.images} images {side}, {self.into} to {self.out}, {self.kernel}x{self.kernel}"
        )


NETWORKS = {
    "W4": Layer(64, 32, 64, 14, 5),
    "W5": Layer(50, 32, 64, 16, 5),
    "W7, first": Layer(50, 64, 64, 32, 3),
    "W7, second": Layer(50, 128, 128, 16, 3),
    "W7, third": Layer(50, 256, 256, 8, 3),
    "W7, fourth": Layer(50, 512, 512, 4, 3),
}


def seconds(layer: Layer) -> tuple[float, float]:
    """Best seconds of a step by torch and through the transform."""
    last = torch.channels_last
    images = torch.randn(layer.images, layer.into, layer.size, layer.size)
    images = images.contiguous(memory_format=last).requires_grad_()
    weight = 0.05 * torch.randn(layer.out, layer.into, layer.kernel, layer.kernel)
    bias = torch.randn(layer.out, requires_grad=True)
    along = torch.randn_like(functional.conv2d(images, weight, padding=layer.padding))
    along = along.contiguous(memory_format=last)

    def plain(weight: Tensor) -> Tensor:
        return functional.conv2d(images, weight, bias, padding=layer.padding)

    def transformed(weight: Tensor) -> Tensor:
        return fourier.convolve(images, weight, bias, (layer.padding, layer.padding))

    def step(convolve: Callable[[Tensor], Tensor], weight: Tensor) -> float:
        began = time.perf_counter()
        torch.autograd.grad(convolve(weight), (images, weight, bias), along)
        return time.perf_counter() - began

    for_plain = weight.contiguous(memory_format=last).requires_grad_()
    for_transform = weight.clone().requires_grad_()
    laps: list[tuple[float, float]] = []
    until = time.perf_counter() + _SECONDS
    while len(laps) < 3 or time.perf_counter() < until:
        laps.append((step(plain, for_plain), step(transformed, for_transform)))
    return min(lap[0] for lap in laps), min(lap[1] for lap in laps)


def drawn(count: int) -> Iterator[Layer]:
    """Shapes of convolutions as networks on small images have them, none of them too long."""
    draw = np.random.default_rng(0)
    found: set[Layer] = set()
    while len(found) < count:
        kernel = int(draw.choice([3, 3, 5, 7]))
        images, size = (
            int(draw.choice([5, 10, 20, 50, 100])),
            int(draw.choice([4, 7, 8, 14, 16, 32])),
        )
        into, out = int(draw.choice([8, 16, 32, 64, 128, 256])), int(draw.choice([16, 32, 64, 256]))
        layer = Layer(images, into, out, size, kernel, bool(draw.random() < 0.7))
        if kernel <= size and 1.5e7 < layer.operations < 1.5e10 and layer not in found:
            found.add(layer)
            yield layer


def figures() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name, layer in NETWORKS.items():
        for way, took in zip(("torch", "Fourier"), seconds(layer), strict=True):
            found.append({"what": f"{name}: {layer}, {way}", "value": took, "unit": "s"})
    return found


def survey(count: int) -> list[dict[str, object]]:
    """What the choice gains where it takes the transform, and what it leaves elsewhere."""
    taken, left = [], []
    for layer in drawn(count):
        plain, transformed = seconds(layer)
        (taken if layer.chosen else left).append(plain / transformed)
        print(f"{layer!s:50} {plain / transformed:5.2f}x {'chosen' if layer.chosen else ''}")
    return [
        {"what": f"{len(taken)} of {count} shapes chosen: least gain", "value": min(taken)},
        {"what": "median gain", "value": float(np.median(taken))},
        {"what": "largest gain", "value": max(taken)},
        {"what": "largest gain not taken", "value": max(left)},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    parser.add_argument("--shapes", type=int, default=0, help="survey this many shapes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    if args.shapes:
        for figure in survey(args.shapes):
            print(f"{figure['what']:60} {figure['value']:5.2f}x")
        return
    measured = figures()
    if args.json:
        print(json.dumps({"convolution": measured}))
        return
    for figure in measured:
        print(f"{figure['what']:60} {figure['value']:9.4f} {figure['unit']}")


if __name__ == "__main__":
    main()
