"""Rows through each door of the program. Files have the same names in every world."""

from __future__ import annotations

import csv
import gzip
import io
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet

import fedveil as fv
from fedveil.data.federation import HELD_OUT_NOTE
from fedveil.data.folder import FILE
from fedveil.data.partition import IID, ByOwner

from .rows import Filled, Row, Sheet

_LIMITS = ("cap", "examples_per_client", "at_least", "clients")


@dataclass(frozen=True)
class Opened:
    """What became of a source: a federation, or how it ended."""

    federation: fv.Federation | None
    end: str = ""
    warnings: tuple[str, ...] = ()


def open_rows(sheet: Sheet, world: Filled, folder: Path) -> Opened:
    """The rows of a world through the sheet's door."""
    rows = sorted(world.rows, key=lambda row: row.place)
    return opened(lambda: DOORS[sheet.door](sheet, rows, folder, world.types))


def opened(read: Callable[[], fv.Federation]) -> Opened:
    """What comes of reading, warnings included: they are shown."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        try:
            federation, end = read(), ""
        except Exception as error:  # a reader that breaks tells as much as one that refuses
            federation, end = None, f"{type(error).__name__}: {error}"
    return Opened(federation, end, tuple(sorted({str(one.message) for one in shown})))


def _settings(sheet: Sheet) -> dict[str, Any]:
    dealing = dict(sheet.dealing)
    limits = {name: dealing.pop(name) for name in _LIMITS if name in dealing}
    shares = dealing.pop("iid", None)
    return {**dealing, "partition": ByOwner(**limits) if shares is None else IID(clients=shares)}


# Tables: cells are written as text, or stored with a type that is public.


def names_of(sheet: Sheet) -> list[str]:
    return [f"x{place}" for place in range(sheet.columns)]


def schema_of(sheet: Sheet) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: {"type": "number", "min": -3, "max": 3, "missing": True} for name in names_of(sheet)
    }
    columns["word"] = {"type": "category", "categories": ["a", "b"], "missing": True}
    if sheet.classes:
        names = [f"k{number}" for number in range(sheet.classes)]
        columns["y"] = {"type": "category", "categories": names}
    else:
        columns["y"] = {"type": "number", "min": -5, "max": 5}
    return {"columns": columns}


def text_of(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else repr(value)


def label_text(sheet: Sheet, label: Any) -> str:
    known = sheet.classes and isinstance(label, int) and 0 <= label < sheet.classes
    return f"k{label}" if known else text_of(label)


def write_csv(sheet: Sheet, rows: Sequence[Row], path: Path, owners: bool = True) -> None:
    """Write a file in one of the forms that files have; delimiter, mark and zipping are public."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=(",", ",", ";", "\t")[sheet.seed % 4])
    header = [*(["who"] if owners else []), *names_of(sheet), "word", "y"]
    writer.writerow(header)
    for row in rows:
        cells = [*map(text_of, row.inputs), text_of(row.word), label_text(sheet, row.label)]
        cells = [*([row.owner] if owners else []), *cells]
        # A blank line is no row: one cell at least, and that one quoted.
        writer.writerow([*cells, *["5"] * row.cells][: max(1, len(header) + row.cells)])
    written = text.getvalue().encode("utf-8-sig" if sheet.seed % 5 == 0 else "utf-8")
    path.write_bytes(gzip.compress(written, 1) if sheet.seed % 7 == 0 else written)


def write_files(sheet: Sheet, rows: Sequence[Row], here: Path) -> None:
    """Write a file for each owner."""
    here.mkdir(exist_ok=True)
    for owner in {row.owner for row in rows}:
        own = [row for row in rows if row.owner == owner]
        write_csv(sheet, own, here / f"{owner}.csv", owners=False)


def columns_of(sheet: Sheet, rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Columns as frames hold them: typed by what is public, or Python objects as they come."""
    columns: dict[str, list[Any]] = {"who": [row.owner for row in rows]}
    for place, name in enumerate(names_of(sheet)):
        values = [row.inputs[place] for row in rows]
        columns[name] = values if sheet.objects else [_number(value) for value in values]
    columns["word"] = [row.word for row in rows]
    if sheet.classes:
        columns["y"] = [label_text(sheet, row.label) or None for row in rows]
    else:
        columns["y"] = [row.label if sheet.objects else _number(row.label) for row in rows]
    return columns


def _number(value: Any) -> float | None:
    """As a column of numbers can hold it."""
    return float(value) if isinstance(value, int | float) else None


def _table(sheet: Sheet, source: Any) -> fv.Federation:
    settings = _settings(sheet)
    owner = None if sheet.artificial else "who"
    schema = schema_of(sheet) if sheet.declared else None
    return fv.from_table(source, label="y", client_column=owner, schema=schema, **settings)


def _csv(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    write_csv(sheet, rows, folder / "rows.csv")
    return _table(sheet, folder / "rows.csv")


def _files(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    """A file for each owner."""
    write_files(sheet, rows, folder / "clients")
    schema = schema_of(sheet) if sheet.declared else None
    owner = None if sheet.artificial else FILE
    return fv.from_table(
        folder / "clients", label="y", client_column=owner, schema=schema, **_settings(sheet)
    )


def _parquet(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    parquet.write_table(arrow_table(sheet, rows), folder / "rows.parquet")
    return _table(sheet, folder / "rows.parquet")


def arrow_table(sheet: Sheet, rows: Sequence[Row]) -> pa.Table:
    columns = columns_of(sheet, rows)
    if sheet.objects:  # a file has no column of anything: text
        columns |= {
            name: [None if x is None else text_of(x) for x in columns[name]]
            for name in (*names_of(sheet), "y")
        }
    kinds = {name: pa.string() if sheet.objects else pa.float64() for name in names_of(sheet)}
    kinds |= {"who": pa.string(), "word": pa.string()}
    kinds["y"] = pa.string() if sheet.classes or sheet.objects else pa.float64()
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def _arrow(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    return _table(sheet, arrow_table(sheet, rows))


# The types in which a frame keeps text and numbers.
_TEXTS = (object, "str", "string", "category", pd.ArrowDtype(pa.string()))
_FLOATS = ("float64", "Float64", pd.ArrowDtype(pa.float64()))


def _pandas(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    columns = columns_of(sheet, rows)
    numbers = [] if sheet.objects else [*names_of(sheet), *([] if sheet.classes else ["y"])]
    text, number = _TEXTS[sheet.seed % len(_TEXTS)], _FLOATS[sheet.seed % len(_FLOATS)]
    kinds = dict.fromkeys(columns, object) | {"who": text, "word": text}
    kinds |= dict.fromkeys(numbers, number)
    frame = pd.DataFrame({n: pd.Series(values, dtype=kinds[n]) for n, values in columns.items()})
    return _table(sheet, frame.set_index(pd.Index(range(len(rows), 0, -1))))


def _polars(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    frame = pl.DataFrame(arrow_table(sheet, rows))
    if sheet.seed % 3 == 0:
        frame = frame.with_columns(pl.col("who", "word").cast(pl.Categorical))
    return _table(sheet, frame)


def _mapping(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    """Plain lists by name."""
    return _table(sheet, columns_of(sheet, rows))


# Arrays: numbers alone.


def _numbers(rows: Sequence[Row]) -> list[list[float]]:
    return [[math.nan if (x := _number(v)) is None else x for v in row.inputs] for row in rows]


def _label_array(sheet: Sheet, rows: Sequence[Row]) -> np.ndarray[Any, Any]:
    """Class numbers, of which some are out of range, or numbers to predict."""
    if not sheet.classes:
        return np.array([math.nan if (x := _number(r.label)) is None else x for r in rows])
    codes = (row.label if type(row.label) is int else -1 for row in rows)
    return np.array([min(code, 2**62) for code in codes], np.int64)


def _from_arrays(sheet: Sheet, inputs: Any, targets: Any, owners: Any) -> fv.Federation:
    settings = _settings(sheet)
    if sheet.declared:
        settings |= {"task": "classification" if sheet.classes else "regression"}
        settings |= {"classes": sheet.classes} if sheet.classes else {}
    if sheet.test and sheet.door == "arrays":
        settings |= {"test": (inputs, targets)}
    return fv.Federation.from_arrays(inputs, targets, owners, public=sheet.public, **settings)


def _arrays(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    with np.errstate(invalid="ignore", over="ignore"):
        inputs = np.array(_numbers(rows)).astype(sheet.types)
    owners = np.array([row.owner for row in rows])
    return _from_arrays(sheet, inputs, _label_array(sheet, rows), owners)


def _stored(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    federation = _arrays(sheet, rows, folder, other)
    if sheet.test:  # not copies of the training examples, but these themselves
        notes = tuple(note for note in federation.notes if note != HELD_OUT_NOTE)
        federation = replace(federation, test=federation.train, notes=notes)
    return fv.Federation.open(federation.save(folder / "saved"))


def _lists(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    """Lists as a person types them: of the changed rows also texts and truths."""
    inputs: Any = [list(row.inputs) for row in rows]
    if not sheet.objects:  # an array, whose type is public, beside a list of labels
        inputs = np.array(_numbers(rows))
    targets = [row.label for row in rows]
    return _from_arrays(sheet, inputs, targets, [row.owner for row in rows])


def _datasets(
    sheet: Sheet, rows: Sequence[Row], folder: Path, other: dict[str, str]
) -> fv.Federation:
    """A data set for each owner; the changed one may hold another type."""
    given: dict[str, Any] = {}
    for owner in sorted({row.owner for row in rows}):
        own = [row for row in rows if row.owner == owner]
        kind = other.get(owner, sheet.types)
        with np.errstate(invalid="ignore", over="ignore"):
            inputs = np.array(_numbers(own)).astype(kind)
            targets = _label_array(sheet, own)
            if kind != sheet.types and sheet.seed % 2:
                targets = targets.astype(kind)
        if sheet.objects and kind not in ("object", "str"):
            given[owner] = torch.utils.data.TensorDataset(
                torch.from_numpy(inputs), torch.from_numpy(targets)
            )
        else:
            given[owner] = list(zip(inputs, targets, strict=True))
    settings = _settings(sheet)
    if sheet.declared:
        settings |= {"task": "classification" if sheet.classes else "regression"}
        settings |= {"classes": sheet.classes} if sheet.classes else {}
        settings |= {"shape": (sheet.columns,)}
    return fv.from_datasets(given, **settings)


# Pictures in folders CLIENT/CLASS/.

_MODES = ("RGB", "RGB", "L", "RGBA", "P", "1", "I;16")


def _pictures(sheet: Sheet, rows: Sequence[Row], folder: Path, other: Any) -> fv.Federation:
    """A picture for each row: a strange input makes it one of another mode or size, a missing one
    a damaged file; a strange label is a folder that no class has."""
    classes = [f"k{number}" for number in range(max(2, sheet.classes))]
    here = folder / "pictures"
    here.mkdir(exist_ok=True)
    seen: Counter[str] = Counter()
    for row in rows:
        number = seen[row.owner] = seen[row.owner] + 1
        numeric = isinstance(row.label, int | float) and math.isfinite(row.label)
        label = classes[int(row.label) % 2] if numeric and row.label in (0, 1) else "k0"
        if sheet.classes and not (numeric and 0 <= row.label < sheet.classes):
            label = "strange"
        place = here / row.owner / label
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{number:03d}.png"
        value = row.inputs[0]
        if value is None:
            file.write_bytes(b"" if sheet.seed % 2 else b"\x89PNG damaged")
            continue
        odd = not (isinstance(value, float) and abs(value) < 100)
        draw = np.random.default_rng(number if odd else int(abs(value) * 1000))
        mode = _MODES[len(repr(value)) % len(_MODES)] if odd else "RGB"
        size = (5, 3) if odd and sheet.objects else (4, 4)
        pixels = draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        picture = Image.fromarray(pixels)
        if mode == "I;16":
            picture = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
        elif mode != "RGB":
            picture = picture.convert(mode)
        picture.save(file)
    settings = _settings(sheet)
    size = () if sheet.types == "float64" else (4, 4)
    return fv.from_images(here, size=size, classes=classes if sheet.declared else (), **settings)


Door = Callable[[Sheet, Sequence[Row], Path, dict[str, str]], fv.Federation]
DOORS: dict[str, Door] = {
    "csv": _csv,
    "files": _files,
    "parquet": _parquet,
    "arrow": _arrow,
    "pandas": _pandas,
    "polars": _polars,
    "mapping": _mapping,
    "arrays": _arrays,
    "stored": _stored,
    "lists": _lists,
    "datasets": _datasets,
    "pictures": _pictures,
}
