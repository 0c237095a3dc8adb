"""Where the files of a data source lie, whether they are whole, and their decoded form.

A source may lie on disk in several ways (`Copy`): a compact archive, the official files. With
`FEDVEIL_DATA` (or a directory given by the caller) only that directory is looked at; without, the
user's cache, which downloads fill. Decoded arrays are kept in the cache and memory-mapped.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files as resources
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.data.sources.download import fetch, has_digest
from fedveil.data.storage import map_columns, write_columns

Arrays = dict[str, Array]
Decoder = Callable[[Mapping[str, Path]], Arrays]
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class File:
    """One file: its official public address, and what is known about its bytes.

    `digests` are `sha256:...` or `md5:...`; a file must match one of them. Empty: none is
    published, so only the structure can be checked.
    """

    name: str
    url: str | None = None
    size: int | None = None
    digests: tuple[str, ...] = ()


@cache
def _published() -> dict[str, File]:
    text = resources("fedveil.data.sources").joinpath("published.txt").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *known = (None if word == "-" else word for word in line.split())
            size, digests, url = known
            checks = tuple(digests.split(",")) if digests else ()
            found[str(name)] = File(str(name), url, int(size) if size else None, checks)
    return found


def published(*names: str) -> tuple[File, ...]:
    """Files as `published.txt` describes them: address, size and digests."""
    return tuple(_published()[name] for name in names)


@dataclass(frozen=True)
class Copy:
    """One way a source may lie on disk. `decode` turns the paths (by file name) into arrays."""

    name: str
    files: tuple[File, ...]
    decode: Decoder

    @property
    def downloadable(self) -> bool:
        return all(file.url for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size or 0 for file in self.files)


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedveil"


def data_directory(given: Path | None) -> Path | None:
    """The directory of local copies, if the caller or `FEDVEIL_DATA` names one."""
    if given is None and os.environ.get("FEDVEIL_DATA"):
        given = Path(os.environ["FEDVEIL_DATA"])
    if given is not None and not given.is_dir():
        raise ConfigError(f"{given}: not a directory; correct FEDVEIL_DATA or the data directory")
    return given


def available(source: str, copies: tuple[Copy, ...], data_dir: Path | None = None) -> Copy | None:
    """The copy that lies here already, if any."""
    folder = data_directory(data_dir) or cache_directory() / "files" / source
    for copy in copies:
        if all((folder / file.name).is_file() for file in copy.files):
            return copy
    return None


def open_source(
    source: str, copies: tuple[Copy, ...], data_dir: Path | None, advice: str = ""
) -> tuple[Copy, Arrays]:
    """The arrays of a source, from the first copy found, downloading it if need be.

    `advice` says how to come by files that cannot be downloaded.
    """
    folder = data_directory(data_dir) or cache_directory() / "files" / source
    copy = available(source, copies, data_dir)
    if copy is None:
        copy = next((copy for copy in copies if copy.downloadable), None)
        if copy is None or data_directory(data_dir) is not None:
            raise ConfigError(f"{source}: {_absent(folder, copies, advice)}")
        for file in copy.files:
            fetch(str(file.url), folder / file.name, file.size, file.digests)
    return copy, _decoded(source, copy, {file.name: folder / file.name for file in copy.files})


def _decoded(source: str, copy: Copy, paths: Mapping[str, Path]) -> Arrays:
    """Memory maps of the decoded arrays; files are verified and decoded when they are new."""
    home = cache_directory() / "decoded" / f"{source}-{copy.name}"
    stamp: dict[str, list[int] | str] = {
        str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths.values()
    }
    stamp["code"] = _code_digest(copy.decode)
    if (found := _kept(home, stamp)) is not None:
        return found
    for file in copy.files:
        if not has_digest(paths[file.name], file.digests):
            again = f" from {file.url}" if file.url else ""
            raise ConfigError(f"{paths[file.name]}: truncated or altered; get it again{again}")
    arrays = copy.decode(paths)
    shutil.rmtree(home, ignore_errors=True)  # an older copy's arrays
    try:
        write_columns(home, arrays, _MANIFEST, {"stamp": stamp})
    except OSError:  # a full or read-only cache costs time, not the result
        return arrays
    return _kept(home, stamp) or arrays


@cache
def _code_digest(decode: Decoder) -> str:
    """Return a digest of the code that decodes: other code may keep other arrays of the same file.

    It covers the decoder's module and everything in `fedveil.data`, which decoders call.
    """
    own = Path(__file__).parents[1]
    files = {path for path in own.rglob("*") if path.suffix in (".py", ".toml")}
    files.add(Path(getattr(inspect.getmodule(decode), "__file__", None) or __file__))
    digest = sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kept(home: Path, stamp: Mapping[str, object]) -> Arrays | None:
    try:
        manifest = json.loads((home / _MANIFEST).read_text(encoding="utf-8"))
        return map_columns(home, manifest["bytes"]) if manifest["stamp"] == stamp else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or damaged: decode again


def _absent(folder: Path, copies: tuple[Copy, ...], advice: str) -> str:
    """Return which files are missing, of the copy that is most nearly there, and what to do."""
    missing = [
        [file.name for file in copy.files if not (folder / file.name).is_file()] for copy in copies
    ]
    nearest = min(missing, key=len)
    remote = next((copy for copy in copies if copy.downloadable), None)
    remedy = advice or "put them there"
    if remote is not None:
        remedy = (
            "put them there, or unset FEDVEIL_DATA and the data directory to download "
            f"{remote.size / 1e6:.0f} MB from {remote.files[0].url}"
        )
    return f"{folder} lacks {', '.join(nearest)}; {remedy}"
