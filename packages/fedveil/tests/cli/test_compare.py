"""`fedveil compare` and `fedveil methods` as a user meets them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.paths import SOURCES

from fedveil.cli import main
from fedveil.methods.registry import METHODS

RECIPES = SOURCES[0] / "fedveil" / "methods" / "recipes"
SMALL = ["--set", "training.rounds=2", "--set", "data.clients=20"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Commands in this process: importing everything once is enough."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str | Path) -> Done:
        code = main([str(argument) for argument in arguments])
        shown = self._capture.readouterr()
        return Done(code, shown.out, shown.err)


@pytest.fixture
def fedveil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


def compare(fedveil: Shell, *more: str) -> Done:
    names = [RECIPES / f"{name}.toml" for name in ("dp-fedavg", "dp-sgd", "fedavg")]
    return fedveil("compare", *names, *SMALL, *more)


def test_contenders_meet_at_equal_epsilon_and_delta(fedveil: Shell, tmp_path: Path) -> None:
    done = compare(fedveil, "--seeds", "2", "--epsilon", "2,8", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {(row["recipe"], row["epsilon"]): row for row in document["rows"]}
    assert set(rows) == {
        *((name, epsilon) for name in ("dp-fedavg", "dp-sgd") for epsilon in (2.0, 8.0)),
        ("fedavg", None),
    }
    for (name, epsilon), row in rows.items():
        assert row["runs"] == 2
        assert 0 <= row["mean"] <= 1
        if name == "fedavg":
            assert row["guarantee"] is None
            continue
        assert 0.99 * epsilon < row["guarantee"]["epsilon"] <= epsilon
        assert row["guarantee"]["delta"] == document["delta"]
    assert any("record" in line for line in document["promises_differ"])
    assert (tmp_path / document["picture"]).read_bytes().startswith(b"\x89PNG")


def test_finished_runs_are_not_run_again(fedveil: Shell) -> None:
    first = compare(fedveil, "--seeds", "1", "--epsilon", "8")
    assert "run 3/3" in first.stderr
    again = compare(fedveil, "--seeds", "1", "--epsilon", "8")
    assert "run 1/" not in again.stderr
    assert again.stdout == first.stdout
    more = compare(fedveil, "--seeds", "2", "--epsilon", "8")
    assert "run 3/3" in more.stderr  # the second seed alone
    changed = compare(fedveil, "--seeds", "1", "--epsilon", "8", "--set", "training.rounds=3")
    assert "run 3/3" in changed.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--epsilon", "1,x"], "1,x"),
        (["--epsilon", "0"], "positive"),
        (["--seeds", "0"], "--seeds"),
        (["--set", "training.roundz=1"], "training.rounds"),
        (["missing.toml"], "missing.toml"),
        ([str(RECIPES / "fedavg.toml")], "give each once"),
    ],
)
def test_bad_input_is_one_line(fedveil: Shell, options: list[str], named: str) -> None:
    done = fedveil("compare", RECIPES / "fedavg.toml", *options)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert named in done.stderr


def test_methods_say_what_they_guarantee_to_whom(fedveil: Shell) -> None:
    done = fedveil("methods", "--json")
    documents = json.loads(done.stdout)["methods"]
    assert [document["name"] for document in documents] == list(METHODS)
    for document in documents:
        assert document["private"] == (document["towards"] != "nobody")
        assert Path(document["recipe"]).is_file()
    shown = fedveil("methods")
    assert all(name in shown.stdout for name in METHODS)
    assert fedveil("methods", "magic").returncode == 2
