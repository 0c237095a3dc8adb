"""Facts about a table that are public before anything of it is paid for.

They are its header, the types that its columns are stored with, the names of its clients, and,
where single rows are protected, how many rows there are. Whatever is decided before statistics are
bought follows from these facts and from what the user declares. No other cell is looked at, so no
other cell can change a decision, a message or an exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedveil.core.errors import ConfigError
from fedveil.core.units import Unit
from fedveil.data.arrow import pc
from fedveil.data.encoder import unreadable
from fedveil.data.folder import FILE, files_of
from fedveil.data.rows import client_names, column_names, read_table


@dataclass(frozen=True)
class PublicFacts:
    """Facts that no guarantee hides.

    columns: the names in the header, or in the stored schema.
    clients: how many names the client column holds, whatever else stands in their rows.
    """

    columns: tuple[str, ...]
    clients: int
    _rows: Callable[[], int] = field(repr=False)

    def rows(self, unit: Unit) -> int:
        """Count the rows that name a client.

        Args:
            unit: what the guarantee will be about. How many rows there are is public only where a
                neighbour has one row replaced, not where whole clients are protected.

        Raises:
            ValueError: if whole clients are protected.
        """
        if unit is not Unit.RECORD:
            raise ValueError("how many rows there are is private where clients are protected")
        return self._rows()


def public_facts(path: Path, client_column: str | None) -> PublicFacts:
    """Read the header and the client column of a table, and nothing else.

    Args:
        path: a CSV or Parquet file, or a folder or a pattern of them.
        client_column: the column that names the clients, or `folder.FILE` where each has a file;
            None if all rows are one owner's.

    Returns:
        The public facts.
    """
    columns = tuple(column_names(path))
    if client_column == FILE:
        rows = partial(read_table, path, [FILE], client=FILE)
        return PublicFacts(columns, len(files_of(path)), lambda: int(rows().num_rows))
    if client_column is None:
        rows = partial(read_table, path, columns[:1])
        return PublicFacts(columns, 1, lambda: int(rows().num_rows))
    table = read_table(path, [client_column], "the clients", client=client_column)
    names = client_names(table.column(0))
    if unreadable(names):
        raise ConfigError(
            f"{path}: client column {client_column!r} holds {names.type}; clients' names are text "
            "or numbers"
        )
    clients = pc.count_distinct(names, mode="only_valid").as_py()
    if not clients:
        raise ConfigError(f"{path}: no row has a client (column {client_column!r})")
    return PublicFacts(columns, clients, lambda: len(names) - names.null_count)
