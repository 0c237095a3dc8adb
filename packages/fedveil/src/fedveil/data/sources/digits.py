"""The embedded default: handwritten digits that come with scikit-learn."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

from fedveil.data.sources.files import Arrays
from fedveil.data.sources.source import Pool, described, labelled_pool, unit_pixels

# Read from where scikit-learn keeps them: to import it, for `load_digits`, takes a second.
_FILE = "sklearn/datasets/data/digits.csv.gz"


def build(arrays: Arrays, copy: str) -> Pool:
    file = str(distribution("scikit-learn").locate_file(_FILE))
    rows = np.loadtxt(file, dtype=np.uint8, delimiter=",")  # 64 grey values 0..16 and the digit
    images = rows[:, :64].reshape(-1, 8, 8)
    return labelled_pool({"x_train": images, "y_train": rows[:, 64]}, scaling=unit_pixels(16))


DIGITS = described("digits", build)
