"""SVHN: house numbers seen from the street (Liang et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.data.federation import Task
from fedveil.data.partition import IID
from fedveil.datasets.files import Arrays, Copy, File
from fedveil.datasets.formats import read_npz, read_svhn_mat
from fedveil.datasets.source import Pool, Source, labelled, pixel_scaling

_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
_TRAIN = File(
    "train_32x32.mat",
    _ADDRESS + "train_32x32.mat",
    182_040_794,
    ("sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",),
)
_TEST = File(
    "test_32x32.mat",
    _ADDRESS + "test_32x32.mat",
    64_275_384,
    ("sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",),
)
_EXTRA = File(
    "extra_32x32.mat",
    _ADDRESS + "extra_32x32.mat",
    1_329_278_602,
    ("sha256:a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",),
)
_SUBSET = File(
    "svhn_subset.npz",
    digests=("sha256:537fb4b73022793e62e5c654df156e49d7903290101627be42672f16fab18b71",),
)
_SUBSET_NOTE = (
    "This is a small part of SVHN: training uses the first 5,000 official test images (off by one "
    "grey level here and there), testing the first 1,083 official training images."
)
_VALIDATION = 10_000  # of the official test part, as in Liang et al.


def decode_subset(paths: Mapping[str, Path]) -> Arrays:
    """The official test images train: there are more of them."""
    found = read_npz(paths[_SUBSET.name], ("x_train", "y_train", "x_test", "y_test"))
    return {
        "x_train": found["x_test"],
        "y_train": found["y_test"],
        "x_test": found["x_train"],
        "y_test": found["y_train"],
    }


def decode_mats(paths: Mapping[str, Path]) -> Arrays:
    parts = [read_svhn_mat(paths[name]) for name in paths if name != _TEST.name]
    images, labels = read_svhn_mat(paths[_TEST.name])
    order = np.random.default_rng(0).permutation(len(labels))  # neighbours are alike: mix them
    validation, test = np.sort(order[:_VALIDATION]), np.sort(order[_VALIDATION:])
    return {
        "x_train": np.concatenate([part[0] for part in parts]),
        "y_train": np.concatenate([part[1] for part in parts]),
        "x_validation": images[validation],
        "y_validation": labels[validation],
        "x_test": images[test],
        "y_test": labels[test],
    }


def build(arrays: Arrays, copy: str, *, pixels: str = "unit") -> Pool:
    validation = None
    if "x_validation" in arrays:
        validation = labelled(arrays["x_validation"], arrays["y_validation"])
    return Pool(
        train=labelled(arrays["x_train"], arrays["y_train"]),
        test=labelled(arrays["x_test"], arrays["y_test"]),
        validation=validation,
        task=Task.CLASSIFICATION,
        classes=10,
        scaling=pixel_scaling(pixels, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        notes=(_SUBSET_NOTE,) if copy == "subset" else (),
    )


_LICENCE = "non-commercial use only (Y. Netzer et al., Reading Digits in Natural Images..., 2011)"

SVHN = Source(
    name="svhn",
    what="32x32 colour images of digits in house numbers, dealt at random",
    licence=_LICENCE,
    task=Task.CLASSIFICATION,
    classes=10,
    examples=99_289,
    clients=2000,
    partition=IID(2000),
    build=build,
    copies=(
        Copy("subset", (_SUBSET,), decode_subset),
        Copy("mat", (_TRAIN, _TEST), decode_mats),
    ),
    options=("pixels",),
    home=_ADDRESS,
    remarks=("The compact copy has 5,000 + 1,083 images: give fewer clients than 2,000.",),
)

SVHN_EXTRA = Source(
    name="svhn-extra",
    what="SVHN with its 531,131 extra images: 2,000 clients of about 300, as in the paper",
    licence=_LICENCE,
    task=Task.CLASSIFICATION,
    classes=10,
    examples=630_420,
    clients=2000,
    partition=IID(2000),
    build=build,
    copies=(Copy("mat", (_TRAIN, _EXTRA, _TEST), decode_mats),),
    options=("pixels",),
    home=_ADDRESS,
)
