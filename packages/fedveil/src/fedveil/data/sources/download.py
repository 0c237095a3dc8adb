"""Downloading one file: verified, and visible under its name only when whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from fedveil.core.errors import ConfigError, FedveilError

_TIMEOUT = 30.0  # seconds without a byte


class DownloadError(FedveilError):
    """The network or the server failed."""


def fetch(url: str, path: Path, size: int | None = None, digests: tuple[str, ...] = ()) -> Path:
    """Download a file unless it is there.

    Args:
        url: Its address.
        path: Where it appears once it is whole.
        size: Its length in bytes, if that is known.
        digests: As `has_digest` takes them.

    Raises:
        ConfigError: It is not the published file, and was not kept.
        DownloadError: The server or the connection failed.
    """
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"downloading {path.name}", file=sys.stderr)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as out:
        partial = Path(out.name)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "fedveil"})
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT) as answer,
            partial.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)
            length = size or int(answer.headers.get("Content-Length") or 0)
        if partial.stat().st_size < length:
            raise OSError(f"the connection ended after {partial.stat().st_size} of {length} bytes")
        if size not in (None, partial.stat().st_size) or not has_digest(partial, digests):
            raise ConfigError(f"{url}: not the published file; refused, nothing was kept")
        os.replace(partial, path)
    except (OSError, http.client.HTTPException) as error:  # also what the server answers
        raise DownloadError(
            f"{url}: {error}; run again, or get the file by other means and set FEDVEIL_DATA to "
            "its directory"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return path


def has_digest(path: Path, digests: tuple[str, ...]) -> bool:
    """Whether the file has one of these digests (`sha256:...`); true if none is known."""
    for digest in digests:
        kind, _, expected = digest.partition(":")
        with path.open("rb") as file:
            if hashlib.file_digest(file, kind).hexdigest() == expected:
                return True
    return not digests
