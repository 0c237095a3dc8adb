"""Before anything is paid, nothing but the header and the client column of a table is looked at.

Two tables with the same header and the same names of clients (of the same number of rows, where
rows are protected) are the same to everything that is decided, said and paid before the purchase.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.settings import TUNED

from fedveil.cli import main
from fedveil.core.errors import FedveilError
from fedveil.planning import recipe as recipes
from fedveil.tune.defaults import choose

CLIENTS = 400
Rows = list[tuple[str, list[Any]]]  # whose, and its cells: x, z, y


class Paid(Exception):
    """Raised in place of the purchase, with what would have been bought."""


def usual(clients: int = CLIENTS) -> Rows:
    draw, rows = np.random.default_rng(0), []
    for number in range(4 * clients):
        x = draw.normal()
        cells = [f"{x:.3f}", f"z{number % 3}", ("no", "yes")[int(x + draw.normal() > 0)]]
        rows.append((f"c{number % clients:03d}", cells))
    return rows


def changed(place: int, value: str) -> Callable[[Rows], Rows]:
    """The first row with another cell."""

    def change(rows: Rows) -> Rows:
        first, *rest = rows
        cells = [value if at == place else cell for at, cell in enumerate(first[1])]
        return [(first[0], cells), *rest]

    return change


def own(rows: Rows) -> tuple[Rows, Rows]:
    """The first client's rows, and all others."""
    name = rows[0][0]
    mine = [row for row in rows if row[0] == name]
    return mine, [row for row in rows if row[0] != name]


def unlabelled(rows: Rows) -> Rows:
    mine, others = own(rows)
    return [(who, [x, z, ""]) for who, (x, z, _) in mine] + others


def strange(rows: Rows) -> Rows:
    mine, others = own(rows)
    return [(who, ["?", "\x00", f"v{place}"]) for place, (who, _) in enumerate(mine)] + others


def many_labels(rows: Rows) -> Rows:
    mine, others = own(rows)
    return [(mine[0][0], ["1", "z", f"label {i}"]) for i in range(2000)] + others


def one_row(rows: Rows) -> Rows:
    mine, others = own(rows)
    return [mine[0], *others]


def numbers_for_labels(rows: Rows) -> Rows:
    return [(who, [z, x, f"{place}.5"]) for place, (who, (x, z, _)) in enumerate(rows)]


def nothing_at_all(rows: Rows) -> Rows:
    return [(who, ["", "", ""]) for who, _ in rows]


RECORD: list[Callable[[Rows], Rows]] = [
    changed(0, "inf"),
    changed(0, "1e999"),
    changed(1, "x" * 100_000),
    changed(1, "0000-00-00"),
    changed(1, "caf\xe9"),  # not UTF-8, as the file is written
    changed(2, "maybe"),
    changed(2, ""),
    changed(2, "3.5"),
    unlabelled,
    strange,
    numbers_for_labels,
    nothing_at_all,
]
CLIENT = [*RECORD, many_labels, one_row]


def as_csv(folder: Path, rows: Rows) -> Path:
    path = folder / "rows.csv"
    lines = ["who,x,z,y", *(",".join((who, *cells)) for who, cells in rows)]
    path.write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    return path


def as_parquet(folder: Path, rows: Rows) -> Path:
    """With x as a number, as it is stored: infinity then is one."""

    def number(text: str) -> float | None:
        try:
            return float(text)
        except ValueError:
            return None

    path = folder / "rows.parquet"
    columns = {
        "who": pa.array([who for who, _ in rows], pa.string()),
        "x": pa.array([number(cells[0]) for _, cells in rows], pa.float64()),
        "z": pa.array([cells[1] for _, cells in rows], pa.string()),
        "y": pa.array([cells[2] for _, cells in rows], pa.string()),
    }
    parquet.write_table(pa.table(columns), path)
    return path


def as_folder(folder: Path, rows: Rows) -> Path:
    path = folder / "files"
    path.mkdir()
    for name in sorted({who for who, _ in rows}):
        mine = [",".join(cells) for who, cells in rows if who == name]
        (path / f"{name}.csv").write_text("\n".join(["x,z,y", *mine]) + "\n")
    return path


FORMS = {"csv": as_csv, "parquet": as_parquet, "folder": as_folder}


def before_the_purchase(path: Path, *assignments: str, form: str = "csv") -> Any:
    """What is told to whoever pays; or what was refused or chosen instead."""
    given = {"data.file": str(path), "data.label": "y"}
    given |= {} if form == "folder" else {"data.client_column": "who"}
    recipe = recipes.parse({}, assignments, given)
    keys = {assignment.partition("=")[0] for assignment in assignments}

    def pay(bought: Any, *, delta: float) -> None:
        raise Paid(bought, delta)

    try:
        choice = choose(recipe, keys | set(given), pay)
    except Paid as paid:
        return paid.args
    except FedveilError as error:
        return str(error)
    return choice.notes


def folder_of(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


CASES = [("csv", change) for change in CLIENT] + [("parquet", change) for change in CLIENT[::4]]
CASES += [("folder", changed(0, "inf")), ("folder", one_row), ("folder", many_labels)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "change"), CASES)
def test_what_is_paid_does_not_depend_on_the_rows_of_a_client(
    tmp_path: Path, form: str, change: Callable[[Rows], Rows]
) -> None:
    found = []
    for name, rows in (("one", usual()), ("two", change(usual()))):
        path = FORMS[form](folder_of(tmp_path, name), rows)
        found.append(before_the_purchase(path, form=form))
    assert found[0] == found[1]
    assert isinstance(found[0], tuple)
    assert str(found[0][0].unit) == "client"


@pytest.mark.parametrize("change", RECORD, ids=lambda change: change.__qualname__)
@pytest.mark.parametrize("clients", [1, 3])
def test_what_is_paid_does_not_depend_on_what_a_record_holds(
    tmp_path: Path, clients: int, change: Callable[[Rows], Rows]
) -> None:
    """Where single rows are protected their number is public, and nothing else of them."""
    rows = [(f"c{place % clients}", cells) for place, (_, cells) in enumerate(usual())]
    found = []
    for name, own_rows in (("one", rows), ("two", change(rows))):
        path = as_csv(folder_of(tmp_path, name), own_rows)
        found.append(before_the_purchase(path))
    assert found[0] == found[1]
    assert isinstance(found[0], tuple)
    assert str(found[0][0].unit) == "record"


@pytest.mark.parametrize("enough", [True, False])
def test_whether_statistics_can_be_bought_is_decided_by_public_facts(
    tmp_path: Path, enough: bool
) -> None:
    """A client without a label counts: a run without it would be of another kind."""
    rows = usual(CLIENTS if enough else 40)
    least = CLIENTS if enough else 40
    for name, own_rows in (("all", rows), ("blank", unlabelled(rows))):
        path = as_csv(folder_of(tmp_path, name), own_rows)
        found = before_the_purchase(path, *TUNED[3::2])
        if enough:
            assert isinstance(found, tuple)
            assert found[1] == pytest.approx(min(1e-5, least**-1.1))
        else:
            assert any(f"{least} clients are too few to buy" in note for note in found)


def run_of(path: Path, output: Path, *more: str) -> Sequence[str]:
    command = ["run", "--data", str(path), "--client-column", "who", "--label", "y", *TUNED]
    return [*command, "--set", "data.statistics=bought", "--output", str(output), *more]


@pytest.mark.parametrize("change", [changed(0, "inf"), many_labels, one_row])
def test_a_run_says_nothing_that_it_has_not_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Rows], Rows]
) -> None:
    """From the command line: the same words for both tables, certified, but for noisy figures."""
    said = []
    for name, rows in (("one", usual()), ("two", change(usual()))):
        folder = folder_of(tmp_path, name)
        path = as_csv(folder, rows)
        code = main([*run_of(path, folder / "run", "--classes", "no,yes"), "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        result = json.loads(out)
        assert result["guarantee"]["certified"], result["guarantee"]["reason"]
        # Which columns drown in the noise differs from purchase to purchase.
        notes = [note for note in result["notes"] if not note.startswith("Columns left out")]
        words = [*notes, *result["guarantee"]["rests_on"]]
        said.append([re.sub(r"\d+", "#", word) for word in words])  # how many inputs is noisy
        for text in (out, err, (folder / "run" / "report.html").read_text()):
            assert "different values" not in text
            assert "infinity" not in text
    assert said[0] == said[1]
