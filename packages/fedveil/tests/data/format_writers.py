"""Small files in the official formats, written from their published descriptions."""

from __future__ import annotations

import lzma
import sqlite3
import struct

import numpy as np


def idx(array, kind):
    header = struct.pack(">HBB", 0, kind, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features):
    """A serialized tf.train.Example, written by the published protocol-buffer definition."""
    entries = b""
    for name, values in features.items():
        if isinstance(values, bytes):
            feature = field(1, field(1, values))
        elif isinstance(values, np.ndarray):
            feature = field(2, field(1, values.astype("<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(varint(value) for value in values)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def database(path, rows):
    raw = path.with_suffix(".raw")
    connection = sqlite3.connect(raw)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    path.write_bytes(lzma.compress(raw.read_bytes()))
    return path
