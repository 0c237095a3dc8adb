"""Read the rows of a table: a CSV or Parquet file, a folder of them, or a frame.

Every cell is read by itself, as text where the source holds text, and no row can stop the reader:
what becomes of a row depends on that row alone, whatever stands in others and wherever a piece of
the file begins. A file of any length is read in bounded memory.
"""

from __future__ import annotations

import csv as lines
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.arrow import csv, pa, pc
from fedveil.data.folder import FILE, files_of, is_many

_ABSENT = ("", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "-nan", "NULL", "null", "None")
_MISSING = (*_ABSENT, "k.A.", "k. A.")  # the last: keine Angabe
_DELIMITERS = ",;\t|"
WHOLE = r"^(0|-?[1-9]\d{0,17})$"  # a whole number in its one spelling
_POINT_ZERO = r"^(0|-?[1-9]\d{0,17})\.0+$"  # the same as a spreadsheet may write it
_AS_UTF8 = "save the file as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW"
_HEADER = 1 << 20  # bytes that a header may have
_BYTES = 1 << 22  # of CSV in one piece, unless a row is longer
_ROWS = 1 << 16  # of Parquet or a frame in one piece


@dataclass(frozen=True)
class _File:
    """The format of a file, read from its first bytes and its header.

    Attributes:
        path: Where it is.
        names: The columns' names, without blanks around them.
        written: The names as the file has them.
        delimiter: What separates the cells of a CSV file; empty for Parquet.
        zipped: Whether it is compressed with gzip.
        start: Where the first line of a CSV file ends, in bytes.
        types: The stored types of a Parquet file's columns.
        sheet: The rows of a spreadsheet, every cell as text.
    """

    path: Path
    names: list[str]
    written: list[str]
    delimiter: str = ""
    zipped: bool = False
    start: int = 0
    types: tuple[Any, ...] = ()
    sheet: Any = None


def read_table(
    source: Path | pa.Table,
    wanted: Collection[str] | None = None,
    what: str = "needed",
    *,
    client: str | None = None,
    strict: bool = False,
) -> Any:
    """Read a whole table; see `pieces`."""
    return pa.concat_tables(pieces(source, wanted, what, client=client, strict=strict))


def pieces(
    source: Any,
    wanted: Collection[str] | None = None,
    what: str = "needed",
    *,
    client: str | None = None,
    strict: bool = False,
) -> Iterator[Any]:
    """Read a table piece by piece.

    A row of a CSV file with too few or too many cells keeps its place, and of its cells the
    client's name alone. A cell of text that is not UTF-8 is missing.

    Args:
        source: A file, a folder or pattern of files, or a frame.
        wanted: The columns to read, in their order; None: all.
        what: What missing columns are needed for, for the error message.
        client: The column that names the clients; `FILE`: the name of each row's file.
        strict: Refuse rows with too few or too many cells, and text that is not UTF-8. For tables
            that nobody promises to protect.

    Yields:
        Tables of some thousand rows: text trimmed, all kinds of missing values null.

    Raises:
        ConfigError: If the source is damaged, empty, or lacks a wanted column.
    """
    rows, where = 0, path_of(source)
    if not isinstance(source, str | Path):
        found = _frame_pieces(where, frame_of(source, by_cell=True), wanted, what)
    elif is_many(where) or client == FILE:
        found = _folder_pieces(where, wanted, what, client, strict)
    else:
        found = _file_pieces(_opened(where), wanted, what, client, strict)
    for piece in found:
        rows += piece.num_rows
        yield pa.table([_tidied(column) for column in piece.columns], names=piece.column_names)
    if not rows:
        raise ConfigError(f"{where}: has a header but no rows")


def column_names(source: Path | pa.Table) -> list[str]:
    """Return the names in a file's first line, or in its schema; of several files, the first's."""
    if not isinstance(source, Path):
        return _unique_names(path_of(source), source.column_names)
    return _first_file(source).names


def decimal_mark(source: Path | pa.Table) -> str:
    """Return the decimal mark of numbers in text, known from the first line alone.

    Semicolons separate cells where commas are decimal.
    """
    return "," if isinstance(source, Path) and _first_file(source).delimiter == ";" else "."


def stores_types(source: Path | pa.Table) -> bool:
    """Return whether the columns of a source have types, so that text is meant as text."""
    return not isinstance(source, Path) or bool(_first_file(source).types)


def blank_row(path: Path) -> Any:
    """Return a row without values, with the columns and stored types of a file."""
    file = _first_file(path)
    blank = _no_values(file, file.names)
    return pa.table([_tidied(column) for column in blank.columns], names=file.names)


def path_of(source: Any) -> Path:
    """Return what error messages call a table."""
    return Path(source) if isinstance(source, str | Path) else Path("the frame")


def client_names(column: Any) -> Any:
    """Return the clients' names: numbers if all of them are whole, else text.

    No two texts become one number, so that people do not melt together because their names look
    like numbers. Only 7.0 is 7: the same name, as a spreadsheet writes it.
    """
    text = names_of(column)
    if not pa.types.is_string(text.type):
        return text
    whole = pc.all(pc.match_substring_regex(text, WHOLE)).as_py()
    return text.cast(pa.int64()) if whole else text


def names_of(column: Any) -> Any:
    """Return names in one spelling: a column with a gap may be written as 7.0, and another as 7."""
    if not pa.types.is_string(column.type):
        return column
    return pc.replace_substring_regex(column, _POINT_ZERO, r"\1")


def need_columns(path: Path, names: Collection[str], wanted: Collection[str], what: str) -> None:
    """Refuse a table that lacks some of the wanted columns, naming them and the nearest it has."""
    lacking = [name for name in wanted if name not in names]
    if not lacking:
        return
    folded = {name.casefold(): name for name in names}
    near = get_close_matches(lacking[0].casefold(), folded, n=1, cutoff=0.5)
    near = near or [name for name in folded if lacking[0].casefold() in name]
    shown = ", ".join(list(names)[:8]) + (", ..." if len(names) > 8 else "")
    hint = f"did you mean {folded[near[0]]!r}?" if near else f"its first line names {shown}"
    named = ", ".join(map(repr, lacking[:8])) + (", ..." if len(lacking) > 8 else "")
    raise ConfigError(f"{path}: no column {named} ({what}); {hint}")


def _unique_names(path: Path, written: Iterable[str]) -> list[str]:
    names = [name.strip() for name in written]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: column {twice[0]!r} occurs more than once; rename one")
    return names


def _first_file(path: Path) -> _File:
    return _opened(next(iter(_written_files(path).values())) if is_many(path) else path)


def _written_files(path: Path) -> dict[str, Path]:
    """The files with anything in them: one without a single byte is a client without rows."""
    files = files_of(path)
    return {name: file for name, file in files.items() if file.stat().st_size} or files


def _opened(path: Path) -> _File:
    """Read the first bytes and the header of a file; refuse what is no table."""
    if not path.is_file():
        there = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, there, n=1)
        raise ConfigError(
            f"{path}: no such file" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise ConfigError(f"{path}: is empty")
    if start[:1] in (b"{", b"["):
        raise ConfigError(f"{path}: seems to be JSON; save the table as CSV or Parquet")
    if start == b"PK\3\4" and path.suffix.lower() == ".xlsx":
        return _sheet(path)
    if start in (b"PK\3\4", b"\xd0\xcf\x11\xe0"):
        raise ConfigError(
            f"{path}: an old Excel or a zip file; open it, save the sheet as CSV (UTF-8) or .xlsx, "
            "and name that"
        )
    if start == b"PAR1":
        from pyarrow import parquet

        try:
            schema = parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, "Parquet", error) from None
        names = _unique_names(path, schema.names)
        return _File(path, names, schema.names, types=tuple(schema.types))
    return _csv_file(path, zipped=start[:2] == b"\x1f\x8b")


def _sheet(path: Path) -> _File:
    """Read the first sheet of a workbook, every cell by itself as text."""
    try:
        library = import_module("openpyxl")
    except ImportError:
        raise ConfigError(f"{path}: needs the extra: pip install 'fedveil[excel]'") from None
    try:
        book = library.load_workbook(path, read_only=True, data_only=True)
        rows = list(book.worksheets[0].values)
    except Exception as error:  # whatever a damaged workbook provokes
        raise _damaged(path, "Excel", error) from None
    written = [_text(cell) or "" for cell in rows[0]] if rows else []
    cells_of = zip(*rows[1:], strict=True) if rows[1:] else ([] for _ in written)
    sheet = dict(zip(_unique_names(path, written), map(_texts, cells_of), strict=True))
    return _File(path, list(sheet), written, sheet=pa.table(sheet))


def _damaged(path: Path, form: str, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: damaged {form} file ({str(error).splitlines()[0][:100]})")


def _csv_file(path: Path, zipped: bool) -> _File:
    """Read the first line of a CSV file."""
    line = re.split(rb"[\r\n]", next(_read(path, zipped, _HEADER), b""))[0]
    if b"\0" in line:
        raise ConfigError(f"{path}: neither text nor Parquet; save it as UTF-8 CSV")
    try:
        header = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the first line is not UTF-8; {_AS_UTF8}") from None
    delimiter = max(_DELIMITERS, key=header.count)
    written = next(lines.reader([header], delimiter=delimiter), [])
    if not written or _stray_quotes(line, delimiter):
        raise ConfigError(
            f"{path}: the column names in the first line cannot be read; simplify them"
        )
    return _File(path, _unique_names(path, written), written, delimiter, zipped, len(line))


def _read(path: Path, zipped: bool, size: int) -> Iterator[bytes]:
    """Read the bytes of a file, so many at once."""
    try:
        with pa.OSFile(str(path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if zipped else raw
            while chunk := stream.read(size):
                yield chunk
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "gzip" if zipped else "CSV", error) from None


def _frame_pieces(
    where: Path, table: Any, wanted: Collection[str] | None, what: str
) -> Iterator[Any]:
    table = table.rename_columns(_unique_names(where, table.column_names))
    if wanted is not None:
        need_columns(where, table.column_names, wanted, what)
        table = table.select(list(wanted))
    for start in range(0, table.num_rows, _ROWS):
        yield table.slice(start, _ROWS)


def _file_pieces(
    file: _File, wanted: Collection[str] | None, what: str, client: str | None, strict: bool
) -> Iterator[Any]:
    wanted = file.names if wanted is None else list(wanted)
    need_columns(file.path, file.names, wanted, what)
    if file.sheet is not None:
        yield file.sheet.select(wanted)
    elif file.types:
        yield from _parquet_pieces(file, wanted)
    else:
        row = 0
        for block in _blocks(file):
            piece = _parsed(file, block, wanted, client, row if strict else None)
            row += piece.num_rows
            yield piece


def _folder_pieces(
    path: Path, wanted: Collection[str] | None, what: str, client: str | None, strict: bool
) -> Iterator[Any]:
    """Yield the rows of several files as if they were one, each with the name of its file if that
    is the client's. A client without rows is still a client, and has one without any values."""
    named, files = client == FILE, _written_files(path)
    first = _first_file(path)
    wanted = first.names if wanted is None else [name for name in wanted if name != FILE]
    for name, one in files.items():
        file, rows = _opened(one), 0
        _need_alike(file, first)
        if named and FILE in file.names:
            raise ConfigError(
                f"{one}: has a column {FILE!r}, as the file's own name is called; rename it, or "
                "name another column that says whose row it is"
            )
        for piece in _file_pieces(file, wanted or first.names[:1], what, client, strict):
            rows += piece.num_rows
            yield _with_name(piece, name) if named else piece
        if named and not rows and is_many(path):
            yield _with_name(_no_values(first, wanted), name)
    for name in files_of(path) if named else ():
        if name not in files:
            yield _with_name(_no_values(first, wanted), name)


def _with_name(piece: Any, name: str) -> Any:
    return piece.append_column(FILE, pa.array([name] * piece.num_rows, pa.string()))


def _no_values(file: _File, wanted: Collection[str]) -> Any:
    """One row of a file like this, in which every value is missing."""
    types = dict(zip(file.names, file.types or [pa.string()] * len(file.names), strict=True))
    return pa.table({name: pa.nulls(1, types[name]) for name in wanted or file.names[:1]})


def _need_alike(file: _File, first: _File) -> None:
    """Refuse a file with other columns, types or separators than the first one: what becomes of
    one client's rows must not depend on what another's file is like."""
    if bool(file.types) != bool(first.types):
        raise ConfigError(f"{file.path}: is stored otherwise than {first.path}; use one form")
    if wrong := sorted(set(first.names) ^ set(file.names)):
        lacks, has = (file, first) if wrong[0] in first.names else (first, file)
        raise ConfigError(f"{lacks.path}: has no column {wrong[0]!r}, and {has.path.name} has one")
    usual = dict(zip(first.names, first.types, strict=False))
    for name, own in zip(file.names, file.types, strict=False):
        if own != usual[name]:
            raise ConfigError(
                f"{file.path}: column {name!r} is {own}, and in {first.path.name} {usual[name]}; "
                "write them with one type"
            )
    if (file.delimiter == ";") != (first.delimiter == ";"):
        raise ConfigError(f"{file.path}: its fields are separated otherwise than in {first.path}")


def _parquet_pieces(file: _File, wanted: list[str]) -> Iterator[Any]:
    from pyarrow import parquet

    written = dict(zip(file.names, file.written, strict=True))
    chosen = [written[name] for name in wanted]
    try:
        with parquet.ParquetFile(file.path) as stored:
            for batch in stored.iter_batches(_ROWS, columns=chosen):
                yield pa.Table.from_batches([batch]).select(chosen).rename_columns(wanted)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file.path, "Parquet", error) from None


def _blocks(file: _File) -> Iterator[bytes]:
    """Yield what stands behind the first line of a CSV file, in blocks of whole rows."""
    held, skipped = b"", False
    for chunk in _read(file.path, file.zipped, _BYTES):
        held += chunk
        if not skipped and len(held) < file.start:
            continue
        held, skipped = held if skipped else held[file.start :], True
        end = _end_of_rows(held)
        if end:
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _end_of_rows(data: bytes) -> int:
    """Return where the last whole row ends: behind a newline outside quotes."""
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    if b'"' in data:
        ends = ends[np.cumsum(codes == ord('"'))[ends] % 2 == 0]
    return int(ends[-1]) + 1 if len(ends) else 0


def _stray_quotes(data: bytes, delimiter: str) -> bool:
    """Whether quotes stand elsewhere than around whole cells, or doubled inside them (RFC 4180).

    Beside such a quote, one that somebody else's cell opens would close there, and swallow every
    row in between. A file like that counts as damaged.
    """
    if b'"' not in data:
        return False
    ends = re.escape(delimiter.encode()) + rb"\r\n"
    quoted = rb"(?<![^" + ends + rb'])"[^"]*(?:""[^"]*)*"(?=[' + ends + rb"]|\Z)"
    return b'"' in re.sub(quoted, b"", data.removeprefix(b"\xef\xbb\xbf"))


def _parsed(
    file: _File, block: bytes, wanted: list[str], client: str | None, strict_from: int | None
) -> Any:
    """Parse some rows of a CSV file.

    To stop at a row with too few or too many cells, or to leave it out, would tell everybody that
    it exists and would move other rows. It keeps its place and its client, and all its other cells
    are missing; without a label the example is unusable.

    Args:
        file: The file.
        block: Whole rows.
        wanted: The columns to return.
        client: The column that names the clients, of which no name may be lost.
        strict_from: How many rows stand before the block, if wrong ones are to be refused.
    """
    if _stray_quotes(block, file.delimiter):
        raise ConfigError(
            f"{file.path}: a cell holds a quote that is not escaped, so where its row ends depends "
            'on other rows. Write it as "" inside a quoted cell, or save the table as Parquet.'
        )
    block, broken = _as_utf8(block)
    ragged: dict[int, tuple[int, list[str]]] = {}

    def keep(row: Any) -> str:
        try:
            found = next(lines.reader([row.text], delimiter=file.delimiter), [])
        except lines.Error:  # a cell of enormous length
            found = []
        ragged[row.number - 1] = (row.actual_columns, found)
        return "skip"

    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            # One thread knows the numbers of rows.
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=file.names
            ),
            parse_options=csv.ParseOptions(
                delimiter=file.delimiter, newlines_in_values=True, invalid_row_handler=keep
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(file.names, pa.string()), include_columns=wanted
            ),
        )
    except pa.ArrowException:  # its words may hold private cells
        raise ConfigError(f"{file.path}: cannot be read as CSV; save it again") from None
    if ragged and strict_from is not None:
        row, (fields, _) = next(iter(ragged.items()))
        raise ConfigError(
            f"{file.path}: line {strict_from + row + 2} has {fields} fields, the header has "
            f"{len(file.names)}"
        )
    if broken is None and not ragged:
        return table
    columns = []
    for name, column in zip(wanted, table.columns, strict=True):
        if broken is not None:
            wrong = pc.match_substring(column, broken)
            if pc.any(wrong).as_py() and (name == client or strict_from is not None):
                row = pc.index(wrong, True).as_py() + (strict_from or 0) + 1
                raise ConfigError(
                    f"{file.path}: column {name!r}, row {row} is not UTF-8; {_AS_UTF8}"
                )
            column = pc.if_else(wrong, None, column)
        own: list[str | None] = [None] * len(ragged)
        if name == client:
            place = file.names.index(name)
            own = [found[place] if place < len(found) else None for _, found in ragged.values()]
            own = [None if text and broken and broken in text else text for text in own]
        columns.append(pa.chunked_array([*column.chunks, pa.array(own, pa.string())]))
    places = np.delete(np.arange(table.num_rows + len(ragged)), list(ragged))
    order = np.argsort(np.concatenate([places, np.fromiter(ragged, np.int64)]))
    return pa.table(columns, names=wanted).take(order)


def _as_utf8(block: bytes) -> tuple[bytes, str | None]:
    """Return text with a letter that is nowhere else for bytes that are not UTF-8, and that letter;
    None if there are none."""
    try:
        block.decode()
    except UnicodeDecodeError:
        text = block.decode(errors="surrogateescape")
        broken = next(chr(code) for code in range(0x10FFFD, 0, -1) if chr(code) not in text)
        return re.sub("[\udc80-\udcff]", broken, text).encode(), broken
    return block, None


def _tidied(column: Any) -> Any:
    """Decode, trim, and make every kind of missing value null."""
    kind = column.type
    if pa.types.is_dictionary(kind):  # codes into a list of values, as frames keep categories
        kind = kind.value_type
        if pa.types.is_string_view(kind):
            parts = [part.dictionary.cast(pa.string()).take(part.indices) for part in column.chunks]
            column, kind = pa.chunked_array(parts, pa.string()), pa.string()
        else:
            column = column.cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        text = pc.utf8_trim_whitespace(_utf8_cells(column.cast(pa.string())))
        return pc.if_else(pc.is_in(text, pa.array(_MISSING)), None, text)
    if pa.types.is_decimal(kind) or pa.types.is_floating(kind):
        column = column.cast(pa.float64())
        return pc.if_else(pc.is_nan(column), None, column)
    return column


def _utf8_cells(column: Any) -> Any:
    """Text in which a cell that is not UTF-8 is missing, whatever the cells around it hold."""
    try:
        return column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([list(map(_utf8, column.cast(pa.binary())))], pa.string())


def _utf8(cell: Any) -> str | None:
    try:
        return None if not cell.is_valid else bytes(cell.as_py()).decode()
    except UnicodeDecodeError:
        return None


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
        raise ConfigError(
            f"the frame cannot be read ({str(error).splitlines()[0][:100]})"
        ) from None
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
