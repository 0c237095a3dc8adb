"""One table for each client: a folder of files, or a pattern of file names."""

from __future__ import annotations

from pathlib import Path

from fedveil.core.errors import ConfigError

FILE = "file"  # the column that says which file a row is from, where no other names the client
_TABLES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet", ".pq", ".xlsx")
_WILD = frozenset("*?[")


def is_many(path: Path) -> bool:
    """Whether a path means several files: a folder, or a pattern such as `dir/*.csv`."""
    return path.is_dir() or (bool(_WILD & set(str(path))) and not path.exists())


def files_of(path: Path) -> dict[str, Path]:
    """The files that a folder or a pattern means, sorted, by the names of their clients.

    A name is the file's path behind the folder, or behind the pattern's part without wildcards, and
    without its suffix: it follows from the file alone, whatever other files there are. A path may
    also mean a single file, which is everything that its only owner has.
    """
    if not is_many(path):
        return {_name(Path(path.name)): path}
    base, pattern = (path, "*") if path.is_dir() else _split(path)
    found = [one for one in sorted(base.glob(pattern)) if one.is_file() and one.name[0] != "."]
    if pattern == "*":  # what else is in a folder is left alone
        found = [one for one in found if one.name.lower().endswith(_TABLES)]
    if not found:
        raise ConfigError(
            f"{path}: holds no CSV, Parquet or Excel (.xlsx) files. One file for each client is "
            "fine (its name is the client's), and so are pictures in folders CLIENT/CLASS/"
        )
    named: dict[str, Path] = {}
    for one in found:
        name = _name(one.relative_to(base))
        if name in named:
            raise ConfigError(f"{path}: {named[name].name} and {one.name} name the same client")
        named[name] = one
    return named


def shared_file(path: Path, other: Path) -> Path | None:
    """Return a file or folder that two paths or patterns both mean, under whatever names."""
    known = {_identity(one) for one in _meant(other)}
    return next((one for one in _meant(path) if _identity(one) in known), None)


def refuse_trained(test: Path, train: Path) -> None:
    """Refuse to test on files that are trained on.

    Args:
        test: A file, or a folder or pattern of files.
        train: The same, of the rows to train on.

    Raises:
        ConfigError: If they share a file.
    """
    shared = shared_file(test, train)
    if shared is not None:
        raise ConfigError(
            f"{shared}: is trained on, and figures on its rows would have no noise. Name other "
            "files to test on."
        )


def _meant(path: Path) -> list[Path]:
    """Return all that a path means and that is there: itself, and the files in a folder."""
    if path.is_dir():
        return [path, *path.iterdir()]
    if is_many(path):
        base, pattern = _split(path)
        return list(base.glob(pattern))
    return [path] if path.exists() else []


def _identity(file: Path) -> tuple[int, int]:
    """Return a key that is equal for two names of one file."""
    stat = file.stat()
    return stat.st_dev, stat.st_ino


def title(path: Path) -> str:
    """Return a name for the data in a file, a folder, or the files that fit a pattern."""
    return (_split(path)[0] if is_many(path) and not path.is_dir() else path).absolute().name


def _split(path: Path) -> tuple[Path, str]:
    """The folder that is certain, and the pattern within it."""
    parts = path.parts
    first = next(place for place, part in enumerate(parts) if _WILD & set(part))
    return Path(*parts[:first]), str(Path(*parts[first:]))


def _name(path: Path) -> str:
    suffix = next((end for end in _TABLES[::-1] if path.name.lower().endswith(end)), path.suffix)
    return path.as_posix()[: len(path.as_posix()) - len(suffix)]
