"""Statistics that are bought: what they cost, what they say, and when nothing may be spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import fedveil as fv
from fedveil.cli import console, main
from fedveil.core.units import Trust, Unit
from fedveil.data.dp_schema import Offer, buy
from fedveil.data.schema import read_columns

CLIENTS, ROWS = 2000, 4000
TABLE = ("--client-column", "who", "--label", "y")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose quantiles are known."""
    home, draw = tmp_path_factory.mktemp("bought"), np.random.default_rng(0)
    ages, days = draw.uniform(20, 80, ROWS), draw.integers(10_957, 14_610, ROWS)
    dates = np.datetime64("1970-01-01") + days
    labels = np.where(ages + draw.normal(0, 10, ROWS) > 50, "yes", "no")
    gaps = draw.random(ROWS) < 0.3
    lines = [
        f"{row % CLIENTS},{age:.2f},{date},{'' if gap else 7 + row % 5},{label}"
        for row, (age, date, gap, label) in enumerate(zip(ages, dates, gaps, labels, strict=True))
    ]
    (home / "t.csv").write_text("\n".join(["who,age,since,grade,y", *lines]) + "\n")
    return home


def _call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    for screen in (console.stdout, console.stderr):
        screen.cache_clear()
    code = main(list(map(str, arguments)))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def _columns(home: Path) -> dict[str, Any]:
    table = csv.read_csv(home / "t.csv")
    return {name: table.column(name) for name in table.column_names}


@pytest.mark.parametrize("given", [(), TABLE, (*TABLE, "--unit", "record")])
def test_a_budget_buys_statistics_and_a_schema_that_carries_their_cost(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    folder = tmp_path / "statistics"
    arguments = ("data", "statistics", home / "t.csv", *given, "--epsilon", 2, "--output", folder)
    code, out, _ = _call(capsys, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    # The ledger says what was spent: nearly all that was asked for, and no more.
    code, out, _ = _call(capsys, "account", folder, "--json")
    spent = json.loads(out)
    assert code == 0
    assert 0.85 * 2 < spent["epsilon"] <= 2
    assert spent["certified"]
    assert found["guarantee"]["epsilon"] == spent["epsilon"]
    age, since, grade = (found["columns"][name] for name in ("age", "since", "grade"))
    assert age["quantiles"]["0.5"] == pytest.approx(50, abs=6)
    assert age["quantiles"]["0.05"] == pytest.approx(23, abs=6)
    assert sum(count for _, count in age["histogram"]) > 0
    assert since["kind"] == "date"
    assert since["quantiles"]["0.5"] == pytest.approx((10_957 + 14_610) / 2, abs=500)
    assert grade["missing"] == pytest.approx(0.3, abs=0.1)
    for name in ("report.html", "statistics.json"):
        assert (folder / name).stat().st_size
    # Whoever uses the schema pays for it, and nobody can forget that.
    schema = folder / "schema.json"
    kept = json.loads(schema.read_text())
    used = fv.from_table(
        home / "t.csv", label="y", client_column="who", classes=["no", "yes"], schema=schema
    )
    assert used.bought is not None
    assert used.bought.to_dict() == kept["bought"]
    assert used.unprotected == ()
    with pytest.raises(fv.ConfigError):
        read_columns(schema)
    if "y" in kept["columns"] and "categories" not in kept["columns"]["y"]:  # nobody asked
        with pytest.raises(fv.ConfigError, match="'y'"):
            fv.from_table(home / "t.csv", label="y", client_column="who", schema=schema)
    if kept["bought"]["unit"] == "client":  # of others, one may have had many votes
        with pytest.raises(fv.PrivacyRefusal):
            fv.from_table(home / "t.csv", label="y", client_column="grade", schema=schema)
    assert _call(capsys, *arguments)[0] == 2  # the folder is there
    assert _call(capsys, "data", "statistics", home / "t.csv")[0] == 2  # no budget


@pytest.mark.parametrize("label", ["y", "age"])
def test_a_table_of_persons_is_certified_by_default(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str
) -> None:
    """Two thousand persons with two rows each, of one owner, pay for statistics of the columns."""
    words = (
        "--person-column",
        "who",
        "--label",
        label,
        "--output",
        tmp_path / "run",
        "--no-report",
    )
    code, out, error = _call(capsys, "run", "--data", home / "t.csv", *words, "--json")
    assert code == 0, error
    found = json.loads(out)
    guarantee = found["guarantee"]
    assert guarantee["certified"], guarantee["reason"]
    assert (guarantee["unit"], guarantee["adjacency"]) == ("person", "zero-out")
    assert found["method"] == "dp-sgd"
    assert guarantee["epsilon"] <= 4
    assert not found["useless"]


def test_statistics_of_persons_are_for_these_persons_alone(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "statistics"
    words = ("--person-column", "who", "--epsilon", 2, "--output", folder)
    assert _call(capsys, "data", "statistics", home / "t.csv", *words)[0] == 0
    given = {"label": "y", "classes": ["no", "yes"], "schema": folder / "schema.json"}
    rows = pa.table({**_columns(home), "site": [0] * ROWS})
    used = fv.from_table(rows, client_column="site", person_column="who", **given)
    assert used.bought is not None
    assert used.bought.unit is Unit.PERSON
    with pytest.raises(fv.PrivacyRefusal, match="person"):
        fv.from_table(rows, client_column="site", person_column="grade", **given)


@pytest.mark.parametrize(
    "given", [("--unit", "person"), ("--unit", "client"), ("--label-separator", ";")]
)
def test_statistics_refuse_what_they_would_not_keep_to(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, str]
) -> None:
    words = ("--epsilon", 2, "--output", tmp_path / "statistics")
    code, _, error = _call(capsys, "data", "statistics", home / "t.csv", *given, *words)
    assert code == 2
    assert "column" in error or given[0] in error
    assert not list(tmp_path.iterdir())


def test_a_budget_too_small_to_tell_anything_is_not_spent(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "statistics"
    arguments = ("data", "statistics", home / "t.csv", "--epsilon", 0.001, "--output", folder)
    assert _call(capsys, *arguments)[0] == 2
    assert not list(tmp_path.iterdir())


WRONG = {
    "evaluation.baseline": "true",
    "evaluation.every": "0",
    "model.name": "nonsense",
    "model.features": "nonsense",
    "model.start": "nowhere.safetensors",
    "engine.device": "nonsense",
    "engine.threads": "-3",
    "data.holdout": "nonsense",
    "data.test_fraction": "1.5",
    "data.test_file": "nowhere.csv",
    "data.test_file ": "@t.csv",  # the table to train on
    "server.optimizer": "nonsense",
    "server.average": "nonsense",
    "aggregation.secure": "nonsense",
    "privacy.clip_norm": "-1",
    "privacy.delta": "2",
    "training.rounds": "0",
    "training.learning_rate": "-1",
    "training.class_weights": "{maybe = 2}",
    "data.task": "ranking",
}


@pytest.mark.parametrize("key", WRONG)
def test_wrong_settings_are_refused_before_anything_is_bought(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    value = WRONG[key].replace("@", f"{home}/")
    given = ("--set", f"{key.strip()}={value}", "--classes", "no,yes", "--output", tmp_path / "run")
    code, _, error = _call(capsys, "run", "--data", home / "t.csv", *TABLE, *given)
    assert code == 2
    assert error
    assert not list(tmp_path.iterdir())


def test_a_recipe_with_bought_statistics_keeps_its_clients(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other clients, one of them may have had the votes of many."""
    run = ("run", "--data", home / "t.csv", *TABLE, "--classes", "no,yes", "--unit", "client")
    assert _call(capsys, *run, "--output", tmp_path / "run", "--no-report")[0] == 0
    recipe = tmp_path / "run" / "recipe.toml"
    again = ("run", recipe, "--client-column", "grade", "--output", tmp_path / "again")
    code, _, error = _call(capsys, *again)
    assert code == 2
    assert "'who'" in error
    assert not (tmp_path / "again").exists()


def test_what_is_paid_does_not_depend_on_the_rows() -> None:
    """Whether names of classes are asked for follows from the votes, and counts in any case."""
    clients = np.arange(3000) % 1000
    labels: dict[str, Any] = {
        "classes": ["no", "yes"] * 1500,
        "numbers": np.random.default_rng(0).normal(size=3000),
    }
    offer = Offer(Unit.CLIENT, Trust.CENTRAL, 2.0, 1e-6, 1000, seed=0)
    paid = {
        name: buy({"y": pa.chunked_array([label])}, "y", clients, offer, ".")
        for name, label in labels.items()
    }
    assert paid["classes"].columns["y"].categories == ("no", "yes")
    assert paid["numbers"].columns["y"].kind == "number"
    assert paid["classes"].bought == paid["numbers"].bought


def test_rows_to_test_on_come_from_a_file(home: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("y,age,since,grade\nyes,99,2020-01-01,7\nno,1,,\n")
    named = {"label": "y", "client_column": "who"}
    found = fv.from_table(home / "t.csv", **named, test=tmp_path / "test.csv")
    everything = fv.from_table(home / "t.csv", **named, test_fraction=0)
    np.testing.assert_array_equal(found.train.inputs, everything.train.inputs)
    assert found.test.targets.tolist() == [1, 0]
    missing = found.features.index("grade (missing)")
    assert found.test.inputs[:, missing].tolist() == [0, 1]
    assert not any("held out" in note for note in found.notes)
    (tmp_path / "link.csv").symlink_to(home / "t.csv")
    for wrong in (home / "t.csv", tmp_path / "nowhere.csv", home / "*.csv", tmp_path / "l*.csv"):
        with pytest.raises(fv.ConfigError):
            fv.from_table(home / "t.csv", **named, test=wrong)


def test_columns_that_are_no_inputs_may_hold_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0).normal(size=(ROWS, 2))
    columns = {
        "who": np.arange(ROWS) % CLIENTS,
        "x": draw[:, 0],
        "pair": list(draw),
        "y": np.where(draw[:, 0] > 0, "yes", "no"),
    }
    for name in ("t.parquet", "test.parquet"):
        parquet.write_table(pa.table(columns), tmp_path / name)
    parquet.write_table(pa.table({**columns, "x": list(draw)}), tmp_path / "wrong.parquet")
    given = ("run", "--data", tmp_path / "t.parquet", *TABLE, "--classes", "no,yes", "--no-report")
    wrong = ("--test", tmp_path / "wrong.parquet", "--output", tmp_path / "run")
    assert _call(capsys, *given, *wrong)[0] == 2
    assert not list(tmp_path.glob("run*"))  # nothing is paid for it
    right = ("--test", tmp_path / "test.parquet", "--output", tmp_path / "run", "--json")
    code, out, _ = _call(capsys, *given, *right)
    assert code == 0
    assert json.loads(out)["guarantee"]["certified"]


def test_where_clients_have_one_row_each_there_is_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{row},{row % 7},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["who,x,y", *lines]) + "\n")
    settings = ["training.rounds=1", "training.local_steps=1", "training.learning_rate=0.1"]
    options = [f"--set={one}" for one in (*settings, "privacy.clip_norm=1")]
    given = ("--data", tmp_path / "t.csv", *TABLE, *options, "--seed", 0, "--no-report", "--json")
    code, out, _ = _call(capsys, "run", *given, "--output", tmp_path / "run")
    assert code == 0
    assert any("data.holdout=clients" in one for one in json.loads(out)["warnings"])
