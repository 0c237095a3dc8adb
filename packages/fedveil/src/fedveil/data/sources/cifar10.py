"""CIFAR-10 with label mixes drawn from a Dirichlet law (Cheng et al., after Hsu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.federation import Task
from fedveil.data.partition import Dirichlet
from fedveil.data.sources.files import Arrays, Copy, published
from fedveil.data.sources.formats import read_cifar_archive, read_npz, reading
from fedveil.data.sources.source import Pool, Source, labelled_pool, pixel_scaling

CLASS_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_BATCHES = tuple(f"cifar10_train_{batch}.webp" for batch in range(1, 6))


def decode_archive(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    return read_cifar_archive(path)


def decode_mosaics(paths: Mapping[str, Path]) -> Arrays:
    labels = read_npz(paths["cifar10_labels.npz"], ("y_train", "y_test"))
    return {
        "x_train": np.concatenate([read_mosaic(paths[name]) for name in _BATCHES]),
        "x_test": read_mosaic(paths["cifar10_test.webp"]),
        **labels,
    }


def read_mosaic(path: Path, side: int = 32) -> Array:
    """Images `[n, side, side, 3]` from one picture in which they stand row by row."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(f"{path}: reading it needs Pillow: pip install 'fedveil[data]'") from None

    with reading(path), Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
        rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
        tiles = pixels.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        return np.ascontiguousarray(tiles).reshape(-1, side, side, 3)


def build(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    scaling = pixel_scaling(pixels, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    return labelled_pool(arrays, class_names=CLASS_NAMES, scaling=scaling)


CIFAR10 = Source(
    name="cifar10",
    what="32x32 colour images of ten kinds of things; 500 clients of 100 with uneven labels",
    licence="none stated by the authors; cite A. Krizhevsky, Learning Multiple Layers..., 2009",
    task=Task.CLASSIFICATION,
    classes=10,
    examples=60_000,
    clients=500,
    partition=Dirichlet(500, 1.0, balanced=True),
    build=build,
    copies=(
        Copy(
            "mosaic",
            published(*_BATCHES, "cifar10_test.webp", "cifar10_labels.npz"),
            decode_mosaics,
        ),
        Copy("binary", published("cifar-10-binary.tar.gz"), decode_archive),
        Copy("python", published("cifar-10-python.tar.gz"), decode_archive),
    ),
    options=("pixels",),
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    remarks=("Cheng et al. do not say how many clients they made; 500 is Reddi et al.'s number.",),
)
