"""Readers of the official file formats; a file that is not what it should be is a ConfigError."""

from __future__ import annotations

import gzip
import lzma
import pickle
import shutil
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array

_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file provokes into one line that names it."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot be read, truncated or altered ({error})") from None
    except (ValueError, KeyError, IndexError, struct.error, tarfile.TarError) as error:
        raise ConfigError(f"{path}: not in the expected form ({error})") from None
    except (pickle.UnpicklingError, sqlite3.Error) as error:
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
    """CIFAR-10's official archive, the binary or the Python version, as it comes (tar.gz)."""
    images: dict[str, Array] = {}
    labels: dict[str, Array] = {}
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = Path(member.name).name.removesuffix(".bin")
            if not name.startswith(("data_batch_", "test_batch")):
                continue
            stream = archive.extractfile(member)
            data = b"" if stream is None else stream.read()
            images[name], labels[name] = (
                _cifar_binary(data) if member.name.endswith(".bin") else _cifar_pickle(data)
            )
        batches = [f"data_batch_{i}" for i in range(1, 6)]
        return {
            "x_train": np.concatenate([images[name] for name in batches]),
            "y_train": np.concatenate([labels[name] for name in batches]),
            "x_test": images["test_batch"],
            "y_test": labels["test_batch"],
        }


def _cifar_images(flat: npt.NDArray[np.uint8]) -> Array:
    """Rows of 3 x 32 x 32 bytes as images with the channel last."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _cifar_binary(data: bytes) -> tuple[Array, Array]:
    rows = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3072)
    return _cifar_images(rows[:, 1:]), rows[:, 0].copy()


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds NumPy arrays and plain containers, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in ("_reconstruct", "ndarray", "dtype") and module.split(".")[0] == "numpy":
            module = module.replace("numpy.core", "numpy._core")
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}")


def _cifar_pickle(data: bytes) -> tuple[Array, Array]:
    batch = _ArraysOnly(BytesIO(data), encoding="bytes").load()
    return _cifar_images(batch[b"data"]), np.asarray(batch[b"labels"], dtype=np.uint8)


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
    """The features of a serialized `tf.train.Example`: bytes, floats or integers by name.

    Example { Features { map<string, Feature> } }, Feature { bytes = 1 | floats = 2 | ints = 3 },
    every list in field 1 of its message, numbers packed.
    """
    features: dict[str, Any] = {}
    for _, outer in _fields(message):
        for _, entry in _fields(outer):
            parts = dict(_fields(entry))
            name = bytes(parts[1]).decode()
            for kind, content in _fields(parts[2]):
                features[name] = _values(kind, content)
    return features


def _values(kind: int, content: memoryview | bytes) -> Any:
    values = [value for field, value in _fields(content) if field == 1]
    if kind == 1:
        return [bytes(value) for value in values]
    if kind == 2:
        return np.concatenate([np.frombuffer(value, "<f4") for value in values])
    numbers: list[int] = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(number)
    return numbers


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """(field number, content) of a protocol-buffer message."""
    view = memoryview(message)
    position = 0
    while position < len(view):
        tag, position = _varint(view, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(view, position)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, position = _varint(view, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"protocol buffer of wire type {kind}")
        if position + length > len(view):
            raise ValueError("protocol buffer cut short")
        yield tag >> 3, view[position : position + length]
        position += length


def _varint(view: Any, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
