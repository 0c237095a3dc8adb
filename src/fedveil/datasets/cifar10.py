"""CIFAR-10 with label mixes drawn from a Dirichlet law (Cheng et al., after Hsu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.federation import Task
from fedveil.data.partition import Dirichlet
from fedveil.datasets.files import Arrays, Copy, File
from fedveil.datasets.formats import read_cifar_archive, read_npz, reading
from fedveil.datasets.source import Pool, Source, labelled, pixel_scaling

CLASS_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_ADDRESS = "https://www.cs.toronto.edu/~kriz/"
_BINARY = File(
    "cifar-10-binary.tar.gz",
    _ADDRESS + "cifar-10-binary.tar.gz",
    170_052_171,
    ("sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",),
)
_PYTHON = File(
    "cifar-10-python.tar.gz",
    _ADDRESS + "cifar-10-python.tar.gz",
    170_498_071,
    ("sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",),
)
_MOSAICS = {
    "cifar10_train_1.webp": "7d659541ed95237ea4e04e2d33389e1104c1953861748ff53d660d6c8d6654f9",
    "cifar10_train_2.webp": "51af9519a93c50876c6e10004965e1e5959387da1f8d7b96f16f7ca26219af79",
    "cifar10_train_3.webp": "3c724790d972e645054d7cc995e1535ee05064097410e5a14c537c7145a70db8",
    "cifar10_train_4.webp": "7e1e0d309a2ac32bb67831184e997f88a9e74324a01f95cc481819c6955db2b3",
    "cifar10_train_5.webp": "1d3f867bf1d6f975111042b2a5f839fd80c93de1c03f75c667d7840bd55da85c",
    "cifar10_test.webp": "df199aec7516a004a23ad02816a63a368d2208347ff1c4011eaa91a2503201fc",
    "cifar10_labels.npz": "2adcb621b226054b45ea498e5151b50747ee667e75829c059844e7b78f6b5196",
}


def decode_archive(paths: Mapping[str, Path]) -> Arrays:
    (path,) = paths.values()
    return read_cifar_archive(path)


def decode_mosaics(paths: Mapping[str, Path]) -> Arrays:
    labels = read_npz(paths["cifar10_labels.npz"], ("y_train", "y_test"))
    train = [read_mosaic(paths[f"cifar10_train_{batch}.webp"]) for batch in range(1, 6)]
    return {
        "x_train": np.concatenate(train),
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
    return Pool(
        train=labelled(arrays["x_train"], arrays["y_train"]),
        test=labelled(arrays["x_test"], arrays["y_test"]),
        task=Task.CLASSIFICATION,
        classes=10,
        class_names=CLASS_NAMES,
        scaling=pixel_scaling(pixels, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    )


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
            tuple(File(name, digests=(f"sha256:{digest}",)) for name, digest in _MOSAICS.items()),
            decode_mosaics,
        ),
        Copy("binary", (_BINARY,), decode_archive),
        Copy("python", (_PYTHON,), decode_archive),
    ),
    options=("pixels",),
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    remarks=("Cheng et al. do not say how many clients they made; 500 is Reddi et al.'s number.",),
)
