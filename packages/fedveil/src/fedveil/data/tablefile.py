"""Reading a table that nobody here has seen, or saying in one line why not.

It is a CSV or Parquet file, several of them, or an Arrow table from a frame of another library.
"""

from __future__ import annotations

import csv as lines
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from fedveil.core.errors import ConfigError
from fedveil.data import cells
from fedveil.data.folder import FILE, files_of, is_many

_ABSENT = ("", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "-nan", "NULL", "null", "None")
MISSING = (*_ABSENT, "k.A.", "k. A.")  # the last: keine Angabe
DECIMAL = b"decimal"  # key of metadata: the mark a table's form suggests, or a column was read by
_DELIMITERS = ",;\t|"
WHOLE = r"^(0|-?[1-9]\d{0,17})$"  # a whole number in its one spelling
_POINT_ZERO = r"^(0|-?[1-9]\d{0,17})\.0+$"  # the same as a spreadsheet may write it
_ANY_NUMBER = "|".join((cells.NUMBER, cells.THOUSANDS, cells.COMMA, cells.POINTS))
_AS_UTF8 = "save the file as UTF-8, or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW"


def read_table(
    source: Path | pa.Table,
    exact: str | None = None,
    *,
    by_cell: Collection[str] = (),
    only: Collection[str] | None = None,
) -> Any:
    """The table as a `pyarrow.Table`: text trimmed, missing values null, column names unique.

    The `exact` column of a CSV file is read as text and becomes numbers only if no two texts become
    one number: people must not melt together because their names look like numbers. (Only 7.0 is
    7: the same name, as a spreadsheet writes it.) The columns
    `by_cell` stay text, to be read cell by cell; all others get the type that all their cells
    suggest. Columns besides `only` are left as they come.
    """
    path, texts = path_of(source), {name for name in (exact, *by_cell) if name is not None}
    if not isinstance(source, Path):
        typed, table = True, source
    elif is_many(source):
        typed, table = _joined(source, texts, by_cell, named=exact == FILE)
    else:
        typed, zipped = form_of(path)
        table = _parquet(path) if typed else _csv(path, zipped, texts, by_cell)
    names = unique_names(path, table.column_names)
    if not table.num_rows:
        raise ConfigError(f"{path}: has a header but no rows")
    columns, fields = [], []
    for name, column in zip(names, table.columns, strict=True):
        mark = None
        if only is None or name in only:
            written = column
            column = tidy(path, name, written, typed, name == exact, name in by_cell)
            if pa.types.is_string(written.type) and not pa.types.is_string(column.type):
                mark = {DECIMAL: b","} if _comma_is_decimal(written) else None
        columns.append(column)
        fields.append(pa.field(name, column.type, metadata=mark))
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def read_column(path: Path, name: str) -> Any:
    """Read one column of a file, or of several, without looking at any other cell.

    Args:
        path: a CSV or Parquet file, or a folder or a pattern of them.
        name: the column, which must be in the header.

    Returns:
        The column as `read_table(path, exact=name)` has it.
    """
    files = list(_written_files(path).values()) if is_many(path) else [path]
    parts, typed = [], False
    for file in files:
        typed, zipped = form_of(file)
        written = _written_names(file, typed, zipped)
        need_column(file, written, name, "the clients")
        alone = [written[name]]
        parts.append(_parquet(file, alone) if typed else _csv(file, zipped, {name}, only=alone))
    try:
        column = pa.concat_tables([part.rename_columns([name]) for part in parts]).column(name)
    except pa.ArrowException:
        raise ConfigError(f"{path}: column {name!r} is stored with different types") from None
    return tidy(path, name, column, typed, exact=True, by_cell=False)


def count_rows(path: Path) -> int:
    """Count the rows of a file, or of several, without reading what is in them."""
    rows = 0
    for file in _written_files(path).values() if is_many(path) else [path]:
        typed, zipped = form_of(file)
        first, written = next(iter(_written_names(file, typed, zipped).items()))
        # Cell by cell no value can stop it.
        found = _parquet(file, []) if typed else _csv(file, zipped, {first}, {first}, [written])
        rows += found.num_rows
    return rows


def _written_names(path: Path, typed: bool, zipped: bool) -> dict[str, str]:
    """The names of columns, and how the file itself writes them."""
    if not typed:
        found = header_of(path, zipped)[0]
    else:
        from pyarrow import parquet

        try:
            found = parquet.read_schema(path).names
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"{path}: damaged Parquet file ({first_line(error)})") from None
    return dict(zip(unique_names(path, found), found, strict=True))


def path_of(source: Path | pa.Table) -> Path:
    """What error messages call a table."""
    return source if isinstance(source, Path) else Path("the frame")


def form_of(path: Path) -> tuple[bool, bool]:
    """Whether a file is Parquet, and whether it is zipped; refuses what is no file."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory; name a CSV or Parquet file")
    if not path.is_file():
        near = get_close_matches(path.name, _neighbours(path), n=1)
        raise ConfigError(
            f"{path}: no such file" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise ConfigError(f"{path}: is empty")
    if start[:1] in (b"{", b"["):
        raise ConfigError(f"{path}: seems to be JSON; save the table as CSV or Parquet")
    if start in (b"PK\3\4", b"\xd0\xcf\x11\xe0"):
        raise ConfigError(
            f"{path}: an Excel or zip file; open it, save the sheet as CSV (UTF-8), and name that"
        )
    return start == b"PAR1", start[:2] == b"\x1f\x8b"


def column_names(source: Path | pa.Table) -> list[str]:
    """The names in a file's first line, or in its schema; of several files, the first one's."""
    path = path_of(source)
    if not isinstance(source, Path):
        return unique_names(path, source.column_names)
    if is_many(source):
        return column_names(next(iter(_written_files(source).values())))
    return list(_written_names(path, *form_of(path)))


def unique_names(path: Path, written: Iterable[str]) -> list[str]:
    """The columns' names without blanks around them; no two may be the same."""
    names = [name.strip() for name in written]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{path}: column {twice[0]!r} occurs more than once; rename one")
    return names


def need_column(path: Path, names: Iterable[str], wanted: str, what: str) -> None:
    """Refuse a column that is not there, naming the nearest that is."""
    names = list(names)
    if wanted in names:
        return
    folded = {name.casefold(): name for name in names}
    near = [folded[wanted.casefold()]] if wanted.casefold() in folded else []
    near = near or get_close_matches(wanted, names, n=1, cutoff=0.5)
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"its first line names {shown}"
    raise ConfigError(f"{path}: no column {wanted!r} ({what}); {hint}")


def _neighbours(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []


def _written_files(path: Path) -> dict[str, Path]:
    """The files with anything in them: one without a single byte is a client without rows."""
    files = files_of(path)
    return {name: file for name, file in files.items() if file.stat().st_size} or files


def _joined(
    path: Path, texts: Collection[str], by_cell: Collection[str], named: bool
) -> tuple[bool, Any]:
    """Whether several files are Parquet, and the rows of all of them as if they were one file;
    `named`: each row with the name of its own."""
    files, tables, forms = _written_files(path), [], set()
    for name, file in files.items():
        typed, zipped = form_of(file)
        if typed:
            table = _parquet(file)
        else:
            found = column_names(file)
            # With a schema no cell stops it, not even one of a column that the schema leaves out.
            alone = by_cell and [name for name in found if name not in texts or name in by_cell]
            table = _csv(file, zipped, found, alone)
        if not table.num_rows and named:  # a client without rows is still a client
            table = pa.table(
                [pa.nulls(1, column.type) for column in table.columns], schema=table.schema
            )
        said, names = table.schema.metadata, unique_names(file, table.column_names)
        table = table.rename_columns(names).replace_schema_metadata(said)
        if named and FILE in table.column_names:
            raise ConfigError(
                f"{file}: has a column {FILE!r}, as the file's own name is called; rename it, or "
                "say which column names the client"
            )
        if named:
            table = table.append_column(FILE, pa.array([name] * table.num_rows, pa.string()))
        forms.add(typed)
        tables.append(table)
    if len(forms) > 1:
        raise ConfigError(f"{path}: holds CSV and Parquet files; name one kind, as '*.csv'")
    for file, table in zip(files.values(), tables, strict=True):
        _need_alike(file, table, next(iter(files.values())), tables[0])
    if named:  # nor is a client without a header somebody else
        nothing = [pa.nulls(1, column.type) for column in tables[0].columns[:-1]]
        tables += [
            pa.table([*nothing, pa.array([name], pa.string())], schema=tables[0].schema)
            for name in files_of(path)
            if name not in files
        ]
    whole = pa.concat_tables([table.select(tables[0].column_names) for table in tables])
    if forms == {True}:
        return True, whole
    columns = {
        name: column if name in texts else _reparsed(column)
        for name, column in zip(whole.column_names, whole.columns, strict=True)
    }
    return False, pa.table(columns).replace_schema_metadata(tables[0].schema.metadata)


def _need_alike(file: Path, table: Any, first: Path, like: Any) -> None:
    """Refuse a file with other columns, types or separators than the first one: what becomes of
    one client's rows must not depend on what another's file is like."""
    if wrong := sorted(set(like.column_names) ^ set(table.column_names)):
        lacks, has = (file, first) if wrong[0] in like.column_names else (first, file)
        raise ConfigError(f"{lacks}: has no column {wrong[0]!r}, and {has.name} has one")
    for name in like.column_names:
        own, usual = table.schema.field(name).type, like.schema.field(name).type
        if own != usual:
            raise ConfigError(
                f"{file}: column {name!r} is {own}, and in {first.name} {usual}; write them with "
                "one type"
            )
    marks = [(each.schema.metadata or {}).get(DECIMAL) for each in (table, like)]
    if marks[0] != marks[1]:
        raise ConfigError(f"{file}: its fields are separated otherwise than in {first.name}")


def _parquet(path: Path, columns: list[str] | None = None) -> Any:
    from pyarrow import parquet

    try:
        return parquet.read_table(path, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: damaged Parquet file ({first_line(error)})") from None


def _csv(
    path: Path,
    zipped: bool,
    texts: Collection[str],
    by_cell: Collection[str] = (),
    only: list[str] | None = None,
) -> Any:
    """The columns of a CSV file, or `only` some by their written names.

    `texts` stay text. Of those `by_cell`, a cell that is not UTF-8 is missing; of others it is an
    error. With `by_cell` or `only`, a row with too few or too many cells keeps its place, and of
    its cells the client's name alone: the one text that is not read cell by cell.
    """
    found, delimiter = header_of(path, zipped)
    kinds = {name: pa.binary() if name.strip() in by_cell else pa.string() for name in found}
    types = {name: kind for name, kind in kinds.items() if name.strip() in texts}
    unclear = ConfigError(
        f"{path}: the column names in the first line cannot be read; simplify them"
    )
    try:
        # Where columns are guessed from all rows nothing is certified, and a mistake may be shown.
        lenient = bool(by_cell) or only is not None
        table = _typed(path, zipped, lenient, found, delimiter, types, only)
    except KeyError:
        raise unclear from None
    for place, field in enumerate(table.schema):
        if field.name.strip() in texts and field.type != types.get(field.name):
            raise unclear
        if field.name.strip() in by_cell:
            table = table.set_column(place, field.name, _texts(table.column(place)))
    # Semicolons separate fields where commas are decimal: known from the first line alone.
    return table.replace_schema_metadata({DECIMAL: "," if delimiter == ";" else "."})


def _typed(path: Path, zipped: bool, lenient: bool, *given: Any) -> Any:
    """Parse a file; a `lenient` reader lets no row stop it."""
    try:
        with pa.OSFile(str(path)) as raw:
            data = (pa.CompressedInputStream(raw, "gzip") if zipped else raw).read()
    except OSError as error:
        raise ConfigError(f"{path}: damaged gzip file ({first_line(error)})") from None
    if lenient and _stray_quotes(data, given[1]):
        raise ConfigError(
            f"{path}: a cell holds a quote that is not escaped, so where its row ends depends on "
            'other rows. Write it as "" inside a quoted cell, or save the table as Parquet.'
        )
    text = _is_text(data)  # Arrow says loudly that it cannot show us a row that is none
    try:
        if text or not lenient:
            return _parse(data, *given, misfit=_stop if text else None)
    except pa.ArrowInvalid:
        pass
    try:
        if lenient:
            return _parse_ragged(data, *given)
        return _parse(data, *given, misfit=_stop if text else None, threads=False)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{path}: {complaint(str(error))}") from None


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


def _is_text(data: bytes) -> bool:
    """Whether these bytes are UTF-8."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _stop(row: Any) -> str:
    return "error"


def _parse(
    data: bytes,
    header: list[str],
    delimiter: str,
    types: Mapping[str, Any],
    only: list[str] | None,
    *,
    misfit: Callable[[Any], str] | None,
    threads: bool = True,
) -> Any:
    """Parse CSV; rows with more or fewer cells than the header go to `misfit`, if there is one.

    A row of our own is the last one, with a cell too many. If it does not come out, somebody's cell
    opens a quote that nobody closes, and would swallow the rows of everybody behind it.
    """
    last, seen = secrets.token_hex(8) + delimiter * len(header), False

    def judged(row: Any) -> str:
        nonlocal seen
        if row.text == last:
            seen = True
            return "skip"
        return misfit(row) if misfit is not None else _stop(row)

    table = csv.read_csv(
        pa.BufferReader(data if misfit is None else data + f"\n{last}\n".encode()),
        # One block: a type that is guessed is decided by all rows. One thread knows their numbers.
        read_options=csv.ReadOptions(use_threads=threads, block_size=2**31 - 1),
        parse_options=csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            invalid_row_handler=None if misfit is None else judged,
        ),
        convert_options=convert_options(types, only),
    )
    if misfit is not None and not seen:
        raise pa.ArrowInvalid("a quote is opened and never closed")
    return table


def _parse_ragged(
    given: bytes,
    header: list[str],
    delimiter: str,
    types: Mapping[str, Any],
    only: list[str] | None,
) -> Any:
    """Parse a file in which some rows have too few or too many cells.

    To stop there, or to leave such a row out, would tell everybody that it exists and would move
    other rows. It keeps its place and its client, and all its other cells are missing; without a
    label the example is unusable. Every other row is read as it would be without it.
    """
    text = given.decode(errors="surrogateescape")
    # Arrow hands over rows as text: bytes that are not UTF-8 become a letter that is nowhere else.
    broken = next(chr(code) for code in range(0x10FFFD, 0, -1) if chr(code) not in text)
    data = re.sub("[\udc80-\udcff]", broken, text).encode()
    rows: dict[int, list[str]] = {}

    def keep(row: Any) -> str:
        try:
            cells_there = next(lines.reader([row.text], delimiter=delimiter), [])
        except lines.Error:  # a cell of enormous length
            cells_there = []
        rows[row.number - 2] = cells_there  # 1 is the header
        return "skip"

    table = _parse(data, header, delimiter, types, only, misfit=keep, threads=False)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        own: list[str | None] = [None] * len(rows)
        if name in types:
            wrong = pc.match_substring(column.cast(pa.string()), broken)
            column = pc.if_else(wrong, None, column)
        if types.get(name) == pa.string():
            place = header.index(name)
            if pc.any(wrong).as_py():
                raise pa.ArrowInvalid(f"In CSV column #{place}: invalid UTF8 data")
            names = (there[place] if place < len(there) else broken for there in rows.values())
            own = [None if broken in name else name for name in names]
        columns.append(pa.chunked_array([*column.chunks, pa.array(own, column.type)]))
    places = np.delete(np.arange(table.num_rows + len(rows)), list(rows))
    order = np.argsort(np.concatenate([places, np.fromiter(rows, np.int64)]))
    return pa.table(columns, names=table.column_names).take(order)


def convert_options(types: Mapping[str, Any] | None = None, only: list[str] | None = None) -> Any:
    return csv.ConvertOptions(
        column_types=types,
        include_columns=only,
        null_values=list(MISSING),
        strings_can_be_null=True,
        timestamp_parsers=[csv.ISO8601, "%Y-%m"],
    )


def header_of(path: Path, zipped: bool) -> tuple[list[str], str]:
    """The names in the first line of a CSV file, as they are written, and what separates them."""
    try:
        with pa.OSFile(str(path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if zipped else raw
            line = re.split(rb"[\r\n]", stream.read(1 << 16))[0]
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: damaged gzip file ({first_line(error)})") from None
    if b"\0" in line:
        raise ConfigError(f"{path}: neither text nor Parquet; save it as UTF-8 CSV")
    try:
        header = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: the first line is not UTF-8; {_AS_UTF8}") from None
    delimiter = max(_DELIMITERS, key=header.count)
    return next(lines.reader([header], delimiter=delimiter), []), delimiter


def complaint(message: str) -> str:
    """What the parser said, without the row's contents: they may be private."""
    row = re.search(r"Row #(\d+)", message)
    where = f"line {row[1]}" if row else "a line"
    ragged = re.search(r"Expected (\d+) columns, got (\d+)", message)
    if ragged:
        return f"{where} has {ragged[2]} fields, the header has {ragged[1]}"
    column = re.search(r"In CSV column #(\d+)", message)
    if column and "UTF8" in message:
        return f"column {int(column[1]) + 1} is not UTF-8; {_AS_UTF8}"
    if column:
        return f"column {int(column[1]) + 1} mixes kinds of values"
    return "cannot be read as CSV: " + message.splitlines()[0].split(":")[-1].strip()


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:100]


def tidy(path: Path, name: str, column: Any, typed: bool, exact: bool, by_cell: bool) -> Any:
    """Decode, trim, and make every kind of missing value null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = _decoded(column)
        kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        _refuse_bytes(path, name, column, by_cell)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.string())
        kind = column.type
    if by_cell and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        column = _as_cells(column)
        kind = column.type
    if pa.types.is_string(kind):
        text = pc.utf8_trim_whitespace(_texts(column) if by_cell else column)
        text = pc.if_else(pc.is_in(text, pa.array(MISSING)), None, text)
        if exact:
            text = pc.replace_substring_regex(text, _POINT_ZERO, r"\1")
            return text.cast(pa.int64()) if _all_match(text, WHOLE) else text
        return text if by_cell else _reread(text, column, typed)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
        kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
        infinite = pc.fill_null(pc.is_inf(column), False)
        if not by_cell and pc.any(infinite).as_py():
            row = pc.index(infinite, True).as_py()
            raise ConfigError(
                f"{path}: column {name!r} holds infinity in row {row + 1}; replace it or leave it "
                "blank"
            )
        return pc.if_else(pc.is_nan(column), None, column)
    return column


def _texts(column: Any) -> Any:
    """Bytes as text; a cell that is not UTF-8 is missing, whatever the cells around it hold."""
    try:
        return column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([list(map(_utf8, column.cast(pa.binary())))], pa.string())


def _utf8(cell: Any) -> str | None:
    try:
        return None if not cell.is_valid else bytes(cell.as_py()).decode()
    except UnicodeDecodeError:
        return None


def _decoded(column: Any) -> Any:
    """Codes into a list of values, as frames keep categories, as the values themselves."""
    kind = column.type.value_type
    if not pa.types.is_string_view(kind):
        return column.cast(kind)
    parts = [part.dictionary.cast(pa.string()).take(part.indices) for part in column.chunks]
    return pa.chunked_array(parts, pa.string())


def _as_cells(column: Any) -> Any:
    """Lists of text or numbers as one text each; other lists as they are."""
    entries = column.type.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(holds(entries) for holds in (*texts, pa.types.is_integer)):
        return column
    return pc.binary_join(column.cast(pa.list_(pa.string())), cells.BETWEEN)


def _all_match(text: Any, pattern: str) -> bool:
    matches = pc.match_substring_regex(text, pattern)
    return text.null_count < len(text) and bool(pc.all(matches).as_py())


def _comma_is_decimal(text: Any) -> bool:
    """Whether these numbers can only be meant with a decimal comma."""
    text = cells.undressed(pc.utf8_trim_whitespace(text))
    commas = "|".join((cells.COMMA, cells.POINTS))
    return _all_match(text, commas) and not _all_match(text, cells.THOUSANDS)


def _reread(text: Any, column: Any, typed: bool) -> Any:
    """A column whose blanks, commas or signs may have hidden its type, parsed again without them;
    if it is `typed`, text without signs is meant as text."""
    if _all_match(text, cells.DATED) and (days := cells.days(text)).null_count == text.null_count:
        ticks = pc.round(pc.multiply(days, 86_400_000.0))
        return ticks.cast(pa.int64()).cast(pa.timestamp("ms"))
    bare = cells.undressed(text)
    if not bare.equals(text) and _all_match(bare, _ANY_NUMBER):
        text = bare
    elif typed:
        return text
    if _all_match(text, cells.THOUSANDS):
        text = pc.replace_substring(text, ",", "")
    elif _comma_is_decimal(text):
        text = pc.replace_substring(pc.replace_substring(text, ".", ""), ",", ".")
    elif text.equals(column):
        return column
    return _reparsed(text)


def _reparsed(text: Any) -> Any:
    """Text as the column of a CSV file whose type all its cells decide."""
    written = pa.BufferOutputStream()
    csv.write_csv(pa.table([text], names=["x"]), written)
    again = csv.read_csv(
        pa.BufferReader(written.getvalue()),
        read_options=csv.ReadOptions(block_size=2**31 - 1),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=convert_options(),
    )
    return again.column(0)


def _refuse_bytes(path: Path, name: str, column: Any, by_cell: bool) -> None:
    """Refuse raw bytes by their type alone, or say which row of a guessed column made it bytes."""
    for row, value in enumerate(() if by_cell else column):
        if _utf8(value) is None and value.is_valid:
            raise ConfigError(f"{path}: column {name!r}, row {row + 1} is not UTF-8; {_AS_UTF8}")
    raise ConfigError(f"{path}: column {name!r} holds raw bytes; leave it out")
