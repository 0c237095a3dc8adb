"""Readers of the official file formats; a file that is not what it should be is a ConfigError."""

from __future__ import annotations

import gzip
import lzma
import shutil
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file provokes into one line that names it."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot be read, truncated or altered ({error})") from None
    except (ValueError, LookupError, struct.error, tarfile.TarError, sqlite3.Error) as error:
        raise ConfigError(f"{path}: not in the expected form ({error})") from None


def read_npz(path: Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Array]:
    with reading(path), np.load(path, allow_pickle=False) as archive:
        lacking = [name for name in names if name not in archive]
        if lacking:
            raise ConfigError(f"{path}: lacks the array {lacking[0]!r}; get the file again")
        return {name: archive[name] for name in (*names, *optional) if name in archive}


def read_idx(path: Path) -> Array:
    """An idx file (MNIST's format), gzipped or not."""
    with reading(path):
        opener: Any = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            data: bytes = file.read()
        zero, kind, dimensions = struct.unpack(">HBB", data[:4])
        if zero != 0 or kind not in _IDX_TYPES:
            raise ConfigError(f"{path}: not an idx file; get it again")
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        flat = np.frombuffer(data, _IDX_TYPES[kind], offset=4 + 4 * dimensions)
        array = flat.reshape(shape)  # a wrong length is a ValueError
        return array.astype(array.dtype.newbyteorder("="))


def read_cifar_archive(path: Path) -> dict[str, Array]:
    """Read CIFAR-10's official archive, the binary version, as it comes (tar.gz)."""
    with reading(path), tarfile.open(path, "r:gz") as archive:
        found = {}
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".bin") else None
            if stream is not None:
                rows = np.frombuffer(stream.read(), np.uint8).reshape(-1, 1 + 3072)
                found[Path(member.name).stem] = rows
        train = np.concatenate([found[f"data_batch_{i}"] for i in range(1, 6)])
        arrays: dict[str, Array] = {}
        for part, rows in (("train", train), ("test", found["test_batch"])):
            images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # colours last
            arrays[f"x_{part}"], arrays[f"y_{part}"] = np.ascontiguousarray(images), rows[:, 0]
        return arrays


def read_svhn_mat(path: Path) -> tuple[Array, Array]:
    """Images `[n, 32, 32, 3]` and labels of one of SVHN's cropped-digit files; digit 0 is 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(path):
        try:
            content = loadmat(path, variable_names=["X", "y"])
        except (MatReadError, NotImplementedError, TypeError) as error:
            raise ConfigError(f"{path}: not a MATLAB file ({error}); get it again") from None
        images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
        return images, (content["y"].reshape(-1) % 10).astype(np.uint8)


def read_federated_sqlite(path: Path, splits: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    """Rows (split, client, serialized example) of a TensorFlow Federated data set, by client.

    The published files are LZMA-compressed SQLite databases with a table `examples`.
    """
    with tempfile.TemporaryDirectory() as directory:
        database = path
        if path.suffix == ".lzma":
            database = Path(directory) / "examples.sqlite"
            with reading(path), lzma.open(path) as packed, database.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
        with reading(path):
            connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            try:
                places = ", ".join("?" for _ in splits)
                yield from connection.execute(
                    "SELECT split_name, client_id, serialized_example_proto FROM examples "
                    f"WHERE split_name IN ({places}) ORDER BY client_id, rowid",
                    list(splits),
                )
            finally:
                connection.close()


def parse_example(message: bytes) -> dict[str, Any]:
    """Parse the features of a serialized `tf.train.Example`: bytes, floats or integers by name.

    Example { Features { map<string, Feature> } }, Feature { bytes = 1 | floats = 2 | ints = 3 },
    every list in field 1 of its message, numbers packed.
    """
    features: dict[str, Any] = {}
    for _, outer in _fields(message):
        for _, entry in _fields(outer):
            parts = dict(_fields(entry))
            for kind, content in _fields(parts[2]):
                values = [value for _, value in _fields(content)]
                if kind == 2:
                    found: Any = np.concatenate([np.frombuffer(one, "<f4") for one in values])
                else:
                    found = values if kind == 1 else [n for one in values for n in _varints(one)]
                features[parts[1].decode()] = found
    return features


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield field number and content of each field of a protocol-buffer message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        if tag & 7 != 2:
            raise ValueError(f"protocol buffer of wire type {tag & 7}")
        length, position = _varint(message, position)
        content = message[position : position + length]
        if len(content) < length:
            raise ValueError("protocol buffer cut short")
        yield tag >> 3, content
        position += length


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        number, position = _varint(data, position)
        yield number


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
