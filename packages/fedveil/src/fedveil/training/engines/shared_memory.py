"""A federation's training columns where other processes of this machine can read them.

Memory-mapped columns are opened again from their files; all others are copied once into memory
without a name, which vanishes with the last process that holds it, however that process ends.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.columns import Array
from fedveil.data.federation import Examples, Federation

_COLUMNS = ("inputs", "targets", "usable", "persons")  # of training examples
_REST = ("task", "classes", "name", "scaling", "unprotected")


@dataclass(frozen=True)
class SharedColumn:
    """How to find one array: in a file, or behind an inherited file descriptor."""

    place: str | int
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def open(self) -> Any:
        """The array, read-only and without a copy."""
        if isinstance(self.place, str):
            return np.memmap(Path(self.place), self.dtype, "r", self.offset, self.shape)
        with os.fdopen(os.dup(self.place), "rb") as file:
            return np.memmap(file, self.dtype, "r", self.offset, self.shape)


@dataclass(frozen=True)
class SharedFederation:
    """Everything of a federation that training needs; `open` rebuilds it in another process."""

    columns: dict[str, SharedColumn]
    rest: dict[str, Any]  # other fields of the federation

    def open(self) -> Federation:
        own = {name: column.open() for name, column in self.columns.items()}
        offsets = np.asarray(own.pop("offsets"))
        train = Examples(**own)
        nothing = Examples(train.inputs[:0], train.targets[:0])
        return Federation(train, offsets, nothing, **self.rest, verified=True)

    @property
    def descriptors(self) -> list[int]:
        """File descriptors that a worker process must inherit."""
        places = (column.place for column in self.columns.values())
        return [place for place in places if isinstance(place, int)]

    def close(self) -> None:
        """Give up this process's hold on the copies."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def bytes_to_copy(federation: Federation) -> int:
    """How much memory sharing a federation would take: nothing for columns in files."""
    train = federation.train
    return sum(c.nbytes for c in (train.inputs, train.targets) if _place_in_file(c) is None)


def share(federation: Federation) -> SharedFederation:
    """Put a federation where worker processes can read it."""
    own = {name: getattr(federation.train, name) for name in _COLUMNS}
    own["offsets"] = federation.offsets
    columns = {name: _share(one, name) for name, one in own.items() if one is not None}
    return SharedFederation(columns, {name: getattr(federation, name) for name in _REST})


def _share(array: Array, name: str) -> SharedColumn:
    mapped = _place_in_file(array)
    if mapped is not None:
        return mapped
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(f"fedveil-{name}")
    else:  # not on Linux: a file that is deleted already
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, max(1, array.nbytes))
    with os.fdopen(os.dup(descriptor), "r+b") as file:
        np.memmap(file, array.dtype, "r+", 0, array.shape)[...] = array
    return SharedColumn(descriptor, 0, array.dtype.str, array.shape)


def _place_in_file(array: Array) -> SharedColumn | None:
    """Where a memory-mapped array lies in its file; None if it is no contiguous part of one."""
    root: object = array
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not array.flags.c_contiguous:
        return None
    if root.mode == "c":  # changes stay in this process: the file may hold what was taken out here
        return None
    begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return SharedColumn(str(root.filename), root.offset + begin, array.dtype.str, array.shape)
