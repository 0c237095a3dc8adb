"""A row that nobody can use stops nothing, and moves no other row: stopping would tell of it."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import fedveil as fv
from fedveil.core.errors import ConfigError
from fedveil.core.units import Unit
from fedveil.data.public_facts import public_facts

SCHEMA = {
    "columns": {
        "x": {"type": "number", "min": -3, "max": 3, "missing": True},
        "y": {"type": "category", "categories": ["no", "yes"]},
    }
}
ROWS = [b"a,1,no", b"b,2,yes", b"a,0.5,yes", b"c,-1,no", b"b,3,no", b"c,2,yes"]
RAGGED = [b"b", b"b,2", b"b,2,yes,", b"b,2,yes,secret", b'b,"2\n3",yes,4', b"b,\xff", b"b,2,\xff,"]


def _written(tmp_path: Path, rows: list[bytes], zipped: bool) -> Path:
    path = tmp_path / "rows.csv"
    text = b"\n".join([b"who,x,y", *rows]) + b"\n"
    path.write_bytes(gzip.compress(text) if zipped else text)
    return path


def _parts(federation: fv.Federation) -> list[tuple[bytes, ...]]:
    train = federation.train
    usable = np.ones(len(train), np.bool_) if train.usable is None else train.usable
    ends = zip(federation.offsets, federation.offsets[1:], strict=False)
    return [
        (train.inputs[i:j].tobytes(), train.targets[i:j].tobytes(), usable[i:j].tobytes())
        for i, j in ends
    ]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("ragged", RAGGED)
def test_a_line_of_another_length_is_an_unusable_row_of_its_client(
    tmp_path: Path, ragged: bytes, zipped: bool
) -> None:
    """Beside a cell of another client that is not UTF-8, which is missing in both worlds."""
    others = [*ROWS[:3], b"c,\xff,no", *ROWS[4:]]
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who", "test_fraction": 0.0}
    usual = fv.from_table(_written(tmp_path, others, zipped), **settings)
    facts = public_facts(tmp_path / "rows.csv", "who")
    odd = fv.from_table(_written(tmp_path, [others[0], ragged, *others[2:]], zipped), **settings)
    again = public_facts(tmp_path / "rows.csv", "who")
    assert (usual.notes, usual.unprotected) == (odd.notes, odd.unprotected)
    assert facts.clients == again.clients == 3
    assert facts.units(Unit.RECORD) == again.units(Unit.RECORD) == 6
    first, second = _parts(usual), _parts(odd)
    assert (first[0], first[2]) == (second[0], second[2])
    assert np.array_equal(odd.train.usable, [True, True, False, True, True, True])


@pytest.mark.parametrize("odd", [b'b,"2,yes', b'b,2,"yes', b'"b,2,yes', b'b,2,yes,"'])
def test_a_quote_that_nobody_closes_swallows_no_row(tmp_path: Path, odd: bytes) -> None:
    """Where its cell ends nobody knows: the file is damaged, and no other client may vanish."""
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who", "test_fraction": 0.0}
    path = _written(tmp_path, [ROWS[0], odd, *ROWS[2:]], False)
    with pytest.raises(ConfigError, match="quote"):
        fv.from_table(path, **settings)
    with pytest.raises(ConfigError, match="quote"):
        public_facts(path, "who")
    # Inches close what somebody else's cell may open: such a file is damaged for everybody.
    with pytest.raises(ConfigError, match="quote"):
        fv.from_table(_written(tmp_path, [ROWS[0], b'b,2",yes', *ROWS[2:]], False), **settings)
    escaped = [ROWS[0], b'b,"2""",yes', b'a,"0.5\n","yes"', *ROWS[3:]]
    assert fv.from_table(_written(tmp_path, escaped, False), **settings).sizes.tolist() == [2, 2, 2]


@pytest.mark.parametrize("client", ["a", "b", "c"])
@pytest.mark.parametrize("left", [b"", b"x,y\n", b"x,y\n1", b"\xef\xbb\xbfx,y\r\n1,no,\r\n"])
def test_a_client_whose_file_says_nothing_is_still_a_client(
    tmp_path: Path, client: str, left: bytes
) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_bytes(b"x,y\n1,no\n2,yes\n")
    settings = {"label": "y", "schema": SCHEMA, "test_fraction": 0.0}
    usual, facts = fv.from_table(tmp_path, **settings), public_facts(tmp_path, "file")
    (tmp_path / f"{client}.csv").write_bytes(left)
    odd, again = fv.from_table(tmp_path, **settings), public_facts(tmp_path, "file")
    assert (facts.columns, facts.clients) == (again.columns, again.clients)
    assert usual.owners.tolist() == odd.owners.tolist() == ["a", "b", "c"]
    assert (usual.notes, usual.unprotected) == (odd.notes, odd.unprotected)
    for name, one, two in zip("abc", _parts(usual), _parts(odd), strict=True):
        assert (one == two) is (name != client)


def test_without_a_schema_the_line_is_named(tmp_path: Path) -> None:
    """Nothing is certified there, and a mistake in the file should be seen."""
    with pytest.raises(ConfigError, match="line 3"):
        fv.from_table(_written(tmp_path, [ROWS[0], b"b,2"], False), label="y", client_column="who")
