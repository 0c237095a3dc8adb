"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file whole or not at all; a failed write leaves nothing behind."""
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
    except BaseException:
        partial.unlink(missing_ok=True)
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
