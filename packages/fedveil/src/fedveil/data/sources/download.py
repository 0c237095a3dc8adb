"""Downloading one file: resumable, verified, and visible under its name only when whole."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedveil.core.errors import ConfigError, FedveilError

ATTEMPTS = 4  # connections that may break before we give up; each goes on where the last stopped
_TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18

Tick = Callable[[int, int | None], None]  # bytes so far, bytes in all


class DownloadError(FedveilError):
    """The network or the server failed; what has arrived is kept for the next try."""


def fetch(url: str, path: Path, size: int | None = None, digests: tuple[str, ...] = ()) -> Path:
    """Download `url` to `path` unless it is there; refuse and delete a wrong size or digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    while not path.is_file():
        with partial.open("ab") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # another process may be at it: wait for it
            if not _is_still(partial, out):  # it has finished or given up: look again
                continue
            with _progress(path.name) as tick:
                _receive(url, out, size, tick)
            complaint = _complaint(partial, size, digests)
            if complaint:
                partial.unlink()
                raise ConfigError(f"{url}: {complaint}; refused, nothing was kept")
            os.replace(partial, path)
    return path


def _is_still(path: Path, file: BinaryIO) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _receive(url: str, out: BinaryIO, size: int | None, tick: Tick) -> None:
    """Append to `out` what it lacks of `url`."""
    trouble = ""
    for _ in range(ATTEMPTS):
        start = out.seek(0, os.SEEK_END)
        if size is not None and start > size:  # not a beginning of this file
            out.truncate(0)
            start = 0
        if start and start == size:
            return
        headers = {"User-Agent": "fedveil", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
                if start and answer.status != 206:  # the server starts over
                    out.truncate(0)
                    start = 0
                total = size or _total(answer.headers.get("Content-Length"), start)
                done = _copy(answer, out, start, total, tick)
            if total is None or done >= total:
                return
            trouble = f"the connection ended after {done} of {total} bytes"
        except urllib.error.HTTPError as error:
            if error.code == 416:  # asked beyond the end: what we have is no part of this file
                out.truncate(0)
                trouble = "the server has a shorter file"
                continue
            raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            trouble = str(getattr(error, "reason", "") or error or type(error).__name__)
    raise DownloadError(
        f"{url}: {trouble}; run again to go on, or get the file by other means and set "
        "FEDVEIL_DATA to its directory"
    )


def _copy(source: BinaryIO, out: BinaryIO, done: int, total: int | None, tick: Tick) -> int:
    while block := source.read(_BLOCK):
        out.write(block)
        done += len(block)
        tick(done, total)
    out.flush()
    return done


def _total(length: str | None, start: int) -> int | None:
    return start + int(length) if length and length.isdigit() else None


def _complaint(path: Path, size: int | None, digests: tuple[str, ...]) -> str:
    found = path.stat().st_size
    if size is not None and found != size:
        return f"{found} bytes instead of {size}"
    return "" if has_digest(path, digests) else "its digest is not the published one"


def has_digest(path: Path, digests: tuple[str, ...]) -> bool:
    """Whether the file has one of these digests (`sha256:...`); true if none is known."""
    for digest in digests:
        kind, _, expected = digest.partition(":")
        with path.open("rb") as file:
            if hashlib.file_digest(file, kind).hexdigest() == expected:
                return True
    return not digests


@contextmanager
def _progress(name: str) -> Iterator[Tick]:
    """A bar on a terminal, one line elsewhere; always on stderr."""
    if not sys.stderr.isatty():
        print(f"downloading {name}", file=sys.stderr)
        yield lambda done, total: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"downloading {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
