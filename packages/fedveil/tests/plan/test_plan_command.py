"""`fedveil plan RECIPE`: what scripts rely on, and one line for every mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w
from tests.plan.test_proxy import private_recipe
from tests.shell import Shell

from fedveil import cli
from fedveil.planning import recipe as recipes
from fedveil.tune import advice
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


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little effort: the command is tested here, not how good the search is."""
    monkeypatch.setattr(advice, "EFFORT", 1_000.0)
    monkeypatch.setattr(advice, "PILOT", 1_500.0)


def test_from_recipe_to_recipe(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "best.toml"
    line = ["plan", recipe, "--write", str(saved), "--json"]
    assert cli.main(line) == 0
    out = capsys.readouterr()
    said = json.loads(out.out)
    assert "runs" in out.err  # progress
    best = said["recommended"]
    assert best == said["options"][0]
    assert 0.6 < best["expected"]["accuracy"] <= 1
    assert best["expected"]["accuracy"] > 1 - said["trivial"]
    assert said["guarantee"]["epsilon"] <= 8.0
    assert said["proxy"] == "synthetic-logistic (public)"
    assert [row["rounds"] for row in said["rows"] if row["trust"] == "local"] == [2, 8, 32]
    assert len(said["theorem"]["times_worse"]) == len(said["options"])
    text = saved.read_text()
    assert text.startswith("# Recommended by fedveil plan.\n# Found by ")
    written = recipes.parse(tomllib.loads(text))
    assert written.training.local_steps == best["local_steps"]
    assert written.training.rounds == best["rounds"]
    assert written.privacy.clip_norm == best["clip_norm"]
    assert written.privacy.epsilon == 8.0
    assert written.privacy.tuned_on == ("synthetic-logistic",)
    runs = ["run", str(saved), "--output", str(tmp_path / "run"), "--json", "--quiet"]
    assert cli.main(runs) == 0
    real = json.loads(capsys.readouterr().out)
    assert real["accuracy"] == pytest.approx(best["expected"]["accuracy"], abs=0.15)
    assert cli.main(line) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["options"] == said["options"]  # a public seed decides, and no clock


def test_what_was_spent_before_is_not_spent_again(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "rest.toml"
    spent = ["--spent-epsilon", "3", "--spent-delta", "1e-6", "--write", str(saved)]
    assert cli.main(["plan", recipe, *spent, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["recommended"]["epsilon"] == said["epsilon"] == 5.0
    assert said["guarantee"]["epsilon"] <= 5.0
    assert said["guarantee"]["delta"] == said["delta"] == pytest.approx(9e-6)
    assert tomllib.loads(saved.read_text())["privacy"]["epsilon"] == 5.0
    assert cli.main(["plan", recipe, *spent[:4], "--feasible", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == said["rows"]


def test_options_change_the_recipe_as_they_do_in_run(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", recipe, "--feasible", "--epsilon", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 2.0


def test_ctrl_c_prints_the_best_so_far(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, original = [], ProxyTrials.__call__

    def stopped(self: ProxyTrials, *args: object) -> object:
        asked.append(args)
        if len(asked) > 5:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(ProxyTrials, "__call__", stopped)
    assert cli.main(["plan", recipe, "--pilot", "--json"]) == 130
    said = json.loads(capsys.readouterr().out)
    assert said["interrupted"]
    assert not said["recommended"]["expected"]["fresh"]
    assert said["warnings"]
    assert len(asked) == 6  # nothing is tried any more


def test_a_private_file_is_planned_on_made_up_data(fedveil: Shell, tmp_path: Path) -> None:
    path = tmp_path / "private.toml"
    path.write_text(tomli_w.dumps(recipes.to_table(private_recipe(tmp_path))))
    said = fedveil("plan", path, "--records", "8", "--json").document
    assert said["proxy"] == "synthetic, 8 records a client"
    assert said["looked_at"] == []
