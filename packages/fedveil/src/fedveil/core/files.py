"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from hashlib import file_digest
from pathlib import Path

from fedveil.core.errors import ConfigError


def digest_of(path: Path | str) -> str:
    """SHA-256 of a file of weights to start from, in hexadecimal digits."""
    try:
        with Path(path).open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"model.start: {path}: {error.strerror}") from None


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file whole or not at all; a failed write leaves nothing behind."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the user knows
        raise


def sync_directory(path: Path) -> None:
    """Let the names in a directory survive a power cut, not only the files' contents."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that keeps names in its own way
            raise
    finally:
        os.close(descriptor)
