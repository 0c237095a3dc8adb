"""FEMNIST: handwritten digits and letters by their writers (Fu et al., Cheng et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Scaling
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import parse_example, read_federated_sqlite, read_npz, reading
from fedveil.data.sources.source import Pool, described, labelled_pool

CLASS_NAMES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_SUBSET_NOTE = (
    "These are 300 of LEAF's 3,597 writers, and not a random draw: writers with few images, digits "
    "and late numbers are over-represented."
)


def decode_subset(paths: Mapping[str, Path]) -> Arrays:
    """Writers whose training part is known train; the others' images are `unseen`."""
    (path,) = paths.values()
    found = read_npz(path, ("x", "y", "writer", "split", "writer_names", "writer_full"))
    full = found["writer_full"][found["writer"]].astype(bool)
    arrays: Arrays = {}
    for part, rows in (
        ("train", full & (found["split"] == 0)),
        ("test", full & (found["split"] == 1)),
        ("unseen", ~full),
    ):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = found["x"][rows], found["y"][rows]
    arrays["owner_train"] = found["writer_names"][found["writer"][full & (found["split"] == 0)]]
    return arrays


def decode_database(paths: Mapping[str, Path]) -> Arrays:
    """TensorFlow Federated's federated EMNIST, `all` characters: 3,400 writers."""
    (path,) = paths.values()
    images = {"all_train": bytearray(), "all_test": bytearray()}
    labels: dict[str, list[int]] = {part: [] for part in images}
    owners: list[str] = []
    with reading(path):
        for part, owner, message in read_federated_sqlite(path, tuple(images)):
            example = parse_example(message)
            pixels = np.asarray(example["pixels"])
            if pixels.size != 784:
                raise ConfigError(f"{path}: an image of {pixels.size} pixels instead of 784")
            images[part] += np.rint(pixels * 255).astype(np.uint8).tobytes()
            labels[part].append(int(example["label"][0]))
            if part == "all_train":
                owners.append(owner)
    arrays: Arrays = {"owner_train": np.array(owners)}
    for part in ("train", "test"):
        flat = np.frombuffer(bytes(images[f"all_{part}"]), np.uint8)
        arrays[f"x_{part}"] = flat.reshape(-1, 28, 28)
        arrays[f"y_{part}"] = np.array(labels[f"all_{part}"], np.uint8)
    return arrays


def build(arrays: Arrays, copy: str, *, pixels: str = "unit", test: str = "same") -> Pool:
    """`test`: images of the `same` writers that train, or of `unseen` ones (subset only)."""
    part = {"same": "test", "unseen": "unseen"}.get(test)
    if part is None or f"x_{part}" not in arrays:
        raise ConfigError(
            f"test={test!r}: must be same" + (" or unseen" if copy == "subset" else "")
        )
    chosen = {"x_test": arrays[f"x_{part}"], "y_test": arrays[f"y_{part}"]}
    return labelled_pool(
        arrays | chosen,
        owners=arrays["owner_train"],
        class_names=CLASS_NAMES,
        scaling=_scaling(pixels),
        notes=(_SUBSET_NOTE,) if copy == "subset" else (),
    )


def _scaling(pixels: str) -> Scaling:
    """Stored as published, black ink 0 on white 255; a model sees ink as 1, like MNIST's."""
    if pixels == "unit":
        return Scaling(np.asarray(255, np.float32), np.asarray(-1 / 255, np.float32))
    if pixels == "raw":
        return Scaling(np.zeros((), np.float32), np.asarray(1 / 255, np.float32))
    raise ConfigError(f"pixels={pixels!r}: must be unit (ink is 1) or raw (paper is 1)")


FEMNIST = described("femnist", build, subset=decode_subset, tff=decode_database)
