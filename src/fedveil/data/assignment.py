"""Which rows belong to which client: row numbers and offsets, never an object a client."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.errors import BadInput

Rows = npt.NDArray[np.int64]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The public random numbers of one purpose: dealing examples, holding some out, and so on."""
    if seed < 0:
        raise BadInput(f"seed={seed}: must not be negative")
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed])


@dataclass(frozen=True)
class Assignment:
    """Client `i` owns `rows[offsets[i]:offsets[i + 1]]`; rows that nobody owns are left out."""

    rows: Rows
    offsets: Rows
    owners: npt.NDArray[np.generic] | None = None  # one name a client, where the data has names

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Rows:
        return np.diff(self.offsets)

    @property
    def positions(self) -> Rows:
        """The place of every row within its client: 0, 1, ..."""
        return np.arange(len(self.rows)) - np.repeat(self.offsets[:-1], self.sizes)

    def lottery(self, draw: np.random.Generator) -> Rows:
        """Places of all rows, client by client, each client's in random order."""
        client = np.repeat(np.arange(self.clients, dtype=np.float64), self.sizes)
        client += draw.random(len(client))  # one sort does both
        return np.argsort(client)

    def keep(self, chosen: npt.NDArray[np.bool_]) -> Assignment:
        """Only the chosen rows; clients left without any disappear."""
        client = np.repeat(np.arange(self.clients), self.sizes)[chosen]
        sizes = np.bincount(client, minlength=self.clients)
        owners = None if self.owners is None else self.owners[sizes > 0]
        return Assignment(self.rows[chosen], offsets_of(sizes[sizes > 0]), owners)


def group(owners: npt.ArrayLike) -> Assignment:
    """Rows by owner, owners sorted, each owner's rows in their given order."""
    column = np.asarray(owners)
    if column.ndim != 1 or not len(column):
        raise BadInput(f"owners: need one entry an example, got shape {column.shape}")
    _need_owners(column)
    try:
        ordered = bool(np.all(column[:-1] <= column[1:]))
        rows = np.arange(len(column)) if ordered else np.argsort(column, kind="stable")
    except TypeError:
        kinds = sorted({type(entry).__name__ for entry in column})
        raise BadInput(f"owners: entries of different kinds ({', '.join(kinds)})") from None
    arranged = column if ordered else column[rows]
    first = np.flatnonzero(np.concatenate([[True], arranged[1:] != arranged[:-1]]))
    offsets = np.concatenate([first, [len(column)]]).astype(np.int64)
    names = arranged[first]
    if names.dtype == object and all(isinstance(name, str) for name in names):
        names = names.astype(str)
    return Assignment(rows.astype(np.int64, copy=False), offsets, names)


def offsets_of(sizes: npt.NDArray[np.integer[Any]]) -> Rows:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _need_owners(column: npt.NDArray[np.generic]) -> None:
    missing: npt.NDArray[np.bool_]
    if column.dtype == object:
        missing = np.fromiter((entry is None or entry != entry for entry in column), bool)
    elif np.issubdtype(column.dtype, np.floating):
        missing = np.isnan(column.astype(np.float64, copy=False))
    else:
        return
    if missing.any():
        raise BadInput(f"owners: example {int(missing.argmax())} names no owner")
