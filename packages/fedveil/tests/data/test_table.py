"""Tables nobody here has seen: what becomes of every kind of column, and what is refused."""

from __future__ import annotations

import datetime
import gzip
import json
import re
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedveil.core.errors import ConfigError
from fedveil.core.units import Trust, Unit
from fedveil.data.dp_schema import Offer
from fedveil.data.federation import Federation, Task
from fedveil.data.rows import pieces
from fedveil.data.table import FROM_DATA_NOTE, from_table, schema_draft

PEOPLE = """\
id,state,age,income,member,since,job,comment,country,grade
1,CA,30,1000.5,true,2020-01-01,nurse,aa1,US,good
2,CA,40,,false,2020-01-11,driver,bb2,US,bad
3,NY,50,3000.5,true,2020-01-21,nurse,cc3,US,good
4,NY,60,2000.5,true,2020-01-31,?,dd4,US,bad
5,CA,20,4000.5,false,2020-02-10,driver,ee5,US,good
6,CA,10,5000.5,false,2020-02-20,clerk,ff6,US,bad
"""


@pytest.fixture
def people(tmp_path):
    # The comments must look like free text: more than twenty different ones.
    rows = PEOPLE.splitlines()
    more = [
        row.replace(",US", f"{i},US").replace(row[:1], str(100 + i), 1)
        for i, row in enumerate(rows[1:] * 4)
    ]
    path = tmp_path / "people.csv"
    path.write_text("\n".join(rows + more) + "\n")
    return path


def column(federation: Federation, name: str):
    everything = np.concatenate([federation.train.inputs, federation.test.inputs])
    return everything[:, federation.features.index(name)]


def test_every_kind_of_column_becomes_the_right_inputs(people):
    federation = from_table(people, label="grade", client_column="state")
    assert federation.features == (
        *("age", "income", "income (missing)", "member", "since"),
        *("job=clerk", "job=driver", "job=nurse", "job (missing)"),
    )
    assert list(federation.owners) == ["CA", "NY"]
    assert federation.class_names == ("bad", "good")
    for name in ("age", "since"):
        assert column(federation, name).mean() == pytest.approx(0, abs=1e-6)
        assert column(federation, name).std() == pytest.approx(1, abs=1e-6)
    gaps = column(federation, "income (missing)")
    assert gaps.mean() == pytest.approx(1 / 6)
    assert set(column(federation, "income")[gaps == 1]) == {0.0}  # the mean
    jobs = [column(federation, f"job={job}") for job in ("clerk", "driver", "nurse")]
    np.testing.assert_array_equal(sum(jobs) + column(federation, "job (missing)"), 1)
    assert set(column(federation, "member")) == {0.0, 1.0}


def test_everything_decided_is_said(people):
    notes = " ".join(from_table(people, label="grade", client_column="state").notes)
    assert FROM_DATA_NOTE in notes
    assert "'id' (an identifier)" in notes
    assert "'comment' (text with 30 different values)" in notes
    assert "'country' (the same value everywhere)" in notes
    assert "Missing values in 'income' (5), 'job' (5)" in notes
    assert "days since 1970-01-01: 'since'" in notes
    assert "Label 'grade': classification into 2 classes" in notes


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def labelled(tmp_path, labels, **settings):
    rows = "\n".join(f"{i % 3},{i},{label}" for i, label in enumerate(labels))
    path = write(tmp_path, f"who,x,y\n{rows}\n")
    return from_table(path, label="y", client_column="who", test_fraction=0, **settings)


@pytest.mark.parametrize(
    ("labels", "task", "names"),
    [
        (["b", "a", "c"] * 4, Task.CLASSIFICATION, ("a", "b", "c")),
        ([3, 1, 10] * 4, Task.CLASSIFICATION, ("1", "3", "10")),
        ([1.0, 0.0] * 6, Task.CLASSIFICATION, ("0", "1")),
        (["true", "false"] * 6, Task.CLASSIFICATION, ("false", "true")),
        ([1.5, 0.0] * 6, Task.REGRESSION, ()),
        (list(range(40)), Task.REGRESSION, ()),
    ],
)
def test_the_label_decides_the_task_and_classes_keep_their_order(tmp_path, labels, task, names):
    federation = labelled(tmp_path, labels)
    assert federation.task is task
    assert federation.class_names == names
    if names:
        by_row = federation.train.targets[np.argsort(column(federation, "x"))]
        assert [names[code] for code in by_row] == [
            str(label).removesuffix(".0") for label in labels
        ]


def test_regression_targets_are_standardised_and_can_be_undone(tmp_path):
    labels = np.linspace(-3, 20, 50) ** 2
    federation = labelled(tmp_path, labels)
    stored = federation.train.targets
    assert stored.mean() == pytest.approx(0, abs=1e-5)
    assert stored.std() == pytest.approx(1, abs=1e-5)
    undone = stored / federation.target_scaling.factor + federation.target_scaling.shift
    np.testing.assert_allclose(np.sort(undone), np.sort(labels), rtol=1e-4, atol=1e-3)
    again = Federation.open(federation.save(tmp_path / "saved"))
    assert again.target_scaling.shift == federation.target_scaling.shift


SCHEMA = {
    "columns": {
        "age": {"type": "number", "min": 0, "max": 40, "missing": True},
        "income": {"type": "number", "mean": 3000, "std": 1000},
        "job": {"type": "category", "categories": ["nurse", "pilot"]},
        "since": {"type": "date", "min": "2020-01-01", "max": "2020-02-20"},
        "member": {"type": "boolean"},
        "id": {"type": "ignore"},
        "grade": {"type": "category", "categories": ["good", "bad", "ugly"]},
    }
}


def test_with_a_schema_inputs_depend_on_the_schema_alone(people, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    federation = from_table(people, label="grade", client_column="state", schema=path)
    assert federation.features == (
        *("age", "age (missing)", "income", "job=nurse", "job=pilot", "since", "member"),
    )
    assert federation.class_names == ("good", "bad", "ugly")
    assert FROM_DATA_NOTE not in federation.notes
    notes = " ".join(federation.notes)
    assert "public schema alone" in notes
    assert set(federation.left_out) == {"id", "comment", "country"}
    assert all(repr(name) in notes for name in federation.left_out)
    # Values are clipped to the range: 50 and 60 count as 40.
    assert column(federation, "age").max() == 1.0
    assert column(federation, "since").min() == -1.0
    assert column(federation, "since").max() == 1.0
    assert column(federation, "income").max() == pytest.approx(2.0005)
    assert column(federation, "job=pilot").max() == 0.0
    # One row gone changes no input of the others.
    lines = people.read_text().splitlines()
    fewer = write(tmp_path, "\n".join(lines[:-1]) + "\n")
    without = from_table(fewer, label="grade", client_column="state", schema=path, test_fraction=0)
    everything = from_table(
        people, label="grade", client_column="state", schema=path, test_fraction=0
    )
    kept = {row.tobytes() for row in without.train.inputs}
    assert kept <= {row.tobytes() for row in everything.train.inputs}


def test_a_schema_can_be_toml_and_describe_a_numeric_label(tmp_path):
    path = write(
        tmp_path,
        '[columns.x]\ntype = "number"\nmean = 0\nstd = 2\n'
        '[columns.y]\ntype = "number"\nmin = 0\nmax = 10\n',
        "s.toml",
    )
    federation = labelled(tmp_path, [1.5, 2.5, 9.5] * 4, schema=path)
    assert federation.task is Task.REGRESSION
    np.testing.assert_allclose(np.unique(federation.train.targets), [-0.7, -0.5, 0.9], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"age": {"type": "numbr"}}, "column 'age': type='numbr'"),
        ({"age": {"type": "number"}}, "column 'age': needs min and max, or mean and std"),
        ({"age": {"type": "number", "min": 3, "max": 3}}, "min must be below max"),
        ({"age": {"type": "number", "min": 0, "mean": 3, "std": 1}}, "needs min and max, or mean"),
        ({"age": {"type": "number", "min": 0, "max": 9, "std": 1}}, "needs min and max, or mean"),
        ({"age": {"type": "number", "mean": 0, "std": -1}}, "std positive"),
        ({"age": {"type": "number", "minimum": 3}}, "unknown key 'minimum'; did you mean 'min'?"),
        ({"age": {"type": "number", "min": "low", "max": 3}}, "neither a number nor a date"),
        ({"job": {"type": "category"}}, "needs a list of categories"),
        ({"jobs": {"type": "boolean"}}, "no column 'jobs' (in the schema); did you mean 'job'?"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place(people, change, says):
    schema = {"columns": {**SCHEMA["columns"], **change}}
    with pytest.raises(ConfigError) as caught:
        from_table(people, label="grade", client_column="state", schema=schema)
    assert says in str(caught.value)


def test_a_draft_can_be_used_and_its_guesses_count_until_they_are_confirmed(people, tmp_path):
    text = schema_draft(people, label="grade", client_column="state")
    assert '[columns."since"]\ntype = "date"' in text
    assert '[columns."state"]  # whose row it is\ntype = "ignore"' in text
    named = {"label": "grade", "client_column": "state"}
    guessed = from_table(people, **named, schema=write(tmp_path, text, "draft.toml"))
    plain = from_table(people, **named)
    assert guessed.features == plain.features
    assert np.abs(guessed.train.inputs - plain.train.inputs).max() < 0.5  # two digits are kept
    (said,) = guessed.unprotected
    assert "of the schema are guesses from the rows" in said
    checked = write(tmp_path, text.replace("guess = true\n", ""), "schema.toml")
    assert from_table(people, **named, schema=checked).unprotected == ()


def test_that_a_column_is_left_out_is_a_guess_if_the_rows_said_so(tmp_path):
    """A column that is the same everywhere, or free text: that is a fact of the rows."""
    rows = [
        f"{row % 3},DE,{row % 4},note {row} of {row * row},{'ab'[row % 2]}" for row in range(60)
    ]
    table = write(tmp_path, "who,land,x,note,y\n" + "\n".join(rows))
    named = {"label": "y", "client_column": "who"}
    text = schema_draft(table, **named)
    for left_out in ("land", "note"):
        assert re.search(rf'"{left_out}"\].*\ntype = "ignore"\nguess = true', text)
    for confirmed in ("x", "y"):  # all but what is ignored
        text = re.sub(rf'("{confirmed}"\](.|\n)*?)guess = true\n', r"\1", text, count=1)
    (said,) = from_table(table, **named, schema=write(tmp_path, text, "s.toml")).unprotected
    assert "2 columns of the schema are guesses" in said


def test_values_that_nobody_has_listed_share_inputs_by_their_hash(tmp_path):
    """The same everywhere and for ever: the hash is public, and no row sees another."""
    rows = [f"{row % 2},w{row % 7},{'ab'[row % 2]}" for row in range(28)]
    table = write(tmp_path, "who,job,y\n" + "\n".join(rows))
    schema = {"job": {"type": "category", "buckets": 4, "missing": True}}
    schema["y"] = {"type": "category", "categories": ["a", "b"]}
    found = from_table(table, label="y", client_column="who", schema={"columns": schema})
    assert found.features == ("job=#0", "job=#1", "job=#2", "job=#3", "job (missing)")
    assert found.unprotected == ()
    codes = {f"w{i}": zlib.crc32(f"w{i}".encode()) % 4 for i in range(7)}
    encoded = found.encoder.encode(pa.table({"job": ["w1", "w6", None, "new"]}))
    assert encoded.inputs[0, codes["w1"]] == encoded.inputs[1, codes["w6"]] == 1
    assert encoded.inputs.sum(1).tolist() == [1, 1, 1, 1]
    assert encoded.inputs[2, 4] == 1
    assert not encoded.unknown
    for wrong in (1, 5000, 2.5):
        schema["job"] = {"type": "category", "buckets": wrong}
        with pytest.raises(ConfigError, match="buckets"):
            from_table(table, label="y", client_column="who", schema={"columns": schema})


@pytest.mark.parametrize("values", [pa.string(), pa.large_string(), pa.string_view()])
def test_categories_of_frames_are_text_however_they_are_stored(values):
    """pandas and polars write a categorical column as codes into a list of values."""
    kinds = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None] * 40, pa.uint32()), pa.array(["a", "b"], values)
    )
    plain = pa.array(["a", "b", None] * 40)
    rows = {"who": [f"c{i % 4}" for i in range(120)], "y": [i % 2 for i in range(120)]}
    made = [
        from_table(pa.table({**rows, "kind": one}), client_column="who", label="y")
        for one in (kinds, plain)
    ]
    assert made[0].features == ("kind=a", "kind=b", "kind (missing)")
    np.testing.assert_array_equal(made[0].train.inputs, made[1].train.inputs)


def test_text_in_a_column_of_gaps_is_not_taken_for_numbers(tmp_path):
    """One row in twenty has a text, each another: nine tenths of *all* rows are no text."""
    rows = [f"{i % 5},{f't{i}' if i % 20 == 0 else ''},{i % 7},{'ab'[i % 2]}" for i in range(800)]
    table = write(tmp_path, "who,remark,x,y\n" + "\n".join(rows))
    found = from_table(table, label="y", client_column="who")
    assert found.features == ("x",)
    assert any("'remark' (text with 40 different values)" in note for note in found.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04rest", "an old Excel or a zip file"),
        (b"\xd0\xcf\x11\xe0rest", "an old Excel or a zip file"),
        (b'[{"who": 1, "x": 2, "y": 0}]', "seems to be JSON; save the table as CSV"),
        (b'{"who": 1, "x": 2, "y": 0}\n', "seems to be JSON"),
        ("who,x,y\n1,2,é\n".encode("latin-1"), "iconv -f WINDOWS-1252"),
        ("who,é,y\n1,2,a\n".encode("latin-1"), "iconv -f WINDOWS-1252"),
    ],
)
def test_files_of_other_programs_get_a_hint(tmp_path, content, says):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        from_table(path, label="y", client_column="who")
    assert says in str(caught.value)


HEAD = "who,x,y\n"
GOOD = HEAD + "1,2,a\n1,3,b\n2,4,a\n2,5,b\n"


@pytest.mark.parametrize(
    ("text", "settings", "says"),
    [
        ("", {}, "t.csv: is empty"),
        (HEAD, {}, "has a header but no rows"),
        (GOOD + "1,2\n", {}, "line 6 has 2 fields, the header has 3"),
        (GOOD + "1,2,3,secret\n", {}, "line 6 has 4 fields, the header has 3"),
        ("who,x,x,y\n1,2,3,a\n", {}, "column 'x' occurs more than once"),
        (GOOD, {"label": "z"}, "no column 'z' (the label); its first line names who, x, y"),
        (GOOD, {"label": "Y"}, "no column 'Y' (the label); did you mean 'y'?"),
        ("who,interest_rate\n1,2\n", {"label": "rate"}, "did you mean 'interest_rate'?"),
        (GOOD, {"client_column": "wo"}, "no column 'wo' (the clients); did you mean 'who'?"),
        (GOOD, {"client_column": None}, "name the column that says whose row"),
        (GOOD, {"client_column": "y"}, "column 'y' has two roles"),
        (HEAD + "1,2,\n1,3,?\n", {}, "no row has a label (column 'y')"),
        (HEAD + ",2,a\n,3,b\n", {}, "no row has a client (column 'who')"),
        (HEAD + "1,2,a\n1,3,a\n", {}, "label 'y' has fewer than two classes"),
        (HEAD + "1,1e999,a\n1,3,b\n", {}, "column 'x' holds infinity in row 1"),
        (
            HEAD + "1,7,a\n1,7,b\n",
            {},
            "besides 'y' can be used as an input (Columns left out: 'x'",
        ),
        (HEAD + "1,2,1.5\n1,3,1.5\n", {}, "the same in every row"),
        (HEAD.encode() + b"1,2,caf\xe9\n1,3,b\n", {}, "column 'y', row 1 is not UTF-8"),
        (b"who,x,\xe9\n1,2,a\n", {}, "first line is not UTF-8"),
        (GOOD.encode("utf-16"), {}, "UTF-8"),
        (gzip.compress(GOOD.encode(), mtime=0)[:-12], {}, "damaged gzip"),
        (b"PAR1" + b"junk" * 9, {}, "damaged Parquet"),
        (HEAD + "\n".join(f"1,{i},text{i}" for i in range(99)), {}, "99 different values"),
        (HEAD + "1,2,2020-01-01\n1,3,2020-01-02\n", {"task": "regression"}, "needs numbers"),
    ],
)
def test_bad_files_are_refused_in_one_line_that_names_what_and_where(
    tmp_path, text, settings, says
):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        from_table(path, **{"label": "y", "client_column": "who", **settings})
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clients_with_one_row_keep_it(tmp_path):
    rows = "".join(f"{who},{i},{'ab'[i % 2]}\n" for i, who in enumerate([1] * 20 + [2, 3]))
    federation = from_table(write(tmp_path, HEAD + rows), label="y", client_column="who")
    assert federation.clients == 3
    assert list(federation.sizes) == [16, 1, 1]
    lonely = "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(50))
    path = write(tmp_path, HEAD + lonely)
    # Whole clients are held out on request only: a guess would change for everybody with one row.
    assert not len(from_table(path, label="y", client_column="who").test)
    strangers = from_table(path, label="y", client_column="who", holdout="clients")
    assert strangers.clients + len(strangers.test) == 50
    assert 1 <= len(strangers.test) <= 24  # binomial (50, 0.2): beyond 5 sigma


@pytest.mark.parametrize(
    "names",
    [
        ["7", "07", "007"],
        [str(2**63 + i) for i in range(3)],
        ["1e3", "1000", "1000.5"],
        ["12345678901234567891", "12345678901234567892", "x"],
    ],
)
def test_clients_whose_names_look_like_one_number_stay_apart(tmp_path, names):
    rows = "".join(f"{names[i % 3]},{i % 7},{'ab'[i % 2]}\n" for i in range(60))
    federation = from_table(write(tmp_path, HEAD + rows), label="y", client_column="who")
    assert list(federation.owners) == sorted(names)


WRITTEN = ("{0},25", "1.{0},25", "1 {0},25", "1'{0},25", "1.{0},25 €", '"1,{0}.25"', "{0}.25 kg")


@pytest.mark.parametrize("written", WRITTEN)
def test_numbers_as_people_write_them(tmp_path, written):
    """The same in training, where all cells of a column decide, and in prediction, one by one."""
    values = [written.format(100 + i) for i in range(60)]
    rows = "".join(f"{i % 3};{value};{value}\n" for i, value in enumerate(values))
    path = write(tmp_path, HEAD.replace(",", ";") + rows)
    federation = from_table(path, label="y", client_column="who", test_fraction=0)
    assert federation.features == ("x",)
    assert federation.task is Task.REGRESSION
    numbers = np.arange(60) + 100.25
    expected = (numbers - numbers.mean()) / numbers.std()
    np.testing.assert_allclose(np.sort(column(federation, "x")), expected, rtol=1e-4)
    np.testing.assert_allclose(np.sort(federation.train.targets), expected, rtol=1e-4)
    (piece,) = pieces(path, ["x"], "needed")
    np.testing.assert_allclose(federation.encoder.encode(piece).inputs[:, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("form", ["file", "frame"])
def test_percent_signs_money_and_names_of_months_are_read_as_people_mean_them(tmp_path, form):
    """As loans of some years are published: "13.56%", "Dec-2014"."""
    months = ("Jan", "Feb", "Dec")
    frame = {
        "who": [f"c{i % 3}" for i in range(300)],
        "since": [f"{months[i % 3]}-{2000 + i % 10}" for i in range(300)],
        "used": [f"{i / 7:.1f}%" for i in range(300)],
        "income": [f"${i + 1},000" for i in range(300)],
        "rate": [f" {5 + i / 50:.2f}%" for i in range(300)],
    }
    source = frame
    if form == "file":
        lines = [",".join(frame)]
        lines += [f'{w},{s},{u},"{i}",{r}' for w, s, u, i, r in zip(*frame.values(), strict=True)]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        source = tmp_path / "t.csv"
    made = from_table(source, client_column="who", label="rate")
    assert made.features == ("since", "used", "income")
    assert made.task == "regression"
    assert made.target_scaling is not None
    labels = made.train.targets / made.target_scaling.factor + made.target_scaling.shift
    assert 5 <= labels.min() < labels.max() < 12
    columns = made.encoder.columns
    assert columns["used"].mean == pytest.approx(np.mean([round(i / 7, 1) for i in range(300)]))
    assert columns["income"].mean == pytest.approx(150_500)
    days = [(datetime.date(2000 + i % 10, (1, 2, 12)[i % 3], 1)) for i in range(300)]
    mean = np.mean([(day - datetime.date(1970, 1, 1)).days for day in days])
    assert columns["since"].mean == pytest.approx(mean)


def test_numbers_with_a_few_odd_entries_stay_numbers(tmp_path):
    rows = "".join(f"{i % 3},{'unknown' if i == 7 else i / 4},{'ab'[i % 2]}\n" for i in range(60))
    federation = from_table(write(tmp_path, HEAD + rows), label="y", client_column="who")
    assert federation.features == ("x", "x (missing)")
    assert column(federation, "x (missing)").sum() == 1
    assert any("'x': 1 entries that are no numbers" in note for note in federation.notes)


STRANGE = {
    "struct": pa.array([{"a": 1}] * 200),
    "duration": pa.array([5] * 200, pa.duration("us")),
    "time": pa.array([5] * 200, pa.time64("ns")),
    "vector": pa.array([[1.0, 2.0]] * 200, pa.list_(pa.float64(), 2)),
    "floats": pa.array([[1.0]] * 200),
    "bytes": pa.array([b"abc"] * 200).cast(pa.binary_view()),
}


@pytest.mark.parametrize("name", STRANGE)
def test_columns_of_strange_types_are_neither_bought_nor_labels_nor_clients(name):
    table = pa.table(
        {
            "who": [f"c{i % 5}" for i in range(200)],
            "x": np.arange(200) * 0.5,
            "odd": STRANGE[name],
            "y": ["a", "b"] * 100,
        }
    )
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.01, 1e-6, seed=0)
    found = from_table(table, label="y", client_column="who", offer=offer)
    assert found.features == ("x",)
    for role in ("label", "client_column"):
        given = {"label": "y", "client_column": "who", role: "odd"}
        with pytest.raises(ConfigError, match=r"'odd' holds .*(numbers or text|text or numbers)"):
            from_table(table, **given)


@pytest.mark.parametrize("bought", [False, True])
def test_the_nameless_index_of_a_frame_is_no_input(bought):
    """As pandas gives it with its columns after rows were shuffled or split."""
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "who": [f"c{i % 5}" for i in range(200)],
            "x": draw.normal(size=200),
            "y": ["a", "b"] * 100,
            "__index_level_0__": draw.permutation(200),
        }
    )
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 0.01, 1e-6, seed=0) if bought else None
    found = from_table(table, label="y", client_column="who", offer=offer)
    assert found.features == ("x",)


def test_parquet_columns_of_strange_types_are_left_out_and_said(tmp_path):
    table = pa.table(
        {
            "who": pa.array([1, 1, 2, 2]),
            "x": pa.array([1.0, float("nan"), 2.0, 3.0]),
            "list": pa.array([[1], [2], [3], [4]]),
            "nothing": pa.nulls(4),
            "money": pa.array([1, 2, 3, 4]).cast(pa.decimal128(25, 2)),
            "y": pa.array(["a", "b", "a", "b"]),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    federation = from_table(tmp_path / "t.parquet", label="y", client_column="who", test_fraction=0)
    assert federation.features == ("x", "x (missing)", "money")
    notes = " ".join(federation.notes)
    assert "'list' (list<" in notes
    assert "'nothing' (no values at all)" in notes


@pytest.mark.parametrize("classes", [None, ("10%", "20%")])
def test_classes_with_signs_are_known_again(tmp_path, classes):
    rows = "".join(f"{i % 3},{i % 7},{('10%', '20%')[i % 2]}\n" for i in range(60))
    path = write(tmp_path, HEAD + rows)
    made = from_table(path, label="y", client_column="who", classes=classes, task="classification")
    assert len(made.class_names) == 2
    (again,) = pieces(path, ["x", "y"], "the model's inputs")
    codes, wrong = made.encoder.targets(again)
    assert not wrong.any()
    assert codes.tolist() == [0, 1] * 30


@pytest.mark.parametrize(
    ("form", "unclear"),
    [
        ("%Y-%m-%d", False),
        ("%Y/%m/%d", False),
        ("%d.%m.%Y", False),
        ("%d-%b-%Y", False),
        ("%d.%m.%Y %H:%M", False),
        ("%m/%d/%Y", False),
        ("%d/%m/%Y", False),
        ("%d/%m/%y", True),
        ("%d-%b-%y", True),
        ("%d.%m.%y", True),
    ],
)
def test_dates_are_read_where_their_day_is_clear(tmp_path, form, unclear):
    days = [datetime.datetime(2001, 1, 1) + datetime.timedelta(97 * i) for i in range(150)]
    rows = "".join(f"{i % 3},{day.strftime(form)},{i % 2}\n" for i, day in enumerate(days))
    path = write(tmp_path, HEAD + rows)
    if unclear:
        with pytest.raises(ConfigError, match="different values; dates are read as"):
            from_table(path, label="y", client_column="who")
        return
    federation = from_table(path, label="y", client_column="who", test_fraction=0)
    found = np.sort(federation.train.inputs[:, 0])
    since = np.array([(day - days[0]).total_seconds() for day in days])
    assert np.allclose(found, (since - since.mean()) / since.std(), atol=1e-5)
    schema = {"x": {"type": "date", "min": "2001-01-01", "max": "2041-01-01"}}
    if "/%Y" in form:  # of one cell alone, only somebody who knows the table can tell
        schema["x"]["order"] = "month/day" if form[1] == "m" else "day/month"
    by_cell = from_table(
        path, label="y", client_column="who", test_fraction=0, schema={"columns": schema}
    )
    width = (datetime.date(2041, 1, 1) - datetime.date(2001, 1, 1)).days / 2
    expected = np.sort(since / 86_400 / width - 1)
    assert np.allclose(np.sort(by_cell.train.inputs[:, 0]), expected, atol=1e-6)


@pytest.mark.parametrize("form", ["%b-%Y", "%Y-%m", "%Y-%m-%d"])
def test_dates_are_classes_where_they_are_the_label(tmp_path, form):
    """Named as they are written, in new rows too."""
    months = [datetime.date(2014, 10 + i % 3, 1).strftime(form) for i in range(90)]
    path = write(tmp_path, HEAD + "".join(f"{i % 3},{i},{m}\n" for i, m in enumerate(months)))
    federation = from_table(path, label="y", client_column="who", test_fraction=0)
    assert federation.class_names == tuple(sorted(set(months)))
    codes, wrong = federation.encoder.targets(next(pieces(path, ["y"], "")))
    assert not wrong.any()
    assert [federation.class_names[code] for code in codes] == months
    offer = Offer(Unit.RECORD, Trust.LOCAL, 0.2, 1e-6, seed=0)
    path = write(tmp_path, HEAD + "".join(f"1,{i},{m}\n" for i, m in enumerate(months)))
    bought = from_table(path, label="y", client_column="who", test_fraction=0, offer=offer)
    assert bought.class_names == federation.class_names


def test_a_workbook_is_the_same_as_its_csv_file(people, tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for place, line in enumerate(people.read_text().splitlines()):
        cells = line.split(",")
        if place:
            cells = [float(cell) if cell.replace(".", "").isdigit() else cell for cell in cells]
            cells[5] = datetime.date.fromisoformat(cells[5])
        book.active.append(cells)
    book.save(tmp_path / "people.xlsx")
    sources = (people, tmp_path / "people.xlsx")
    for more in ({}, {"schema": SCHEMA}):
        csv, sheet = (
            from_table(one, label="grade", client_column="state", **more) for one in sources
        )
        assert csv.features == sheet.features
        np.testing.assert_allclose(csv.train.inputs, sheet.train.inputs, atol=1e-6)
    (tmp_path / "people.xlsx").write_bytes(b"PK\3\4rest")
    with pytest.raises(ConfigError, match="damaged Excel"):
        from_table(tmp_path / "people.xlsx", label="grade", client_column="state")


@pytest.mark.parametrize("unit", [Unit.CLIENT, Unit.RECORD])
def test_free_text_and_row_numbers_are_no_inputs_unless_asked_for(unit):
    """Where statistics are bought: hashed, they would be noise beside the other columns."""
    draw, rows = np.random.default_rng(0), 6000
    table = {
        "who": np.arange(rows) % 1500,
        "patient_id": draw.permutation(rows),
        "notes": [f"note {i} {draw.integers(9)}" for i in range(rows)],
        "zip": [f"D{i}" for i in draw.integers(0, 80, rows)],
        "job": [f"job{i}" for i in draw.integers(0, 5, rows)],
        "y": ["a", "b"] * (rows // 2),
    }
    trust = Trust.DISTRIBUTED if unit is Unit.RECORD else Trust.CENTRAL
    offer = Offer(unit, trust, 2.0, 1e-6, 1500, seed=1)
    given = {"label": "y", "client_column": "who", "classes": ("a", "b")}
    found = from_table(table, **given, offer=offer)
    assert set(found.encoder.columns) == {"zip", "job"}
    # One truth: the reason in the note is the reason in the table of columns.
    assert set(found.left_out) == {"patient_id", "notes"}
    (said,) = (note for note in found.notes if "left out" in note and "'patient_id'" in note)
    assert all(f"{name!r} ({why})" in said for name, why in found.left_out.items())
    assert "noise" not in found.left_out["patient_id"]
