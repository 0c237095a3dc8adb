"""Facts before data: no entry of one unit decides anything about the others, or about the run.

Each test builds two neighbouring worlds through the public interface. They differ in what one
client (or one record) holds: a blank, a word among numbers, NaN, another type, a broken picture.
Everything public must be equal in both: clients, sizes, task, classes, notes and the guarantee; and
so must the rows of everybody else, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import fedveil as fv
from fedveil.cli import main
from fedveil.core.errors import ConfigError

NAMES = [f"c{number:02d}" for number in range(12)]
EACH = 6  # rows of a client
SCHEMA = {
    "columns": {
        "x": {"type": "number", "min": 0, "max": 100},
        "z": {"type": "number", "min": 0, "max": 1},
        "y": {"type": "category", "categories": ["a", "b"]},
    }
}
NUMBERS = {
    "columns": {**SCHEMA["columns"], "y": {"type": "number", "min": 0, "max": 1}},
}


def method(level: str) -> fv.Method:
    if level == "record":
        local = fv.LocalTraining(fv.LearningRate(0.5), steps=2, batch_size=4)
        cohort = fv.CohortRule(rate=1.0)
        return fv.dp_sgd(rounds=2, cohort=cohort, local=local, clip_norm=1.0, secure_sum=False)
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=2)
    return fv.dp_fedavg(rounds=2, cohort=fv.CohortRule(rate=0.5), local=local, clip=fv.Clip(1.0))


def guarantee(federation: fv.Federation, level: str) -> dict[str, Any]:
    name = "linear" if federation.task == "regression" else "logistic"
    model = fv.build(name, federation)
    made = fv.plan(method(level), federation, model, budget=fv.Budget(epsilon=1.0))
    return json.loads(json.dumps(made.guarantee.to_dict()))


def public(federation: fv.Federation, level: str) -> dict[str, Any]:
    """All that anybody may see. At client level sizes are the clients' own matter."""
    seen = {
        "clients": federation.clients,
        "owners": None if federation.owners is None else list(map(str, federation.owners)),
        "task": federation.task,
        "classes": federation.classes,
        "class names": federation.class_names,
        "shape": federation.input_shape,
        "kinds": (federation.train.inputs.dtype, federation.train.targets.dtype),
        "notes": federation.notes,
        "unprotected": federation.unprotected,
        "guarantee": guarantee(federation, level),
    }
    if level == "record":
        seen["sizes"] = federation.sizes.tolist()
        seen["test"] = len(federation.test)
    return seen


def rows(federation: fv.Federation, client: int) -> tuple[bytes, bytes]:
    own = slice(int(federation.offsets[client]), int(federation.offsets[client + 1]))
    train = federation.train
    return train.inputs[own].tobytes(), train.targets[own].tobytes()


def assert_neighbours(one: fv.Federation, two: fv.Federation, *levels: str) -> None:
    """Equal for everybody but one client, and at record level but one record."""
    levels = levels or ("client", "record")
    for level in levels:
        assert public(one, level) == public(two, level)
    if "client" in levels:
        clients = [rows(one, i) == rows(two, i) for i in range(one.clients)]
        assert clients.count(False) <= 1
    if "record" not in levels:
        return
    moved = 0
    for first, second in ((one.train, two.train), (one.test, two.test)):
        same = (first.inputs == second.inputs).reshape(len(first), -1).all(1)
        same &= (first.targets == second.targets).reshape(len(first), -1).all(1)
        moved += int((~same).sum())
    assert moved <= 1


def table(**cells: Any) -> dict[str, list[Any]]:
    """Rows of twelve clients; `cells` has values for some rows of a column, `{row: value}`."""
    count = len(NAMES) * EACH
    columns: dict[str, list[Any]] = {
        "who": [NAMES[row % len(NAMES)] for row in range(count)],
        "x": [float(row) for row in range(count)],
        "z": [row % 7 / 7 for row in range(count)],
        "y": ["ab"[row % 2] for row in range(count)],
    }
    for name, changes in cells.items():
        for row, value in changes.items():
            columns[name][row] = value
    return columns


def of_client(client: int, value: Any) -> dict[int, Any]:
    return dict.fromkeys(range(client, len(NAMES) * EACH, len(NAMES)), value)


def as_csv(path: Path, columns: Mapping[str, list[Any]]) -> Path:
    lines = [
        ",".join("" if one is None else str(one) for one in row)
        for row in zip(*columns.values(), strict=True)
    ]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return path


DEALT = {
    "owners": {"client_column": "who"},
    "owners, capped": {"client_column": "who", "partition": fv.ByOwner(cap=3)},
    "iid": {"partition": fv.IID(9)},
    "iid, capped": {"partition": fv.IID(9, cap=5)},
    "iid, fixed": {"partition": fv.IID(9, examples_per_client=5)},
}
HELD_OUT = ["within", "latest", "pooled", "clients"]


@pytest.mark.parametrize("held_out", HELD_OUT)
@pytest.mark.parametrize("dealt", DEALT)
@pytest.mark.parametrize("odd", ["", "c", "7", "inf", "2020-01-01"])
def test_a_label_that_is_none_moves_no_row(tmp_path, odd, dealt, held_out):
    settings = {"label": "y", "schema": SCHEMA, "holdout": held_out, "seed": 5, **DEALT[dealt]}
    settings["test_fraction"] = 0.3
    usual = fv.from_table(as_csv(tmp_path / "t.csv", table()), **settings)
    other = fv.from_table(as_csv(tmp_path / "t.csv", table(y={31: odd})), **settings)
    assert_neighbours(usual, other)


@pytest.mark.parametrize("dealt", ["owners", "owners, capped"])
@pytest.mark.parametrize("schema", [SCHEMA, NUMBERS])
def test_a_client_whose_labels_are_all_blank_is_still_a_client(tmp_path, schema, dealt):
    settings = {"label": "y", "schema": schema, **DEALT[dealt]}
    numbers = {row: row % 3 / 3 for row in range(len(NAMES) * EACH)} if schema is NUMBERS else {}
    usual = fv.from_table(as_csv(tmp_path / "t.csv", table(y=numbers)), **settings)
    blank = table(y={**numbers, **of_client(4, "")})
    other = fv.from_table(as_csv(tmp_path / "t.csv", blank), **settings)
    assert other.clients == len(NAMES)
    assert_neighbours(usual, other, "client")
    assert public(usual, "record") == public(other, "record")


def test_everybody_s_labels_may_be_blank_and_nothing_shows(tmp_path):
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who"}
    usual = fv.from_table(as_csv(tmp_path / "t.csv", table()), **settings)
    none = table(y=dict.fromkeys(range(len(NAMES) * EACH), ""))
    other = fv.from_table(as_csv(tmp_path / "t.csv", none), **settings)
    assert public(usual, "client") == public(other, "client")


def test_a_column_in_which_nobody_has_a_value_stops_nothing(tmp_path):
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who"}
    nothing = dict.fromkeys(range(len(NAMES) * EACH), "x")
    one = fv.from_table(as_csv(tmp_path / "t.csv", table(z={**nothing, 3: 0.5})), **settings)
    two = fv.from_table(as_csv(tmp_path / "t.csv", table(z=nothing)), **settings)
    assert_neighbours(one, two)


class Nasty:
    """Whatever is asked of it, it raises."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("secret")

    __str__ = __repr__ = __float__ = __eq__ = __ne__ = __len__ = _raise  # type: ignore[assignment]
    __hash__ = object.__hash__


ENTRIES = ["1", 1, 1.0, True, None, float("nan"), "x", b"1", 2**70, 10**5000, [1, 2], object()]
ENTRIES += ["\ud800", Nasty()]
PLACES = range(len(ENTRIES))


class Frame:
    """What a frame of pandas has, with columns of Python's objects."""

    iloc = None

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = dict(columns)

    def __iter__(self) -> Any:
        return iter(self._columns)

    def __getitem__(self, name: str) -> Any:
        column = np.empty(len(self._columns[name]), object)
        for place, entry in enumerate(self._columns[name]):
            column[place] = entry
        return column

    def __setitem__(self, name: str, column: Any) -> None:
        self._columns[name] = column

    def copy(self, deep: bool) -> Frame:
        return Frame(self._columns)

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return pa.table(self._columns).__arrow_c_stream__(schema)


@pytest.mark.parametrize("frame", [dict, Frame])
@pytest.mark.parametrize("column", ["x", "y"])
@pytest.mark.parametrize("odd", ENTRIES, ids=PLACES)
def test_an_entry_of_another_type_in_a_frame_changes_its_own_row_only(frame, column, odd):
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who"}
    usual = fv.from_table(frame(table()), **settings)
    other = fv.from_table(frame(table(**{column: {31: odd}})), **settings)
    assert_neighbours(usual, other)


def test_with_a_schema_rows_without_a_client_belong_to_nobody(tmp_path):
    """The column of clients names them: its blanks move nobody, and the guarantee says so."""
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who"}
    usual = fv.from_table(as_csv(tmp_path / "t.csv", table()), **settings)
    other = fv.from_table(as_csv(tmp_path / "t.csv", table(who={31: ""})), **settings)
    assert_neighbours(usual, other, "client")
    dealt = {"label": "y", "schema": SCHEMA, "client_column": "who", "partition": fv.IID(9)}
    usual = fv.from_table(as_csv(tmp_path / "t.csv", table()), **dealt)
    other = fv.from_table(as_csv(tmp_path / "t.csv", table(who={31: ""})), **dealt)
    assert_neighbours(usual, other, "record")


def test_a_client_s_number_of_rows_stops_nothing(tmp_path):
    """Nor does it change what is said: of clients with one row each nothing can be held out."""
    one_each = {name: column[: len(NAMES)] for name, column in table().items()}
    more = {name: [*column, *column[3:4] * 9] for name, column in one_each.items()}
    settings = {"label": "y", "schema": SCHEMA, "client_column": "who"}
    one = fv.from_table(as_csv(tmp_path / "t.csv", one_each), **settings)
    two = fv.from_table(as_csv(tmp_path / "t.csv", more), **settings)
    assert_neighbours(one, two, "client")
    assert (len(one.test), len(two.test) > 0) == (0, True)


def test_a_client_s_file_without_rows_is_a_client_s_still(tmp_path):
    folder = tmp_path / "clients"
    folder.mkdir()
    columns = {name: column for name, column in table().items() if name != "who"}
    for client, name in enumerate(NAMES):
        own = {column: cells[client :: len(NAMES)] for column, cells in columns.items()}
        as_csv(folder / f"{name}.csv", own)
    one = fv.from_table(folder, label="y", schema=SCHEMA)
    (folder / f"{NAMES[4]}.csv").write_text("x,z,y\n")
    two = fv.from_table(folder, label="y", schema=SCHEMA)
    assert two.clients == len(NAMES)
    assert_neighbours(one, two, "client")


# Arrays.

INPUTS = np.arange(len(NAMES) * EACH * 2, dtype=np.float32).reshape(-1, 2)
LABELS = np.arange(len(NAMES) * EACH) % 2
OWNERS = [NAMES[row % len(NAMES)] for row in range(len(NAMES) * EACH)]


def arrays(inputs: Any = INPUTS, targets: Any = LABELS, **settings: Any) -> fv.Federation:
    settings = {"task": "classification", "classes": 2, **settings}
    return fv.Federation.from_arrays(inputs, targets, OWNERS, **settings)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, object])
def test_an_input_that_is_no_number_stops_nothing(kind, bad):
    inputs = INPUTS.astype(kind)
    inputs[31, 1] = bad
    assert_neighbours(arrays(INPUTS.astype(kind)), arrays(inputs))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float32, object, "list"])
@pytest.mark.parametrize("odd", [-1, 2, 100, np.nan, 0.5])
def test_a_class_out_of_range_stops_nothing(kind, odd):
    whole = isinstance(odd, int) or kind not in (np.int8, np.int64)
    if not whole:
        pytest.skip("no such number")
    usual = LABELS.astype(object if kind == "list" else kind)
    targets = usual.copy()
    targets[31] = odd
    if kind == "list":
        usual, targets = usual.tolist(), targets.tolist()
    assert_neighbours(arrays(targets=usual), arrays(targets=targets))


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("odd", ENTRIES, ids=PLACES)
@pytest.mark.parametrize(
    "settings",
    [
        {"task": "classification", "classes": 2},
        {"task": "classification", "classes": None, "class_names": ("0", "1")},
        {"task": "classification", "classes": None, "class_names": ("x", "1")},
        {"task": "regression", "classes": None},
    ],
)
def test_one_entry_among_targets_decides_its_own_row_only(settings, odd, kind):
    usual: Any = LABELS.tolist()
    targets: Any = list(usual)
    targets[31] = odd
    if kind == "object":
        made = []
        for entries in (usual, targets):
            column = np.empty(len(entries), object)
            column[:] = entries
            made.append(column)
        usual, targets = made
    assert_neighbours(arrays(targets=usual, **settings), arrays(targets=targets, **settings))


def test_a_number_to_predict_that_is_none_stops_nothing():
    usual = LABELS.astype(np.float64)
    for bad in (np.nan, np.inf, 1e300):
        targets = usual.copy()
        targets[31] = bad
        settings = {"task": "regression", "classes": None}
        one, two = (arrays(targets=own, **settings) for own in (usual, targets))
        assert_neighbours(one, two)


def test_a_federation_of_one_s_own_takes_bad_values_too():
    examples = fv.Examples(INPUTS, LABELS)
    offsets = np.arange(0, len(INPUTS) + 1, EACH)
    inputs, targets = INPUTS.copy(), LABELS.copy()
    inputs[7, 0], targets[8] = np.nan, 9
    bad = fv.Examples(inputs, targets)
    test = fv.Examples(INPUTS[:3].copy(), LABELS[:3])
    one = fv.Federation(examples, offsets, test, fv.Task.CLASSIFICATION, 2)
    two = fv.Federation(bad, offsets, test, fv.Task.CLASSIFICATION, 2)
    assert_neighbours(one, two, "client")
    # That training examples are test examples too shows although one of them is unusable.
    again = fv.Federation(bad, offsets, bad, fv.Task.CLASSIFICATION, 2)
    assert not guarantee(again, "client")["certified"]
    assert np.isfinite(two.train.inputs).all()
    assert two.train.targets.max() == 1


@pytest.mark.parametrize("bad", [-1, 5, 100])
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_a_token_out_of_range_stops_nothing(where, bad):
    tokens = {
        "inputs": np.arange(72 * 4).reshape(72, 4) % 5,
        "targets": np.arange(288).reshape(72, 4) % 5,
    }
    usual = fv.Federation.from_arrays(*tokens.values(), OWNERS, task="sequence", classes=5)
    tokens[where] = tokens[where].copy()
    tokens[where][31, 2] = bad
    other = fv.Federation.from_arrays(*tokens.values(), OWNERS, task="sequence", classes=5)
    assert usual.clients == other.clients
    assert [rows(usual, i) == rows(other, i) for i in range(usual.clients)].count(False) <= 1
    assert min(other.train.inputs.min(), other.train.targets.min()) >= 0
    assert max(other.train.inputs.max(), other.train.targets.max()) < 5


# Data sets of clients.

KINDS = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
         np.float16, np.float32, np.float64]  # fmt: skip


def datasets(
    inputs: Any = np.float32, targets: Any = np.int64, *, odd: Any = None
) -> dict[str, Any]:
    """Large whole numbers as inputs: their types round them differently."""
    made: dict[str, Any] = {}
    for client, name in enumerate(NAMES):
        values = (np.arange(8).reshape(4, 2) + 2**24 + 2 * client + 1).astype(np.int64)
        made[name] = [(x.astype(inputs), targets(i % 2)) for i, x in enumerate(values)]
    if odd is not None:
        made[NAMES[4]] = odd
    return made


DECLARED = {"classes": 2, "task": "classification", "shape": (2,)}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("what", ["inputs", "targets"])
@pytest.mark.parametrize("usual", KINDS)
def test_types_of_one_client_s_arrays_decide_nothing_about_others(usual, what):
    one = fv.from_datasets(datasets(**{what: usual}), **DECLARED)
    for other in KINDS:
        own = datasets(**{what: other})[NAMES[4]]
        two = fv.from_datasets(datasets(**{what: usual}, odd=own), **DECLARED)
        assert_neighbours(one, two, "client")
        assert not one.unprotected


def test_what_nobody_declared_of_data_sets_is_owned_up_to():
    for left_out in DECLARED:
        settings = {name: value for name, value in DECLARED.items() if name != left_out}
        found = fv.from_datasets(datasets(), **settings)
        if left_out == "task":  # follows from classes
            assert not found.unprotected
        else:
            assert found.unprotected
            assert not guarantee(found, "client")["certified"]


class Broken:
    """A data set of which one item cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        if place == 2:
            raise OSError("disk on fire")
        return np.zeros(2, np.float32), 1


@pytest.mark.parametrize(
    "odd",
    [
        [],
        [(np.zeros(3), 0)],
        [(np.zeros(2), 0, 1)],
        [(np.zeros(2), "1"), (np.zeros(2), 1)],
        [(["a", "b"], 1)],
        [(np.array([np.nan, 1]), 1), (np.zeros(2), 7)],
        [{"x": 1}],
        Broken(),
    ],
    ids=["empty", "shape", "triple", "text", "words", "nan", "mapping", "broken"],
)
def test_whatever_one_data_set_holds_stops_nothing(odd):
    one, two = (
        fv.from_datasets(datasets(), **DECLARED),
        fv.from_datasets(datasets(odd=odd), **DECLARED),
    )
    assert two.clients == len(NAMES)
    assert_neighbours(one, two, "client")


# Pictures.


def pictures(root: Path) -> Path:
    draw = np.random.default_rng(1)
    for client in range(4):
        for label in ("dark", "light"):
            folder = root / f"clinic {client}" / label
            folder.mkdir(parents=True)
            for number in range(3):
                pixels = draw.integers(0, 255, (6, 4, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.mark.parametrize("odd", ["broken", "cut", "empty", "huge", "class", "none"])
def test_a_picture_that_does_not_fit_stops_nothing(tmp_path, odd):
    settings = {"classes": ["dark", "light"], "size": (6, 4)}
    root = pictures(tmp_path / "clinics")
    one = fv.from_images(root, **settings)
    own = root / "clinic 1" / "dark" / "1.png"
    if odd == "broken":
        own.write_bytes(b"no picture")
    elif odd == "cut":
        own.write_bytes(own.read_bytes()[:60])
    elif odd == "empty":
        own.write_bytes(b"")
    elif odd == "huge":
        Image.new("L", (50, 3)).save(own)
    elif odd == "class":
        (root / "clinic 1" / "dark").rename(root / "clinic 1" / "strange")
    else:
        for file in (root / "clinic 1").glob("*/*"):
            file.unlink()
    two = fv.from_images(root, **settings)
    assert two.clients == 4
    assert_neighbours(one, two, "client")
    if odd in ("broken", "cut", "empty", "huge"):
        assert_neighbours(one, two, "record")


def test_the_size_of_pictures_that_nobody_declared_is_owned_up_to(tmp_path):
    found = fv.from_images(pictures(tmp_path / "clinics"), classes=["dark", "light"])
    assert found.unprotected
    declared = fv.from_images(tmp_path / "clinics", classes=["dark", "light"], size=(6, 4))
    assert not declared.unprotected


# What is written says nothing of rows.


def run_of(folder: Path, columns: Mapping[str, list[Any]], *options: str) -> tuple[Any, ...]:
    """The exit code, the files and the guarantee of a protected run on its way through the CLI."""
    folder.mkdir()
    path = as_csv(folder / "t.csv", columns)
    schema = folder / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    settings = ("training.rounds=2", "training.learning_rate=0.1", "training.local_steps=1")
    words = ["run", "--data", str(path), "--label", "y", "--schema", str(schema), *options]
    words += [f"--set={one}" for one in (*settings, "privacy.clip_norm=1", "privacy.epsilon=1")]
    code = main([*words, "--output", str(folder / "run")])
    said = json.loads((folder / "run" / "guarantee.json").read_text())
    assert said["certified"], said
    return code, sorted(file.name for file in (folder / "run").iterdir()), said


@pytest.mark.parametrize(
    "options",
    [
        ("--client-column", "who"),
        ("--client-column", "who", "--unit", "record"),
        ("--set=data.partition=iid", "--set=data.clients=30", "--unit", "client"),
    ],
)
def test_the_command_says_the_same_whatever_one_client_s_labels_are(tmp_path, options):
    """With 30 clients whole ones are protected by default, and with 29 single rows would be."""
    count = 30 * EACH
    columns: dict[str, list[Any]] = {
        "who": [f"c{row % 30:02d}" for row in range(count)],
        "x": [float(row % 100) for row in range(count)],
        "z": [row % 7 / 7 for row in range(count)],
        "y": ["ab"[row % 2] for row in range(count)],
    }
    usual = run_of(tmp_path / "usual", columns, *options)
    for row in range(4, count, 30):
        columns["y"][row] = ""
    assert run_of(tmp_path / "blank", columns, *options) == usual
    assert usual[0] == 0


def test_no_message_names_a_row_or_a_value_of_a_table_with_a_schema(tmp_path):
    path = as_csv(tmp_path / "t.csv", table(y={31: "secret"}))
    fv.from_table(path, label="y", schema=SCHEMA, client_column="who")
    with pytest.raises(ConfigError) as caught:
        fv.from_table(path, label="y", schema=SCHEMA, client_column="absent")
    assert "secret" not in str(caught.value)
