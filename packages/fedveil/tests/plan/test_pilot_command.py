"""`fedveil plan --pilot`: what scripts rely on, and one line for every mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.plan.test_proxy import private_recipe

from fedveil import cli
from fedveil.planning import recipe as recipes
from fedveil.tune import pilot
from fedveil.tune.trials import ProxyTrials

RECIPE = """
seed = 1
[data]
source = "synthetic-logistic"
clients = 60
examples_per_client = 8
[training]
sampling = "everyone"
rounds = 8
local_steps = 2
learning_rate = 1.0
[privacy]
epsilon = 8.0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few settings, few seeds: the command is tested here, not how good the search is."""
    monkeypatch.setattr(pilot, "SETTINGS", 12)
    monkeypatch.setattr(pilot, "_FINALISTS", 4)
    monkeypatch.setattr(pilot, "_FINAL_SEEDS", range(10, 14))


@pytest.mark.usefixtures("_short")
def test_a_pilot_from_recipe_to_recipe(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, picture = tmp_path / "best.toml", tmp_path / "pilot.png"
    line = ["plan", recipe, "--pilot", "--time", "9999", "--write", str(saved)]
    assert cli.main([*line, "--plot", str(picture), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    names = [option["name"] for option in said["options"]]
    assert names == ["recommended", "more private", "cheaper"]
    best = said["recommended"]
    assert best == said["options"][0]
    assert 0.6 < best["expected"]["accuracy"] <= 1
    assert best["expected"]["accuracy_spread"] >= 0
    assert said["guarantee"]["epsilon"] <= 8.0
    assert said["proxy"] == "synthetic-logistic (public)"
    assert said["trials"] > 20
    assert picture.read_bytes()[:4] == b"\x89PNG"
    text = saved.read_text()
    assert text.startswith("# Recommended by fedveil plan.\n# Found by ")
    written = recipes.parse(tomllib.loads(text))
    assert written.training.local_steps == best["local_steps"]
    assert written.training.rounds == best["rounds"]
    assert written.privacy.clip_norm == best["clip_norm"]
    assert written.privacy.epsilon == 8.0
    runs = ["run", str(saved), "--output", str(tmp_path / "run"), "--json", "--quiet"]
    assert cli.main(runs) == 0
    real = json.loads(capsys.readouterr().out)
    assert real["accuracy"] == pytest.approx(best["expected"]["accuracy"], abs=0.15)


@pytest.mark.usefixtures("_short")
def test_the_answer_in_words(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", recipe, "--pilot", "--time", "9999"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in (
        "What to run",
        "More private: half of the budget",
        "Cheaper: ",
        "the recipe's own data",
    ):
        assert part in out


@pytest.mark.usefixtures("_short")
def test_what_was_spent_before_is_not_spent_again(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "rest.toml"
    spent = ["--spent-epsilon", "3", "--spent-delta", "1e-6", "--write", str(saved)]
    assert cli.main(["plan", recipe, "--pilot", "--time", "9999", *spent, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recommended"]["epsilon"] == 5.0
    assert said["guarantee"]["epsilon"] <= 5.0
    assert said["guarantee"]["delta"] == pytest.approx(9e-6)
    assert tomllib.loads(saved.read_text())["privacy"]["epsilon"] == 5.0


def test_ctrl_c_prints_the_best_so_far(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, original = [], ProxyTrials.__call__

    def stopped(self: ProxyTrials, *args: object) -> object:
        asked.append(args)
        if len(asked) > 15:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(ProxyTrials, "__call__", stopped)
    assert cli.main(["plan", recipe, "--pilot", "--time", "60"]) == 130
    out = " ".join(capsys.readouterr().out.split())
    assert "Interrupted: this is the best so far" in out
    assert "no time to confirm" in out
    assert len(asked) == 16  # nothing is tried any more


@pytest.mark.usefixtures("_short")
def test_a_journal_saves_all_trials(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = str(tmp_path / "trials.jsonl")
    line = ["plan", recipe, "--pilot", "--time", "9999", "--journal", journal, "--json"]
    assert cli.main(line) == 0
    first = json.loads(capsys.readouterr().out)

    def never(*_: object) -> None:
        raise AssertionError("a known trial was run again")

    monkeypatch.setattr(ProxyTrials, "__call__", never)
    assert cli.main(line) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["options"] == first["options"]
    assert cli.main([*line, "--set", "privacy.epsilon=7"]) == 2
    assert "another recipe" in capsys.readouterr().err


def test_a_budget_that_cannot_work_is_said_so_before_any_trial(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(ProxyTrials, "__call__", never)
    assert cli.main(["plan", recipe, "--pilot", "--set", "privacy.epsilon=0.001"]) == 2
    said = capsys.readouterr()
    assert "this budget cannot work" in said.err
    assert "clients (now 60)" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--time", "0"], "--time"),
        (["--time", "nan"], "--time"),
        (["--time", "soon"], "--time"),
        (["--iterations"], "choose one of --pilot"),
        (["--spent-epsilon", "8"], "already spent"),
        (["--set", "training.method=fedavg"], "adds no noise"),
        (["--set", "privacy.noise_multiplier=2"], "set the budget to plan for"),
        (["--proxy", "nowhere"], "nowhere"),
        (["--proxy", "nowhere.csv"], "no such file"),
        (["--plot", "picture.txt"], "use .png"),
        (["--output", "x"], "used with --tune-on-private-data"),
    ],
)
def test_mistakes_in_one_line(
    recipe: str, capsys: pytest.CaptureFixture[str], change: list[str], says: str
) -> None:
    pilot_or_not = [] if change[0] == "--output" else ["--pilot"]
    assert cli.main(["plan", recipe, *pilot_or_not, *change]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_private_file_needs_a_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = private_recipe(tmp_path)
    import tomli_w

    path = tmp_path / "private.toml"
    path.write_text(tomli_w.dumps(recipes.to_table(private)))
    assert cli.main(["plan", str(path), "--pilot"]) == 2
    assert "is private" in capsys.readouterr().err
