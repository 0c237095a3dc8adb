"""What one cell means, whatever stands around it; and the same as a typed column would say."""

from __future__ import annotations

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedveil.core.errors import ConfigError
from fedveil.data import cells, rows
from fedveil.data.encoder import numbers_of
from fedveil.data.schema import Column, Kind
from fedveil.data.table import from_table


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("12", 12.0, 12.0),
        ("-1.5e3", -1500.0, -1500.0),
        ("+.5", 0.5, 0.5),
        ("1,234", 1234.0, 1.234),  # only the file's custom can tell
        ("1,234,567.5", 1234567.5, None),
        ("1.234,5", 1234.5, 1234.5),
        ("0,125", 0.125, 0.125),
        ("1,5", 1.5, 1.5),
        ("13.56%", 13.56, 13.56),
        ("13,5 %", 13.5, 13.5),
        ("586,33 €", 586.33, 586.33),
        ("20$", 20, 20),
        ("1 234,5", 1234.5, 1234.5),
        ("12\u00a0345\u202f678", 12345678.0, 12345678.0),
        ("1'234.50", 1234.5, 1234.5),
        ("1 234,50 €", 1234.5, 1234.5),
        ("-1 234", -1234.0, -1234.0),
        ("12 34", None, None),  # no thousands
        ("030 123 456", None, None),
        ("$1,234.50", 1234.5, None),
        ("-$5", -5.0, -5.0),
        ("€ 7", 7.0, 7.0),
        ("52 kg", 52.0, 52.0),
        ("52\u00a0kg", 52.0, 52.0),
        ("€\u202f7", 7.0, 7.0),
        ("-1.5km", -1.5, -1.5),
        ("EUR 7", 7.0, 7.0),
        ("1.234,56 EUR", 1234.56, 1234.56),
        ("52 kgs", None, None),
        ("kg", None, None),
        ("5 kg %", None, None),
        ("%", None, None),
        ("5%%", None, None),
        ("$", None, None),
        ("inf", None, None),
        ("nan", None, None),
        ("0x10", None, None),
        ("1e999", math.inf, math.inf),  # clipped later, like every number too large
        ("1_000", None, None),
        ("x", None, None),
        (None, None, None),
    ],
)
def test_numbers(text, point, comma):
    values = pa.array([text], pa.string())
    assert cells.numbers(values).to_pylist() == [point]
    assert cells.numbers(values, ",").to_pylist() == [comma]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("1970-01-02", 1.0),
        ("1970-02", 31.0),
        ("1970-1-3", 2.0),
        ("1970-01-01 12", 0.5),
        ("1970-01-01T06:00", 0.25),
        ("1970-01-01 00:00:43.2", 0.0005),
        ("1970-01-02T00:00:00Z", 1.0),
        ("1970-01-02T06:00:00+06:00", 1.0),
        ("1970-01-02T06:00:00-0600", 1.5),
        ("Feb-1970", 31.0),
        ("feb 1970", 31.0),
        ("3-Jan-1970", 2.0),
        ("99 Feb 1970", None),
        ("Foo-1970", None),
        ("Feb-70", None),  # which century?
        ("1970-13-01", None),
        ("1970-01-01 24:00", None),
        ("1970", None),
        ("12", None),
        ("soon", None),
        (None, None),
    ],
)
def test_dates(text, days):
    assert cells.days(pa.array([text], pa.string())).to_pylist() == [days]


def test_truths_and_spellings():
    written = ["TRUE", "1", "1.0", "Yes", "False", "0", "no", "perhaps", "2", None]
    truths = cells.truths(pa.array(written)).to_pylist()
    assert truths == [1, 1, 1, 1, 0, 0, 0, None, None, None]
    spelt = cells.canonical(pa.array(["02", "2.0", "2", "0.50", "True", "x", "1e300", None]))
    assert spelt.to_pylist() == ["2", "2", "2", "0.5", "true", "x", "1e+300", None]


@given(
    st.lists(
        st.one_of(
            st.floats(allow_nan=False).map(repr),
            st.text("0123456789.,eE+-inaTx: %$JanFeb", max_size=12),
            st.none(),
        ),
        max_size=8,
    )
)
@settings(max_examples=80, deadline=None)
def test_every_cell_is_read_by_itself(column):
    together = pa.array(column, pa.string())
    for read in (
        cells.numbers,
        lambda text: cells.numbers(text, ","),
        cells.days,
        cells.truths,
        cells.canonical,
    ):
        alone = [read(pa.array([cell], pa.string())).to_pylist()[0] for cell in column]
        assert read(together).to_pylist() == alone


_CELLS = (b"1", b"", b" 7.0 ", b"\xc3\xa9", b"\xff", b'"a,b"', b'"x""y"', b'"one\ntwo"', b"z" * 30)


@given(st.lists(st.lists(st.sampled_from(_CELLS), min_size=1, max_size=4), min_size=1), st.data())
@settings(max_examples=100, deadline=None)
def test_where_a_block_of_a_file_begins_changes_nothing(tmp_path_factory, lines, data):
    """Quoted line ends, cells that are not UTF-8 and rows of another length included."""
    lines = [[b"1", b"1", b"1"], *lines]
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    path = tmp_path_factory.mktemp("blocks") / "t.csv"
    path.write_bytes(end.join([b"a,b,c", *(b",".join(line) for line in lines)]))
    whole = rows.read_table(path, ["b", "c"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_BYTES", data.draw(st.integers(1, 50)))
        assert rows.read_table(path, ["b", "c"]).to_pydict() == whole.to_pydict()
    expected = [
        None if len(line) != 3 or b"\xff" in line[1] else line[1].strip(b'" ').decode()
        for line in lines
        if line != [b""]
    ]
    expected = [text.replace('""', '"') or None if text else None for text in expected]
    assert whole.column("b").to_pylist() == expected


SCHEMA = {
    "columns": {
        "x": {"type": "number", "mean": 0, "std": 1e6},
        "day": {"type": "date", "min": "1900-01-01", "max": "2100-01-01"},
        "yes": {"type": "boolean"},
        "code": {"type": "category", "categories": ["1", "2", "3"]},
        "y": {"type": "number", "min": -10, "max": 10},
    }
}


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_described_csv_file_reads_like_the_typed_table_it_was_written_from(
    tmp_path_factory, seed
):
    rng = np.random.default_rng(seed)
    rows = 20
    start = datetime.date(1950, 1, 1)
    table = pa.table(
        {
            "who": rng.integers(0, 3, rows),
            "x": rng.normal(size=rows) * 10.0 ** rng.integers(-3, 6, rows),
            "day": [start + datetime.timedelta(int(day)) for day in rng.integers(0, 40_000, rows)],
            "yes": rng.random(rows) < 0.5,
            "code": rng.integers(1, 5, rows).astype(float),
            "y": rng.normal(size=rows),
        }
    )
    folder = tmp_path_factory.mktemp("both")
    parquet.write_table(table, folder / "t.parquet")
    lines = [",".join(table.column_names)]
    for row in table.to_pylist():
        lines.append(",".join(str(value) for value in row.values()))
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    read = [
        from_table(folder / name, label="y", client_column="who", schema=SCHEMA, test_fraction=0)
        for name in ("t.csv", "t.parquet")
    ]
    np.testing.assert_array_equal(read[0].train.inputs, read[1].train.inputs)
    np.testing.assert_array_equal(read[0].train.targets, read[1].train.targets)


def test_the_decimal_mark_comes_from_the_schema_or_the_separator(tmp_path):
    def inputs(text, **more):
        path = tmp_path / "t.csv"
        path.write_text(text)
        columns = {
            "x": {"type": "number", "mean": 0, "std": 1, **more},
            "y": {"type": "category", "categories": ["a", "b"]},
        }
        return (
            from_table(
                path, label="y", client_column="w", schema={"columns": columns}, test_fraction=0
            )
            .train.inputs[:, 0]
            .tolist()
        )

    semicolons = "w;x;y\n1;1,250;a\n1;2,5;b\n"
    assert inputs(semicolons) == [1.25, 2.5]
    assert inputs(semicolons, decimal=".") == [5.0, 2.5]  # 1250, clipped at five deviations
    commas = 'w,x,y\n1,"1,250",a\n1,"2,5",b\n'
    assert inputs(commas) == [5.0, 2.5]
    assert inputs(commas, decimal=",") == [1.25, 2.5]
    with pytest.raises(ConfigError, match="decimal must be"):
        inputs(commas, decimal="x")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_infinity_under_a_schema_is_clipped_like_any_other_number(tmp_path, form):
    table = pa.table({"w": [1, 1], "x": [math.inf, 0.0], "y": ["a", "b"]})
    path = tmp_path / f"t.{form}"
    if form == "csv":
        path.write_text("w,x,y\n1,1e999,a\n1,0,b\n")
    else:
        parquet.write_table(table, path)
    columns = {
        "x": {"type": "number", "min": -1, "max": 1},
        "y": {"type": "category", "categories": ["a", "b"]},
    }
    schema = {"columns": columns}
    federation = from_table(path, label="y", client_column="w", schema=schema, test_fraction=0)
    assert federation.train.inputs[:, 0].tolist() == [1.0, 0.0]
    if form == "parquet":  # without one nobody knows how far to clip
        with pytest.raises(ConfigError, match="holds infinity"):
            from_table(path, label="y", client_column="w", test_fraction=0)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_stored_times_of_any_precision_are_days(unit, zone):
    """A time with more digits than milliseconds once ended the program with a row's value."""
    ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    at = [0, 86_400 * ticks + 1, None, -(2**62), 2**62]
    values = pa.chunked_array([pa.array(at, pa.timestamp(unit, zone))])
    found = numbers_of(values, Column(Kind.DATE))
    expected = [np.nan if one is None else one / (86_400 * ticks) for one in at]
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    for kind, whole in ((pa.date32(), 18_262), (pa.date64(), 18_262 * 86_400_000)):
        days = numbers_of(pa.chunked_array([pa.array([whole, None], kind)]), Column(Kind.DATE))
        np.testing.assert_array_equal(days, [18_262, np.nan])
