"""Features of named data sets in the user's cache, by the content of each example.

Whichever clients examples are dealt to, and in whatever order, their features are computed once. A
directory for each map holds shelves of a thousand examples: their digests and their features,
written in one go and never changed. An interrupted computation loses one shelf at most, and another
process may add shelves at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.core.progress import in_blocks
from fedveil.data.columns import Array
from fedveil.data.storage import map_columns, write_columns

_DIGEST = 16  # bytes
SHELF = 1024  # examples
_MANIFEST = "features.json"

Digests = npt.NDArray[np.uint8]  # [examples, 16]
Half = npt.NDArray[np.float16]


def recalled(home: Path, inputs: Array, make: Callable[[Array], Half]) -> Array:
    """Return the features of all inputs, memory-mapped, and compute those that are not kept yet.

    Args:
        home: The directory of the map's features.
        inputs: `[examples, ...]`, as stored.
        make: Computes the features `[n, ...]` of some inputs `[n, ...]`.
    """
    digests, shelves = _digests(inputs), _shelves(home)
    if not len(inputs):
        return np.zeros((0, *shelves[0][1].shape[1:]), np.float16) if shelves else make(inputs)
    where = _where(shelves)
    missing = [row for row, one in enumerate(digests) if one.tobytes() not in where]
    for rows in in_blocks(missing, SHELF, "features"):
        shelves.append(_added(home, digests[rows], make(inputs[rows])))
    where = _where(shelves)
    places = [where[one.tobytes()] for one in digests]
    first, start = places[0]
    known, features = shelves[first]
    if np.array_equal(known[start : start + len(digests)], digests):  # one after the other
        return features[start : start + len(digests)]
    found = unnamed((len(inputs), *features.shape[1:]))
    for row, (shelf, place) in enumerate(places):
        found[row] = shelves[shelf][1][place]
    return found


def unnamed(shape: tuple[int, ...]) -> Half:
    """Room in a file without a name, which vanishes with the process."""
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR")) as file:
        return np.memmap(file, np.float16, "w+", 0, shape)


def _digests(inputs: Array) -> Digests:
    found = np.empty((len(inputs), _DIGEST), np.uint8)
    for row, example in enumerate(inputs):
        digest = hashlib.blake2b(np.ascontiguousarray(example).tobytes(), digest_size=_DIGEST)
        found[row] = np.frombuffer(digest.digest(), np.uint8)
    return found


Shelf = tuple[Digests, Array]


def _where(shelves: list[Shelf]) -> dict[bytes, tuple[int, int]]:
    """Digest -> number of a shelf and place on it, the first one of each."""
    where: dict[bytes, tuple[int, int]] = {}
    for number, (digests, _) in enumerate(shelves):
        for place, one in enumerate(digests):
            where.setdefault(one.tobytes(), (number, place))
    return where


def _shelves(home: Path) -> list[Shelf]:
    """Return the finished directories; those being written begin with a dot."""
    if not home.is_dir():
        return []
    return [_read(one) for one in sorted(home.iterdir()) if not one.name.startswith(".")]


def _read(shelf: Path) -> Shelf:
    try:
        sizes: dict[str, int] = json.loads((shelf / _MANIFEST).read_text(encoding="utf-8"))["bytes"]
        columns = map_columns(shelf, sizes)
        digests, features = np.array(columns["digests"], np.uint8), columns["features"]
    except (ConfigError, OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{shelf}: damaged features; delete this directory") from None
    return digests, features


def _added(home: Path, digests: Digests, features: Half) -> Shelf:
    """A new shelf. A full or read-only cache, or one that another process was quicker to fill,
    costs time, not the result."""
    shelf = home / hashlib.sha256(digests.tobytes()).hexdigest()[:32]
    try:
        write_columns(shelf, {"digests": digests, "features": features}, _MANIFEST, {})
        os.chmod(home, 0o700)
    except OSError:
        return digests, features
    return _read(shelf)
