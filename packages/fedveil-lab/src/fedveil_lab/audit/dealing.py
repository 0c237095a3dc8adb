"""Does one client's table move another's rows? Hold-outs and caps are drawn client by client."""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fedveil.data.federation import Federation
from fedveil.methods.recipes.sections import DataSection
from fedveil.planning.assemble import federation_of
from fedveil_lab.audit.probes import Probe

_WHAT = "half of one client's rows taken away: other clients whose training rows change"


def dealing(data: DataSection, federation: Federation) -> tuple[Probe, ...]:
    """Load the table again without half of its largest client's rows; all others must not move.

    For CSV files with a schema and a client column: without a schema, statistics of all rows are
    in everybody's, and the guarantee says so.
    """
    file = data.file
    named = data.client_column is not None and data.schema is not None
    if file is None or not named or Path(file).suffix.lower() != ".csv":
        return ()
    with Path(file).open(newline="", encoding="utf-8") as stream:
        head, *rows = list(csv.reader(stream))
    column = head.index(str(data.client_column))
    (owner, count), *others = Counter(row[column] for row in rows).most_common()
    if count < 4 or not others:
        return ()
    places = [place for place, row in enumerate(rows) if row[column] == owner]
    gone = set(places[: count // 2])
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "table.csv"
        with changed.open("w", newline="", encoding="utf-8") as stream:
            kept = (row for place, row in enumerate(rows) if place not in gone)
            csv.writer(stream).writerows([head, *kept])
        neighbour = federation_of(replace(data, file=str(changed)))
    before, after = _rows_of(federation), _rows_of(neighbour)
    moved = sum(before.get(name) != after.get(name) for name in set(before) | set(after))
    own = int(before.get(owner) != after.get(owner))
    return (Probe(_WHAT, float(moved - own), 0.0),)


def _rows_of(federation: Federation) -> dict[str, bytes]:
    """Each client's training rows, by its name."""
    if federation.owners is None:
        return {}
    inputs, targets = federation.train.inputs, federation.train.targets
    return {
        str(name): inputs[begin:end].tobytes() + targets[begin:end].tobytes()
        for name, begin, end in zip(
            federation.owners, federation.offsets[:-1], federation.offsets[1:], strict=True
        )
    }
