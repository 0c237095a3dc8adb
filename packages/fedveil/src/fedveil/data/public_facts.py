"""Facts about a table that are public before anything of it is paid for.

They are its header, the types that its columns are stored with, the names of its clients, and,
where single rows are protected, how many rows there are. Whatever is decided before statistics are
bought follows from these facts and from what the user declares. No other cell is looked at, so no
other cell can change a decision, a message or an exit code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.core.units import Unit
from fedveil.data.arrow import pc
from fedveil.data.encoder import unreadable
from fedveil.data.folder import FILE, files_of
from fedveil.data.rows import client_names, column_names, names_of, read_table


@dataclass(frozen=True)
class PublicFacts:
    """Facts that no guarantee hides.

    columns: the names in the header, or in the stored schema.
    clients: how many names the client column holds, whatever else stands in their rows.
    """

    columns: tuple[str, ...]
    clients: int
    _count: Callable[[Unit], int] = field(repr=False)

    def units(self, unit: Unit) -> int:
        """Count the protected units: clients, rows that name a client, or persons.

        Args:
            unit: what the guarantee will be about. How many rows or persons there are is public
                only where a neighbour has one of them replaced or zeroed, not where whole clients
                are protected.
        """
        return self.clients if unit is Unit.CLIENT else self._count(unit)


def public_facts(
    path: Path, client_column: str | None, person_column: str | None = None
) -> PublicFacts:
    """Read the header, the client column and, to count persons, theirs; and nothing else.

    Args:
        path: a CSV or Parquet file, or a folder or a pattern of them.
        client_column: the column that names the clients, or `folder.FILE` where each has a file;
            None if all rows are one owner's.
        person_column: the column that names the persons.

    Returns:
        The public facts.
    """
    columns = tuple(column_names(path))
    if client_column is None or client_column == FILE:
        wanted = list(columns[:1]) if client_column is None else [FILE]
        clients = 1 if client_column is None else len(files_of(path))
        named = None
    else:
        named = _names(path, "client", client_column, client_column)
        clients = pc.count_distinct(named, mode="only_valid").as_py()
        if not clients:
            raise ConfigError(f"{path}: no row has a client (column {client_column!r})")

    @cache
    def count(unit: Unit) -> int:
        if unit is not Unit.PERSON:
            if named is not None:
                return int(len(named) - named.null_count)
            return int(read_table(path, wanted, client=client_column).num_rows)
        if person_column is None:
            raise ConfigError(f"{path}: name the column that says of whom a row is (person_column)")
        persons = _names(path, "person", person_column, client_column)
        persons = persons if named is None else persons.filter(pc.is_valid(named))
        return int(pc.count_distinct(persons, mode="only_valid").as_py())

    return PublicFacts(columns, clients, count)


def _names(path: Path, role: str, column: str, client: str | None) -> Any:
    """Read the names of clients or persons, one for each row."""
    table = read_table(path, [column], f"the {role}s", client=client)
    names = (client_names if role == "client" else names_of)(table.column(0))
    if unreadable(names):
        raise ConfigError(
            f"{path}: {role} column {column!r} holds {names.type}; {role}s' names are text "
            "or numbers"
        )
    return names
