"""SVHN: house numbers seen from the street (Liang et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedveil.data.federation import Task
from fedveil.data.partition import IID
from fedveil.data.sources.files import Arrays, Copy, published
from fedveil.data.sources.formats import read_npz, read_svhn_mat
from fedveil.data.sources.source import Pool, Source, labelled_pool, pixel_scaling

_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
_TRAIN, _TEST, _EXTRA = "train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"
_SUBSET = "svhn_subset.npz"
_SUBSET_NOTE = (
    "This is a small part of SVHN: training uses the first 5,000 official test images (off by one "
    "grey level here and there), testing the first 1,083 official training images."
)
_VALIDATION = 10_000  # of the official test part, as in Liang et al.


def decode_subset(paths: Mapping[str, Path]) -> Arrays:
    """The official test images train: there are more of them."""
    found = read_npz(paths[_SUBSET], ("x_train", "y_train", "x_test", "y_test"))
    return {
        "x_train": found["x_test"],
        "y_train": found["y_test"],
        "x_test": found["x_train"],
        "y_test": found["y_train"],
    }


def decode_mats(paths: Mapping[str, Path]) -> Arrays:
    parts = [read_svhn_mat(paths[name]) for name in paths if name != _TEST]
    images, labels = read_svhn_mat(paths[_TEST])
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
    scaling = pixel_scaling(pixels, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    notes = (_SUBSET_NOTE,) if copy == "subset" else ()
    return labelled_pool(arrays, scaling=scaling, notes=notes)


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
        Copy("subset", published(_SUBSET), decode_subset),
        Copy("mat", published(_TRAIN, _TEST), decode_mats),
    ),
    options=("pixels",),
    home=_ADDRESS,
    remarks=("The compact copy has 5,000 + 1,083 images: give fewer clients than 2,000.",),
)

SVHN_EXTRA = replace(
    SVHN,
    name="svhn-extra",
    what="SVHN with its 531,131 extra images: 2,000 clients of about 300, as in the paper",
    examples=630_420,
    copies=(Copy("mat", published(_TRAIN, _EXTRA, _TEST), decode_mats),),
    remarks=(),
)
