"""Which rows belong to which client: row numbers and offsets, never an object a client."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.core.mixing import STRIDE, Words, mix

Rows = npt.NDArray[np.int64]


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The public random numbers of one purpose, for data that nobody in particular owns."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), _public(seed)])


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

    @cached_property
    def _identities(self) -> Words:
        return client_words(self.owners, self.clients)

    def client_words(self, seed: int, purpose: str) -> Words:
        """One random word a client, made from the public seed, the purpose and its own name."""
        key = int.from_bytes(_digest(f"fedveil/{_public(seed)}/{purpose}"), "little")
        return mix(self._identities ^ np.uint64(key))

    def row_words(self, seed: int, purpose: str) -> Words:
        """One random word a row, made from its client's word and its place within the client.

        Nothing else enters: neither other clients nor what stands in the rows.
        """
        with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
            places = self.positions.astype(np.uint64) * np.uint64(STRIDE)
            return mix(np.repeat(self.client_words(seed, purpose), self.sizes) + places)

    def lottery(self, seed: int, purpose: str) -> Rows:
        """Places of all rows, client by client, each client's in random order."""
        half = np.uint64(32)
        client = np.repeat(np.arange(self.clients, dtype=np.uint64), self.sizes)
        words = self.row_words(seed, purpose) >> half
        return np.argsort(client << half | words, kind="stable")  # one sort does both

    def numbers(self, count: int) -> Rows:
        """Return the client of each of `count` rows; -1 for a row of nobody."""
        found = np.full(count, -1)
        found[self.rows] = np.repeat(np.arange(self.clients), self.sizes)
        return found

    def keep(self, chosen: npt.NDArray[np.bool_]) -> Assignment:
        """Only the chosen rows; clients left without any disappear."""
        client = np.repeat(np.arange(self.clients), self.sizes)[chosen]
        sizes = np.bincount(client, minlength=self.clients)
        owners = None if self.owners is None else self.owners[sizes > 0]
        kept = Assignment(self.rows[chosen], offsets_of(sizes[sizes > 0]), owners)
        if owners is not None and "_identities" in vars(self):  # names need not be hashed again
            vars(kept)["_identities"] = self._identities[sizes > 0]
        return kept


@dataclass(frozen=True)
class Owners:
    """Who owns each row, without a name a row: `names[codes]`; `names` are sorted. A negative code
    stands for nobody."""

    codes: Rows
    names: npt.NDArray[np.generic]


def group(owners: npt.ArrayLike | Owners) -> Assignment:
    """Rows by owner, owners sorted, each owner's rows in their given order. A row whose owner is
    missing (None or NaN) belongs to nobody and is left out."""
    if isinstance(owners, Owners):
        codes = owners.codes
        coded = group(codes if codes.min(initial=0) >= 0 else np.where(codes < 0, np.nan, codes))
        return Assignment(coded.rows, coded.offsets, owners.names[np.asarray(coded.owners, int)])
    column = _column(owners)
    if column.ndim != 1 or not len(column):
        raise ConfigError(
            f"owners: must name one owner for each example, got an array of shape {column.shape}"
        )
    named = np.flatnonzero(~_missing(column))
    if not named.size:
        raise ConfigError("owners: no example has an owner; name one for each")
    if named.size < len(column):
        some = group(column[named])
        return Assignment(named[some.rows], some.offsets, some.owners)
    try:
        ordered = bool(np.all(column[:-1] <= column[1:]))
        rows = np.arange(len(column)) if ordered else np.argsort(column, kind="stable")
    except TypeError:
        raise _different(column) from None
    arranged = column if ordered else column[rows]
    first = np.flatnonzero(np.concatenate([[True], arranged[1:] != arranged[:-1]]))
    offsets = np.concatenate([first, [len(column)]]).astype(np.int64)
    names = arranged[first]
    if names.dtype == object and all(isinstance(name, str) for name in names):
        names = names.astype(str)
    return Assignment(rows.astype(np.int64, copy=False), offsets, names)


def client_words(owners: npt.NDArray[np.generic] | None, clients: int) -> Words:
    """A hash of every client's name; where clients have none, of its number in the dealing."""
    if owners is None:
        return mix(np.arange(clients, dtype=np.uint64) + np.uint64(1))
    names = b"".join([_digest(name) for name in identities(owners)])
    return np.frombuffer(names, "<u8").astype(np.uint64)


def identities(names: npt.NDArray[np.generic]) -> list[str]:
    """Names as texts that do not change when the type of the column does: 7, 7.0 and "7" are one.

    One more owner can make whole numbers floats, or days hours; it must not rename the others.
    """
    if names.dtype.kind in "mM":
        names = names.astype(f"{names.dtype.kind}8[us]").astype(np.int64)
    if names.dtype.kind in "iuU":
        return list(map(str, names.tolist()))
    return [_identity(name) for name in names.tolist()]


def _identity(name: Any) -> str:
    if isinstance(name, bool) or (isinstance(name, float) and name.is_integer()):
        name = int(name)
    return str(name)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _public(seed: int) -> int:
    if seed < 0:
        raise ConfigError(f"seed={seed}: must be 0 or more")
    return int(seed)


def offsets_of(sizes: npt.NDArray[np.integer[Any]]) -> Rows:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _column(owners: npt.ArrayLike) -> npt.NDArray[Any]:
    """The owners as an array; a list whose entries NumPy would make something else is refused."""
    column = np.asarray(owners)
    if isinstance(owners, (list, tuple)) and column.dtype.kind in "fUS":
        as_text = (str, bytes) if column.dtype.kind != "f" else (float, np.floating)
        if not all(isinstance(entry, as_text) for entry in owners):
            raise _different(owners)
    return column


def _different(entries: Iterable[object]) -> ConfigError:
    kinds = sorted({type(entry).__name__ for entry in entries})
    return ConfigError(f"owners: mix {', '.join(kinds)}; convert them to one type")


def _missing(column: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which entries name no owner."""
    if column.dtype == object:
        return np.fromiter((entry is None or entry != entry for entry in column), bool, len(column))
    if np.issubdtype(column.dtype, np.floating):
        return np.isnan(column.astype(np.float64, copy=False))
    return np.zeros(len(column), dtype=np.bool_)
