"""A device's SQLite file: its owner's alone, versioned, and on disk when a transaction returns."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from sqlite3 import Connection

from fedveil.secagg.errors import RuleBroken

APPLICATION = 0x66767331  # marks the file as ours
VERSION = 2


def create(
    path: Path, schema: Sequence[str], first: Sequence[tuple[str, tuple[object, ...]]]
) -> None:
    """Make a new file with these tables and rows; never over one that is there.

    It is written beside its place and linked there whole, so a crash leaves all of it or nothing.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as opened:
                opened.execute("PRAGMA synchronous = EXTRA")
                opened.execute("BEGIN IMMEDIATE")
                opened.execute(f"PRAGMA application_id = {APPLICATION}")
                opened.execute(f"PRAGMA user_version = {VERSION}")
                for statement in schema:
                    opened.execute(statement)
                for statement, values in first:
                    opened.execute(statement, values)
                opened.execute("COMMIT")
            os.link(draft, path)
        finally:
            draft.unlink()
        sync_directory(path.parent)
    except (sqlite3.Error, OSError) as error:
        raise RuleBroken(f"journal {path}: {error}; no round without it") from None


@contextmanager
def transaction(path: Path) -> Iterator[Connection]:
    """All or nothing, one process at a time, on disk when it returns; the file must exist."""
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, timeout=10, isolation_level=None, uri=True)) as opened:
            # EXTRA also syncs the directory after the rollback journal is gone: without it a power
            # cut could bring that journal back, and with it the state before the claim.
            opened.execute("PRAGMA synchronous = EXTRA")
            opened.execute("BEGIN IMMEDIATE")
            marks = [opened.execute(f"PRAGMA {name}").fetchone()[0] for name in _MARKS]
            if marks != [APPLICATION, VERSION]:
                raise RuleBroken(f"journal {path}: of another program or version; renew the key")
            yield opened  # an exception leaves the transaction to be rolled back by close
            opened.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise RuleBroken(f"journal {path}: {error}; no round without it") from None


_MARKS = ("application_id", "user_version")


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
