"""MNIST, dealt at random (Liang et al.) or by the people who wrote the digits (QMNIST)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import read_idx, read_npz
from fedveil.data.sources.source import Pool, described, labelled_pool, pixel_scaling

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


MNIST = described("mnist", build, npz=decode_npz, idx=decode_idx)
MNIST_WRITERS = described("mnist-writers", build_by_writer, npz=decode_npz, idx=decode_idx)
