"""One table for each client: a folder, or a pattern of file names."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.shell import Shell

import fedveil as fv
from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes

ROWS = {
    "north": ["1.5,a,no", "2,b,yes", "3,a,no"],
    "east wing": ["10,b,yes", ",a,no", "12.5,b,yes"],
    "7.0": ["4,c,no", "5,c,yes", "6,a,yes"],
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name, rows in ROWS.items():
        (folder / f"{name}.csv").write_text("\n".join(["age,ward,ill", *rows]) + "\n")
    (folder / "README.md").write_text("about these files")
    (folder / ".hidden.csv").write_text("no table")
    return folder


def same(one: fv.Federation, other: fv.Federation) -> bool:
    return (
        list(map(str, one.owners)) == list(map(str, other.owners))
        and one.features == other.features
        and np.array_equal(one.train.inputs, other.train.inputs)
        and np.array_equal(one.train.targets, other.train.targets)
        and np.array_equal(one.test.inputs, other.test.inputs)
    )


@pytest.mark.parametrize("how", ["folder", "pattern", "text"])
def test_files_are_the_same_as_one_file_with_a_column(hospitals: Path, how: str) -> None:
    """Types, statistics, clients and what is held out are those of the joined table."""
    names = sorted(ROWS)
    rows = [f"{name},{row}" for name in names for row in ROWS[name]]
    joined = hospitals.parent / "joined.csv"
    joined.write_text("\n".join(["who,age,ward,ill", *rows]) + "\n")
    source = {"folder": hospitals, "pattern": hospitals / "*.csv", "text": str(hospitals)}[how]
    expected = fv.from_table(joined, label="ill", client_column="who")
    found = fv.from_table(source, label="ill")
    assert same(found, expected)
    assert found.name == "hospitals"
    assert sorted(map(str, found.owners)) == ["7", "east wing", "north"]
    assert any("7 and 7.0 are one client" in note for note in found.notes)


def test_names_follow_from_each_file_alone(hospitals: Path) -> None:
    """Behind the part of a pattern that has no wildcard: one more folder renames nobody."""
    root = hospitals.parent
    for name in ("x", "y"):
        (root / "deep" / name).mkdir(parents=True)
        (root / "deep" / name / "table.csv").write_text("age,ill\n1,no\n2,yes\n3,no\n")
    found = fv.from_table(root / "deep" / "*" / "table.csv", label="ill")
    assert list(found.owners) == ["x/table", "y/table"]


def test_a_column_may_name_the_clients_of_several_files(hospitals: Path) -> None:
    """Then files are parts of one table, and where a row came from is no input."""
    found = fv.from_table(hospitals, label="ill", client_column="ward")
    assert list(found.owners) == ["a", "b", "c"]
    assert all("file" not in name for name in found.features)


def test_parquet_files(tmp_path: Path) -> None:
    for name, age in (("a", [1.0, 2.0, 3.0]), ("b", [4.0, 5.0, 6.0])):
        table = pa.table({"age": age, "ill": ["no", "yes", "no"]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = fv.from_table(tmp_path, label="ill")
    assert list(found.owners) == ["a", "b"]
    parquet.write_table(pa.table({"age": ["x", "y"], "ill": ["no", "yes"]}), tmp_path / "c.parquet")
    with pytest.raises(ConfigError, match=r"c\.parquet: column 'age' is string, and in a\.parq"):
        fv.from_table(tmp_path, label="ill")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.csv": "x,y\n1,no\n", "b.csv": "x\n1\n"}, r"b\.csv: has no column 'y', and a\.csv has"),
        ({"a.csv": "x,y\n1,no\n", "b.csv": "x,y,z\n1,no,2\n"}, r"a\.csv: has no column 'z', and b"),
        ({"a.csv": "x,y\n1,no\n", "b.csv": "x;y\n1;no\n"}, r"b\.csv: its fields are separated oth"),
        ({"a.csv": "x,y\n1,no\n", "a.tsv": "x\ty\n1\tno\n"}, r"name the same client"),
        ({"a.csv": "file,y\n1,no\n"}, r"a\.csv: has a column 'file'"),
        ({"a.csv": "x,y\n1,no\n", "b.csv": "x,y\nf\xfcr,no\n"}, r"b\.csv: .* is not UTF-8; save"),
        ({"a.csv": "PK\3\4"}, r"a\.csv: an old Excel or a zip file"),
        ({"notes.md": "-"}, r"holds no CSV, Parquet or Excel .*One file for each client is fine"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=said) as caught:
        fv.from_table(tmp_path, label="y")
    assert "\n" not in str(caught.value)


def test_the_commands_take_folders(
    hospitals: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A recipe says that files are clients, a folder can be scored, and mistakes are told."""
    recipe = recipes.parse({}, (), {"data.file": str(hospitals / "*.csv"), "data.label": "ill"})
    assert recipe.data.client_column == "file"
    settings = ["training.rounds=2", "training.local_steps=1", "training.learning_rate=0.1"]
    options = [f"--set={one}" for one in (*settings, "privacy.clip_norm=1")]
    run = str(tmp_path / "run")
    arguments = ["run", "--data", str(hospitals), "--label", "ill", "--output", run, *options]
    assert main([*arguments, "--seed", "0", "--quiet"]) == 0
    assert main(["evaluate", run, str(hospitals)]) == 0
    assert "9" in capsys.readouterr().out
    files = sorted(map(str, hospitals.glob("*.csv")))
    assert main(["run", "--label", "ill", "--data", *files[:2]]) == 2
    assert "a table, not a recipe" in capsys.readouterr().err
    assert main(["run", "--label", "ill", "--data", *files]) == 2
    assert "a folder, or 'DIR/*.csv' in quotes" in capsys.readouterr().err


def test_a_table_without_a_client_column_is_one_owners(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its name holds wildcards. A column called as the file's own name is refused."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{row % 7},{row % 3},{row % 2}\n" for row in range(400))
    file = tmp_path / "rows[1].csv"
    file.write_text("a,b,y\n" + rows)
    asked = ("run", "--data", file.name, "--label", "y", "--classes", "0,1", "--quiet", "--json")
    result = fedveil(*asked, "--output", "run").document
    assert result["guarantee"]["unit"] == "record"
    data = tomllib.loads(Path("run/recipe.toml").read_text())["data"]
    assert (data["file"], data["client_column"]) == (str(file), "file")
    assert fedveil("evaluate", "run", file.name).code == 0
    file.write_text("file,b,y\n" + rows)
    assert "'file'" in fedveil(*asked, "--output", "again").err
    assert not Path("again").exists()
    missing = fedveil("run", "--data", "rose.csv", "--label", "y")
    assert "no such file" in missing.err
