"""`fedveil data`: what a person or a script gets to see."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from fedveil.cli import data
from fedveil.core.errors import ConfigError
from fedveil.data.sources import SOURCES


def call(*arguments):
    parser = argparse.ArgumentParser()
    data.configure(parser)
    parser.add_argument("--json", action="store_true")
    return data.execute(parser.parse_args(arguments))


@pytest.fixture(autouse=True)
def _no_data(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_list_names_every_source_with_its_licence_and_whether_it_is_here(capsys):
    assert call("list", "--json") == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["sources"]}
    assert set(SOURCES) < set(entries)
    for entry in entries.values():
        assert entry["licence"]
        assert entry["what"]
        assert entry["clients"] > 0
        assert entry["examples"] > 0
    assert entries["digits"]["available"] is True
    assert entries["synthetic-linear"]["available"] is True
    assert entries["cifar10"]["available"] is False
    assert call("list") == 0
    assert "lending-club" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*SOURCES, "synthetic-logistic"])
def test_every_source_can_be_shown(capsys, name):
    assert call("show", name, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == name
    for file in shown.get("files", []):
        assert file["url"] or file["digests"] or shown["advice"]
    assert call("show", name) == 0
    assert shown["licence"] in capsys.readouterr().out


def test_what_is_here_is_measured(capsys):
    call("show", "digits", "--json")
    loaded = json.loads(capsys.readouterr().out)["loaded"]
    assert (loaded["clients"], loaded["train"], loaded["test"]) == (100, 1438, 359)


def test_a_schema_is_printed_or_written_to_a_new_file(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("who,x,y\n1,2,a\n1,3,b\n")
    call("schema", str(table), "--label", "y")
    assert '[columns."y"]  # the label' in capsys.readouterr().out
    call("schema", str(table), "--json")
    assert json.loads(capsys.readouterr().out)["schema"].count("[columns.") == 3
    call("schema", str(table), "--output", str(tmp_path / "s.toml"))
    assert (tmp_path / "s.toml").read_text().count("[columns.") == 3
    with pytest.raises(ConfigError, match="exists already"):
        call("schema", str(table), "--output", str(tmp_path / "s.toml"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show",), "name a data set"),
        (("schema",), "name a file"),
        (("show", "minst"), "did you mean 'mnist'?"),
        (("schema", "nowhere.csv"), "nowhere.csv: no such file"),
    ],
)
def test_wrong_calls_are_refused(arguments, says):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    assert says in str(caught.value)


def test_data_never_need_torch():
    code = "import sys, fedveil.cli.data, fedveil.data.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
