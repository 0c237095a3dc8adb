"""One table for each client: a folder of files, or a pattern of file names."""

from __future__ import annotations

from pathlib import Path

from fedveil.core.errors import ConfigError

FILE = "file"  # the column that says which file a row is from, where no other names the client
_TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq")
_SHEETS = (".xls", ".xlsx", ".ods")
_WILD = frozenset("*?[")


def is_many(path: Path) -> bool:
    """Whether a path means several files: a folder, or a pattern such as `dir/*.csv`."""
    return path.is_dir() or (bool(_WILD & set(str(path))) and not path.exists())


def files_of(path: Path) -> dict[str, Path]:
    """The files that a folder or a pattern means, sorted, by the names of their clients.

    A name is the file's path behind the folder, or behind the pattern's part without wildcards, and
    without its suffix: it follows from the file alone, whatever other files there are.
    """
    base, pattern = (path, "*") if path.is_dir() else _split(path)
    found = [one for one in sorted(base.glob(pattern)) if one.is_file() and one.name[0] != "."]
    if pattern == "*":
        found = _tables(path, found)
    if not found:
        raise ConfigError(f"{path}: no file fits this pattern")
    named: dict[str, Path] = {}
    for one in found:
        name = _name(one.relative_to(base))
        if name in named:
            raise ConfigError(f"{path}: {named[name].name} and {one.name} name the same client")
        named[name] = one
    return named


def title(path: Path) -> str:
    """What to call the data in a file, a folder, or the files that fit a pattern."""
    return (_split(path)[0] if is_many(path) and not path.is_dir() else path).absolute().name


def _split(path: Path) -> tuple[Path, str]:
    """The folder that is certain, and the pattern within it."""
    parts = path.parts
    first = next(place for place, part in enumerate(parts) if _WILD & set(part))
    return Path(*parts[:first]), str(Path(*parts[first:]))


def _name(path: Path) -> str:
    suffix = next((end for end in _TABLES[::-1] if path.name.lower().endswith(end)), path.suffix)
    return path.as_posix()[: len(path.as_posix()) - len(suffix)]


def _tables(folder: Path, files: list[Path]) -> list[Path]:
    """The tables in a folder; what else is there is left alone, unless there is nothing else."""
    tables = [one for one in files if one.name.lower().endswith(_TABLES)]
    if tables:
        return tables
    if any(one.name.lower().endswith(_SHEETS) for one in files):
        raise ConfigError(
            f"{folder}: holds spreadsheets; save each of them as CSV (UTF-8), one file a client"
        )
    raise ConfigError(
        f"{folder}: holds no CSV or Parquet files. One file for each client is fine (its name is "
        "the client's), and so are pictures in folders CLIENT/CLASS/"
    )
