"""`fedveil account` and `calibrate` on runs and recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedveil.cli import main

SMALL = ["--set", "training.rounds=4", "--set", "data.clients=30", "--quiet"]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["run", *SMALL, "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


BEGUN = ("rounds_begun", "rounds_planned", "not_certified_epsilon_of_rounds_begun")


def test_the_ledger_of_a_run_proves_what_it_promised(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promised = json.loads((run / "guarantee.json").read_text())
    found = asked(capsys, "account", str(run))
    assert [found.pop(name) for name in BEGUN] == [4, 4, promised["epsilon"]]
    assert found == promised


@pytest.mark.parametrize("name", ["ledger.jsonl", "guarantee.json"])
def test_a_damaged_file_is_one_line(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text("{nonsense\n")
    assert main(["account", str(run)]) == 2
    assert name.split(".")[0] in capsys.readouterr().err


def test_a_recipe_is_accounted_and_calibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[training]\nrounds = 5\n[privacy]\nnoise_multiplier = 2.0\n")
    accounted = asked(capsys, "account", str(recipe))
    assert accounted["noise_multiplier"] == 2.0
    calibrated = asked(capsys, "calibrate", str(recipe), "--epsilon", "3")
    assert 2.99 < calibrated["epsilon"] <= 3
    assert main(["account", str(tmp_path / "none")]) == 2
