"""Terminal, page and JSON say the same: attacker's rate, score, warnings, way to a certificate."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.settings import TUNED

from fedveil.cli import main
from fedveil.cli.report import document_of
from fedveil.report.page import page
from fedveil.report.scores import useless

Capture = pytest.CaptureFixture[str]
SMALL = ["--set", "training.rounds=2", "--set", "data.clients=20"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"c{client},{client % 7 + row},{('no', 'yes')[row % 2]}" for client in range(30)
            for row in range(6)]  # fmt: skip
    file = tmp_path / "visits.csv"
    file.write_text("\n".join(["who,x,y", *rows]) + "\n")
    return file


def run(capsys: Capture, *words: str) -> tuple[dict[str, Any], str]:
    assert main(["run", *words, "--json"]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_terminal_and_page_give_the_attacker_the_same_rate(tmp_path: Path, capsys: Capture) -> None:
    _, terminal = run(capsys, *SMALL, "--output", str(tmp_path / "run"))
    (said,) = re.findall(r"([\d.]+) % certainty", " ".join(terminal.split()))
    document = document_of(tmp_path / "run")
    assert float(said) >= 100 * document["attack"]["right_guesses"] - 0.05
    assert f"{said}%" in page([document])


def test_a_simulation_names_the_command_that_would_be_certified(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result, terminal = run(capsys, *SMALL, "--seed", "1", "--output", "run")
    command = result["certify"]
    assert command in " ".join(terminal.split())
    assert document_of(Path("run"))["certify"] == command
    program, name, *words = shlex.split(command)
    assert (program, name) == ("fedveil", "run")
    again, terminal = run(capsys, *words)
    assert again["guarantee"]["certified"]
    assert again["certify"] is None
    assert "To certify" not in terminal


def test_a_seed_in_a_recipe_is_taken_out_by_the_command(tmp_path: Path, capsys: Capture) -> None:
    result, _ = run(capsys, *SMALL, "--seed", "1", "--output", str(tmp_path / "a"))
    recipe = str(tmp_path / "a" / "recipe.toml")
    result, _ = run(capsys, recipe, "--output", str(tmp_path / "b"))
    assert not result["guarantee"]["certified"]
    result, _ = run(capsys, *shlex.split(result["certify"])[2:], "--output", str(tmp_path / "c"))
    assert result["guarantee"]["certified"]


def test_a_table_is_certified_after_its_schema_is_confirmed(
    table: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data", str(table), "--client-column", "who", "--label", "y", *TUNED]
    result, _ = run(capsys, *words, "--output", "a")
    assert not result["guarantee"]["certified"]
    draft, command = result["certify"].splitlines()
    assert main(shlex.split(draft, comments=True)[1:]) == 0
    capsys.readouterr()
    schema = tmp_path / "visits.toml"
    lines = [line for line in schema.read_text().splitlines() if not line.startswith("guess")]
    schema.write_text("\n".join(lines) + "\n")
    result, _ = run(capsys, *shlex.split(command)[2:], "--output", "b")
    assert result["guarantee"]["certified"], result["guarantee"]["reason"]


def test_an_uncertified_epsilon_is_never_just_epsilon(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", *SMALL, "--seed", "1", "--quiet", "--output", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"epsilon, if this were\s+certified|epsilon, if this were certified", shown)
    assert "<dt>epsilon</dt>" not in page([document_of(tmp_path / "run")])


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ({"rmse": 9.4, "constant": {"rmse": 0.48}}, "worse than the mean"),
        ({"rmse": 0.4, "constant": {"rmse": 0.48}}, ""),
        (
            {"accuracy": 0.4, "log_loss": 2.0, "constant": {"accuracy": 0.6, "log_loss": 0.7}},
            "worse than the majority class",
        ),
        ({"accuracy": 0.4, "log_loss": 0.5, "constant": {"accuracy": 0.6, "log_loss": 0.7}}, ""),
        (None, ""),
    ],
)
def test_a_model_worse_than_a_constant_is_called_useless(scores: Any, verdict: str) -> None:
    assert useless(scores) == verdict
    assert useless({**(scores or {}), "clearly_better_than_constant": True}) == ""


def test_the_banner_says_private_and_useless(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "run"
    run(capsys, *SMALL, "--output", str(path))
    result = json.loads((path / "result.json").read_text())
    scores = {"rmse": 9.4, "constant": {"rmse": 0.5}, "clearly_better_than_constant": False}
    result |= {"scores": scores, "warnings": ["noise drowns this <model>"]}
    (path / "result.json").write_text(json.dumps(result))
    text = page([document_of(path)])
    badges = re.findall(r'<p class="badge [a-z]+">([^<]*)', text)
    assert badges[0] == "Private, and useless: worse than the mean."
    assert badges[-1] == "Warning: noise drowns this &lt;model&gt;"


def test_recipes_for_different_data_are_not_compared(
    tmp_path: Path, capsys: Capture, table: Path
) -> None:
    (tmp_path / "a.toml").write_text('[data]\nsource = "digits"\n')
    (tmp_path / "b.toml").write_text(
        f'[data]\nfile = "{table}"\nclient_column = "who"\nlabel = "y"\n'
    )
    files = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    assert main(["compare", *files, "--output", str(tmp_path / "out")]) == 2
    assert "digits" in (error := capsys.readouterr().err)
    assert "visits.csv" in error
