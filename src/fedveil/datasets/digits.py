"""The embedded default: handwritten digits that come with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedveil.data.federation import Examples, Task
from fedveil.data.partition import IID
from fedveil.datasets.files import Arrays
from fedveil.datasets.source import Pool, Source, unit_pixels


def build(arrays: Arrays, copy: str) -> Pool:
    from sklearn.datasets import load_digits  # a second to import: only when it is needed

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)  # whole numbers 0..16
    return Pool(
        train=Examples(images, bunch.target.astype(np.int64)),
        task=Task.CLASSIFICATION,
        classes=10,
        scaling=unit_pixels(16),
    )


DIGITS = Source(
    name="digits",
    what="8x8 grey images of handwritten digits, part of scikit-learn: nothing to download",
    licence="CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998)",
    task=Task.CLASSIFICATION,
    classes=10,
    examples=1797,
    clients=100,
    partition=IID(100),
    build=build,
    home="https://archive.ics.uci.edu/dataset/80",
    test_fraction=0.2,
)
