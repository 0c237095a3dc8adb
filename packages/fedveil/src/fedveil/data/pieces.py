"""Some columns of a table, piece by piece: a file of any length is read in bounded memory.

Every cell is read by itself, as text where the file holds text. So what becomes of a row depends
on that row alone, and not on where pieces begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.folder import files_of, is_many
from fedveil.data.tablefile import (
    complaint,
    convert_options,
    first_line,
    form_of,
    header_of,
    need_column,
    tidy,
    unique_names,
)

_BYTES = 1 << 20  # of CSV in one piece, of which Arrow reads 32 ahead; no row may be longer
_ROWS = 1 << 16  # of Parquet or a frame in one piece


def pieces(source: Any, wanted: Collection[str], what: str) -> Iterator[Any]:
    """The wanted columns of a CSV or Parquet file, of several, or of a frame, as tables of some
    thousand rows each. `what` says what missing columns are needed for.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if is_many(path):
            for file in files_of(path).values():
                yield from pieces(file, wanted, what)
            return
        parquet, zipped = form_of(path)
        found = _parquet(path, wanted, what) if parquet else _csv(path, zipped, wanted, what)
        rows = 0
        for piece in found:
            rows += piece.num_rows
            yield _tidied(path, piece, typed=parquet)
        if not rows:
            raise ConfigError(f"{path}: has a header but no rows")
        return
    table = frame_of(source, by_cell=True)
    where = Path("the frame")
    table = table.rename_columns(unique_names(where, table.column_names))
    need_columns(where, table.column_names, wanted, what)
    table = table.select(list(wanted))
    for start in range(0, table.num_rows, _ROWS):
        yield _tidied(where, table.slice(start, _ROWS), typed=True)


def need_columns(path: Path, names: Collection[str], wanted: Collection[str], what: str) -> None:
    """Refuse a table that lacks some of the wanted columns, naming them and the nearest it has."""
    lacking = [name for name in wanted if name not in names]
    if len(lacking) == 1:
        need_column(path, names, lacking[0], what)
    if lacking:
        shown = ", ".join(map(repr, lacking[:8])) + (", ..." if len(lacking) > 8 else "")
        near = {name: get_close_matches(name, names, n=1, cutoff=0.8) for name in lacking}
        similar = next(
            (f"; is {found[0]!r} {name!r}?" for name, found in near.items() if found), ""
        )
        raise ConfigError(f"{path}: lacks {len(lacking)} columns ({what}): {shown}{similar}")


def _tidied(path: Path, piece: Any, *, typed: bool) -> Any:
    columns = [
        tidy(path, name, column, typed, exact=False, by_cell=True)
        for name, column in zip(piece.column_names, piece.columns, strict=True)
    ]
    return pa.table(columns, names=piece.column_names)


def _parquet(path: Path, wanted: Collection[str], what: str) -> Iterator[Any]:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            written = file.schema_arrow.names
            names = dict(zip(unique_names(path, written), written, strict=True))
            need_columns(path, names, wanted, what)
            chosen = [names[name] for name in wanted]
            for batch in file.iter_batches(_ROWS, columns=chosen):
                table = pa.Table.from_batches([batch]).select(chosen)
                yield table.rename_columns(list(wanted))
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: damaged Parquet file ({first_line(error)})") from None


def _csv(path: Path, zipped: bool, wanted: Collection[str], what: str) -> Iterator[Any]:
    written, delimiter = header_of(path, zipped)
    names = dict(zip(unique_names(path, written), written, strict=True))
    need_columns(path, names, wanted, what)
    chosen = [names[name] for name in wanted]
    try:
        with pa.OSFile(str(path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if zipped else raw
            reader = csv.open_csv(
                stream,
                # One thread knows the number of a bad row, and reads no further than it must.
                read_options=csv.ReadOptions(use_threads=False, block_size=_BYTES),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=convert_options(dict.fromkeys(chosen, pa.string()), chosen),
            )
            for batch in reader:
                yield pa.Table.from_batches([batch]).rename_columns(list(wanted))
    except KeyError:
        raise ConfigError(
            f"{path}: the column names in the first line cannot be read; simplify them"
        ) from None
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}: {complaint(str(error))}") from None
    except pa.ArrowException as error:
        raise ConfigError(f"{path}: cannot be read ({first_line(error)})") from None


def frame_of(source: Any, *, by_cell: bool = False) -> Any:
    """A frame of another library as an Arrow table.

    Lists and columns of Python objects have no type but what all their entries suggest; `by_cell`,
    each entry becomes text by itself, so that none decides how others are read.
    """
    if hasattr(source, "with_format") and isinstance(source.column_names, Mapping):
        raise ConfigError(f"name one split of the data: {', '.join(source.column_names)}")
    try:
        if isinstance(source, pa.Table):
            return source
        if hasattr(source, "with_format"):  # Hugging Face
            return source.with_format("arrow")[:]
        texts: dict[str, Any] = {}
        if by_cell and hasattr(source, "iloc") and hasattr(source, "copy"):
            untyped = [name for name in source if _untyped(source[name])]
            source = source.copy(deep=False)
            for name in untyped:  # names may be numbers
                source[name] = texts[str(name)] = _texts(source[name])
        if isinstance(source, Mapping):
            columns = {str(name): column for name, column in source.items()}
            if by_cell:
                columns = {n: _texts(c) if _untyped(c) else c for n, c in columns.items()}
            return pa.table(columns)
        if hasattr(source, "__arrow_c_stream__"):  # polars, pandas 2.2 and later
            table = pa.table(source)
            for name, column in texts.items():  # a frame forgets that an empty column is text
                table = table.set_column(table.column_names.index(name), name, column)
            return table
        if hasattr(source, "iloc"):
            return pa.Table.from_pandas(source, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"the frame cannot be read ({first_line(error)})") from None
    lazy = "; call its collect() first" if hasattr(source, "collect") else ""
    raise ConfigError(
        "a table is needed (a file, a pandas or polars frame, a Dataset, a mapping of columns), "
        f"not {type(source).__name__}{lazy}"
    )


def _untyped(column: Any) -> bool:
    """Of Python's objects: a list, or an array of NumPy's kind for them."""
    return str(getattr(column, "dtype", "object")) == "object" and not hasattr(column, "type")


def _texts(column: Iterable[Any]) -> Any:
    return pa.array([_text(entry) for entry in column], pa.string())


def _text(entry: Any) -> str | None:
    """An entry as a CSV file would hold it; None if it is missing, as None and NaN are."""
    if isinstance(entry, str):  # also a member of an Enum; half of a pair of surrogates is no text
        return str.__str__(entry).encode(errors="replace").decode()
    if isinstance(entry, list | tuple | np.ndarray):
        return cells.BETWEEN.join(_text(one) or "" for one in entry)
    if isinstance(entry, set | frozenset):
        return cells.BETWEEN.join(sorted(_text(one) or "" for one in entry))
    try:
        if entry is None or entry != entry:
            return None
    except Exception:  # pandas.NA is neither the same nor another
        return None
    if isinstance(entry, bytes | bytearray):
        return entry.decode(errors="replace")
    if isinstance(entry, bool | np.bool_):
        return str(bool(entry)).lower()
    try:
        return str(entry.isoformat() if hasattr(entry, "isoformat") else entry)
    except Exception:  # whatever an object of somebody's own may raise; a very long number does
        return None
