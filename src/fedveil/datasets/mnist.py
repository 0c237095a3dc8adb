"""MNIST, dealt at random (Liang et al.) or by the people who wrote the digits (QMNIST)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Task
from fedveil.data.partition import IID, ByOwner
from fedveil.datasets.files import Arrays, Copy, File
from fedveil.datasets.formats import read_idx, read_npz
from fedveil.datasets.source import Pool, Source, labelled, pixel_scaling

_MIRROR = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
_IDX = (
    File(
        "train-images-idx3-ubyte.gz",
        _MIRROR + "train-images-idx3-ubyte.gz",
        9_912_422,
        ("sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",),
    ),
    File(
        "train-labels-idx1-ubyte.gz",
        _MIRROR + "train-labels-idx1-ubyte.gz",
        28_881,
        ("sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",),
    ),
    File(
        "t10k-images-idx3-ubyte.gz",
        _MIRROR + "t10k-images-idx3-ubyte.gz",
        1_648_877,
        ("sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
    ),
    File(
        "t10k-labels-idx1-ubyte.gz",
        _MIRROR + "t10k-labels-idx1-ubyte.gz",
        4_542,
        ("sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",),
    ),
)
# QMNIST publishes no sha256; these are the md5 sums that torchvision checks.
_WRITERS = (
    File(
        "qmnist-train-labels-idx2-int.gz",
        _QMNIST + "qmnist-train-labels-idx2-int.gz",
        None,
        ("md5:0058f8dd561b90ffdd0f734c6a30e5e4",),
    ),
    File(
        "qmnist-test-labels-idx2-int.gz",
        _QMNIST + "qmnist-test-labels-idx2-int.gz",
        None,
        ("md5:5b5b05890a5e13444e108efe57b788aa",),
    ),
)
_WRITER = 2  # column of QMNIST's extended labels: the NIST writer number


def decode_npz(paths: Mapping[str, Path]) -> Arrays:
    names = ("x_train", "y_train", "x_test", "y_test")
    return read_npz(paths["mnist.npz"], names, optional=("writer_train", "writer_test"))


def decode_idx(paths: Mapping[str, Path]) -> Arrays:
    arrays = {
        "x_train": read_idx(paths["train-images-idx3-ubyte.gz"]),
        "y_train": read_idx(paths["train-labels-idx1-ubyte.gz"]),
        "x_test": read_idx(paths["t10k-images-idx3-ubyte.gz"]),
        "y_test": read_idx(paths["t10k-labels-idx1-ubyte.gz"]),
    }
    for part in ("train", "test"):
        extended = paths.get(f"qmnist-{part}-labels-idx2-int.gz")
        if extended is not None:  # its rows are MNIST's, and more of them in the test part
            rows = len(arrays[f"y_{part}"])
            arrays[f"writer_{part}"] = read_idx(extended)[:rows, _WRITER]
    return arrays


def build(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    return Pool(
        train=labelled(arrays["x_train"], arrays["y_train"]),
        test=labelled(arrays["x_test"], arrays["y_test"]),
        owners=arrays.get("writer_train"),
        task=Task.CLASSIFICATION,
        classes=10,
        scaling=pixel_scaling(pixels, 0.1307, 0.3081),
    )


def build_by_writer(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    if "writer_train" not in arrays:
        raise ConfigError(
            "mnist-writers: this mnist.npz names no writers; remove it, so that the official files "
            "and QMNIST's labels are used"
        )
    return build(arrays, copy, pixels=pixels)


# The compact copy with writers, and the one that Keras publishes.
_NPZ = File(
    "mnist.npz",
    digests=(
        "sha256:a922b5f92f1135596733bff2ccec3eadb643317dc65c41fe6c315512afa33075",
        "sha256:731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    ),
)
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
    copies=(Copy("npz", (_NPZ,), decode_npz), Copy("idx", _IDX, decode_idx)),
    options=("pixels",),
    validation_fraction=1 / 6,
    home="http://yann.lecun.com/exdb/mnist/",
)

MNIST_WRITERS = Source(
    name="mnist-writers",
    what="MNIST by the people who wrote it: 539 clients; the test part is by 297 others",
    licence=f"{_LICENCE}; writer numbers from QMNIST, BSD (C. Yadav, L. Bottou)",
    task=Task.CLASSIFICATION,
    classes=10,
    examples=70_000,
    clients=539,
    partition=ByOwner(),
    build=build_by_writer,
    copies=(Copy("npz", (_NPZ,), decode_npz), Copy("idx", _IDX + _WRITERS, decode_idx)),
    options=("pixels",),
    home="https://github.com/facebookresearch/qmnist",
    remarks=("Writers have 19 to 131 digits each, half of them at least 116.",),
)
