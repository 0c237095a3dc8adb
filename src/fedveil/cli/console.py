"""What people and scripts see: one JSON document or tables on stdout, all else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout. JSON knows no infinity: such numbers become null."""
    json.dump(_plain(document), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def complain(message: str) -> None:
    """Say what went wrong, in one line on stderr."""
    print(f"fedveil: {' '.join(message.split())}", file=sys.stderr)


@cache
def stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@cache
def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(text: str, *, heading: str = "", colour: str = "bold", to: Console | None = None) -> None:
    """Print plain text, with whatever brackets the names in it have, behind a short heading."""
    from rich.text import Text

    head = Text(f"{heading} ", style=colour) if heading else Text()
    (to or stdout()).print(head + Text(text))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is left-aligned, the others are numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(title), title_justify="left")
    for position, column in enumerate(columns):
        shown.add_column(column, justify="left" if position == 0 else "right")
    for row in rows:
        shown.add_row(*map(Text, row))
    stdout().print(shown)
