"""SVHN: house numbers seen from the street (Liang et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import read_npz, read_svhn_mat
from fedveil.data.sources.source import Pool, described, labelled_pool, pixel_scaling

_TEST = "test_32x32.mat"
_SUBSET_NOTE = (
    "This is a small part of SVHN: training uses the first 5,000 official test images (off by one "
    "grey level here and there), testing the first 1,083 official training images."
)
_VALIDATION = 10_000  # of the official test part, as in Liang et al.


def decode_subset(paths: Mapping[str, Path]) -> Arrays:
    """The official test images train: there are more of them."""
    found = read_npz(paths["svhn_subset.npz"], ("x_train", "y_train", "x_test", "y_test"))
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


SVHN = described("svhn", build, subset=decode_subset, mat=decode_mats)
SVHN_EXTRA = described("svhn-extra", build, mat=decode_mats)
