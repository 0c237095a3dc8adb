"""MNIST, dealt at random (Liang et al.) or by the people who wrote the digits (QMNIST)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.data.partition import IID, ByOwner
from fedveil.data.sources.files import Arrays, Copy, published
from fedveil.data.sources.formats import read_idx, read_npz
from fedveil.data.sources.source import Pool, Source, labelled_pool, pixel_scaling

_IDX = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}
_WRITERS = ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz")
_WRITER = 2  # column of QMNIST's extended labels: the NIST writer number


def decode_npz(paths: Mapping[str, Path]) -> Arrays:
    return read_npz(paths["mnist.npz"], tuple(_IDX), optional=("writer_train", "writer_test"))


def decode_idx(paths: Mapping[str, Path]) -> Arrays:
    arrays = {name: read_idx(paths[file]) for name, file in _IDX.items()}
    for part, writers in zip(("train", "test"), _WRITERS, strict=True):
        extended = paths.get(writers)
        if extended is not None:  # its rows are MNIST's, and more of them in the test part
            rows = len(arrays[f"y_{part}"])
            arrays[f"writer_{part}"] = read_idx(extended)[:rows, _WRITER]
    return arrays


def build(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    scaling = pixel_scaling(pixels, 0.1307, 0.3081)
    return labelled_pool(arrays, owners=arrays.get("writer_train"), scaling=scaling)


def build_by_writer(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    if "writer_train" not in arrays:
        raise ConfigError(
            "mnist-writers: this mnist.npz names no writers; remove it, so that the official files "
            "and QMNIST's labels are used"
        )
    return build(arrays, copy, pixels=pixels)


_NPZ = Copy("npz", published("mnist.npz"), decode_npz)
_LICENCE = "CC BY-SA 3.0, as usually stated (Y. LeCun, C. Cortes, C. Burges; from NIST's data)"

MNIST = Source(
    name="mnist",
    what="28x28 grey images of handwritten digits; 1,000 clients of 50, 10,000 for validation",
    licence=_LICENCE,
    task=Task.CLASSIFICATION,
    classes=10,
    examples=70_000,
    clients=1000,
    partition=IID(1000),
    build=build,
    copies=(_NPZ, Copy("idx", published(*_IDX.values()), decode_idx)),
    options=("pixels",),
    validation_fraction=1 / 6,
    home="http://yann.lecun.com/exdb/mnist/",
)

MNIST_WRITERS = replace(
    MNIST,
    name="mnist-writers",
    what="MNIST by the people who wrote it: 539 clients; the test part is by 297 others",
    licence=f"{_LICENCE}; writer numbers from QMNIST, BSD (C. Yadav, L. Bottou)",
    clients=539,
    partition=ByOwner(),
    build=build_by_writer,
    copies=(_NPZ, Copy("idx", published(*_IDX.values(), *_WRITERS), decode_idx)),
    validation_fraction=0.0,
    home="https://github.com/facebookresearch/qmnist",
    remarks=("Writers have 19 to 131 digits each, half of them at least 116.",),
)
