"""CIFAR-10 with label mixes drawn from a Dirichlet law (Cheng et al., after Hsu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import read_cifar_archive, read_npz, reading
from fedveil.data.sources.source import Pool, described, labelled_pool, pixel_scaling


def decode_archive(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    return read_cifar_archive(path)


def decode_mosaics(paths: Mapping[str, Path]) -> Arrays:
    batches = [path for name, path in paths.items() if name.startswith("cifar10_train")]
    return {
        "x_train": np.concatenate([read_mosaic(path) for path in batches]),
        "x_test": read_mosaic(paths["cifar10_test.webp"]),
        **read_npz(paths["cifar10_labels.npz"], ("y_train", "y_test")),
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
    return labelled_pool(arrays, scaling=scaling)


CIFAR10 = described("cifar10", build, mosaic=decode_mosaics, binary=decode_archive)
