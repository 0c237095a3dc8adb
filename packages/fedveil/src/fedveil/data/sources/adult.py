"""Adult: income from census records, on sixteen devices (Hu et al.)."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from fedveil.core.arguments import one_of
from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.encoder import TableEncoder, category_codes
from fedveil.data.federation import Examples
from fedveil.data.schema import Kind, parse_schema, read_schema
from fedveil.data.sources.files import Arrays
from fedveil.data.sources.formats import reading
from fedveil.data.sources.source import Pool, described

_INCOME = "income"
with as_file(files(__package__) / "adult.toml") as _path:
    COLUMNS = parse_schema(read_schema(_path))
_TARGET = COLUMNS.pop(_INCOME)
ENCODER = TableEncoder(COLUMNS, (_INCOME,), _TARGET)


def decode(paths: Mapping[str, Path]) -> Arrays:
    """Decode both files' records, one after the other: inputs `[48842, 105]` and income classes."""
    inputs, income = ENCODER.examples(_records(path) for path in paths.values())
    return {"x_train": inputs, "y_train": income}


def _records(path: Path) -> Any:
    with reading(path):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if data.startswith(b"|"):  # the test file's first line is a remark
            data = data.partition(b"\n")[2]
        types = {
            name: pa.float64() if column.kind is Kind.NUMBER else pa.string()
            for name, column in (*COLUMNS.items(), (_INCOME, _TARGET))
        }
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(column_names=list(types)),
                convert_options=csv.ConvertOptions(column_types=types),
            )
        except pa.ArrowInvalid as error:
            raise ConfigError(f"{path}: not in the form of UCI's Adult ({error})") from None
    trimmed = [
        pc.utf8_trim(column, characters=" .") if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    table = pa.table(trimmed, names=table.column_names)
    if (category_codes(table.column(_INCOME), _TARGET.categories) < 0).any():
        raise ConfigError(f"{path}: an income is neither of {', '.join(_TARGET.categories)}")
    return table


def build(arrays: Arrays, copy: str, *, numbers: str = "standard") -> Pool:
    """Return the records; `numbers`, the six attributes that are no categories, are `standard`ised,
    or `raw` as they were counted."""
    one_of(("standard", "raw"))("numbers", numbers)
    inputs = arrays["x_train"] if numbers == "standard" else _raw(arrays["x_train"])
    return Pool(
        train=Examples(inputs, arrays["y_train"]),
        class_names=_TARGET.categories,
        features=ENCODER.features,
    )


def _raw(standard: Array) -> npt.NDArray[np.float32]:
    """Undo the standardisation; what was cut at five deviations stays there."""
    inputs = standard.astype(np.float32)
    for name, column in COLUMNS.items():
        if column.kind is Kind.NUMBER:
            place = ENCODER.features.index(name)
            inputs[:, place] = inputs[:, place] * column.width + column.centre
    return inputs


ADULT = described("adult", build, gz=decode, uci=decode)
