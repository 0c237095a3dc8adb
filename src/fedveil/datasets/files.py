"""Where the files of a data source lie, whether they are whole, and their decoded form.

A source may lie on disk in several ways (`Copy`): a compact archive, the official files. With
`FEDVEIL_DATA` (or a directory given by the caller) only that directory is looked at; without, the
user's cache, which downloads fill. Decoded arrays are kept in the cache and memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.data.columns import Array
from fedveil.datasets.download import fetch

Arrays = dict[str, Array]


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


@dataclass(frozen=True)
class Copy:
    """One way a source may lie on disk. `decode` turns the paths (by file name) into arrays."""

    name: str
    files: tuple[File, ...]
    decode: Callable[[Mapping[str, Path]], Arrays]

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
        raise ConfigError(f"{given}: is no directory (FEDVEIL_DATA or the data directory)")
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
    folder = data_directory(data_dir)
    copy = available(source, copies, data_dir)
    if copy is None and folder is not None:
        raise ConfigError(f"{source}: {_absent(folder, copies)}; {_remedy(copies, advice)}")
    if folder is None:
        folder = cache_directory() / "files" / source
    if copy is None:
        copy = next((copy for copy in copies if copy.downloadable), None)
        if copy is None:
            raise ConfigError(f"{source}: cannot be downloaded; {_remedy(copies, advice)}")
        for file in copy.files:
            fetch(str(file.url), folder / file.name, file.size, file.digests)
    return copy, _decoded(source, copy, {file.name: folder / file.name for file in copy.files})


def verify(path: Path, file: File) -> None:
    """Refuse a file whose bytes are not the published ones."""
    size = path.stat().st_size
    kinds = {digest.partition(":")[0] for digest in file.digests}
    found = {f"{kind}:{digest_of(path, kind)}" for kind in kinds}
    if found.isdisjoint(file.digests) and file.digests:
        expected = f", expected {file.size} bytes" if file.size not in (None, size) else ""
        again = f"; get it again from {file.url}" if file.url else "; get it again"
        raise ConfigError(f"{path}: truncated or altered ({size} bytes{expected}){again}")


def digest_of(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _decoded(source: str, copy: Copy, paths: Mapping[str, Path]) -> Arrays:
    """Memory maps of the decoded arrays; files are verified and decoded when they are new."""
    home = cache_directory() / "decoded" / f"{source}-{copy.name}"
    stamp = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths.values()}
    found = _map(home, stamp)
    if found is not None:
        return found
    for file in copy.files:
        verify(paths[file.name], file)
    arrays = copy.decode(paths)
    try:
        _keep(home, stamp, arrays)
    except OSError:  # a full or read-only cache costs time, not the result
        return arrays
    return _map(home, stamp) or arrays


def _map(home: Path, stamp: Mapping[str, list[int]]) -> Arrays | None:
    try:
        manifest = json.loads((home / "manifest.json").read_text(encoding="utf-8"))
        if manifest["stamp"] != stamp:
            return None
        arrays = {}
        for name, size in manifest["arrays"].items():
            path = home / f"{name}.npy"
            if path.stat().st_size != size:
                return None
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return arrays
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or damaged: decode again


def _keep(home: Path, stamp: Mapping[str, list[int]], arrays: Arrays) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        sizes = {name: (partial / f"{name}.npy").stat().st_size for name in arrays}
        manifest = {"stamp": stamp, "arrays": sizes}
        (partial / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        shutil.rmtree(home, ignore_errors=True)  # an older copy's arrays
        os.replace(partial, home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _absent(folder: Path, copies: tuple[Copy, ...]) -> str:
    """Which files are missing, of the copy that is most nearly there."""
    missing = {
        copy.name: [file.name for file in copy.files if not (folder / file.name).is_file()]
        for copy in copies
    }
    nearest = min(copies, key=lambda copy: len(missing[copy.name]) / len(copy.files))
    if len(missing[nearest.name]) < len(nearest.files):
        return f"{folder} lacks {', '.join(missing[nearest.name])}"
    choices = [copy.files[0].name + (" ..." if len(copy.files) > 1 else "") for copy in copies]
    return f"{folder} holds none of its files ({', or '.join(choices)})"


def _remedy(copies: tuple[Copy, ...], advice: str) -> str:
    remote = next((copy for copy in copies if copy.downloadable), None)
    if remote is None:
        return advice or "put the files there"
    return (
        "put them there, or unset FEDVEIL_DATA and the data directory to download "
        f"{remote.size / 1e6:.0f} MB from {remote.files[0].url}"
    )
