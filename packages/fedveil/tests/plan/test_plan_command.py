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
    saved, picture = tmp_path / "best.toml", tmp_path / "search.png"
    line = ["plan", recipe, "--write", str(saved), "--plot", str(picture), "--json"]
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
    assert picture.read_bytes()[:4] == b"\x89PNG"
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


def test_the_answer_in_words(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveil.cli.plan.extension", lambda group, name: None)
    assert cli.main(["plan", recipe, "--pilot"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "What to run" in out
    assert "looks at no input" in out
    assert "the recipe's own data" in out
    assert "theorem" not in out  # without the laboratory
    assert "sampling, adjacency" not in out  # nobody asked


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


def test_laplace_recipes_are_planned_with_laplace_noise(
    capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    changes = ("training.method=client-noise", "training.sampling=round-robin", "training.rate=1.0",
               "privacy.noise=laplace", "privacy.delta=0.0")  # fmt: skip
    line = [recipe, *(part for change in changes for part in ("--set", change))]
    assert cli.main(["plan", *line, "--feasible", "--trust", "local", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["noise"], said["delta"]) == ("laplace", 0)
    assert [row["noise_multiplier"] for row in said["rows"]] == pytest.approx([0.5, 2, 8], rel=1e-4)


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


def test_a_budget_that_cannot_work_is_said_so_before_any_trial(
    fedveil: Shell, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(ProxyTrials, "__call__", never)
    done = fedveil("plan", recipe, "--set", "privacy.epsilon=0.001")
    assert done.refused
    assert "clients (now 60)" in done.err


def test_a_private_file_is_planned_on_made_up_data(fedveil: Shell, tmp_path: Path) -> None:
    path = tmp_path / "private.toml"
    path.write_text(tomli_w.dumps(recipes.to_table(private_recipe(tmp_path))))
    said = fedveil("plan", path, "--records", "8", "--json").document
    assert said["proxy"] == "synthetic, 8 records a client"
    assert said["looked_at"] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--time", "0"], "--time"),
        (["--time", "nan"], "--time"),
        (["--time", "soon"], "--time"),
        (["--time", "1e-9"], "--time"),
        (["--pilot", "--feasible"], "--pilot"),
        (["--spent-epsilon", "8"], "spent"),
        (["--epsilon", "3"], "--epsilon"),
        (["--set", "training.method=fedavg"], "training.method"),
        (["--set", "training.method=dp-sgd", "--feasible"], "training."),
        (["--set", "privacy.noise_multiplier=2"], "privacy.epsilon"),
        (["--proxy", "nowhere"], "nowhere"),
        (["--proxy", "nowhere.csv"], "nowhere.csv"),
        (["--plot", "picture.txt"], "picture.txt"),
        (["--output", "x"], "--output"),
    ],
)
def test_mistakes_in_one_line(fedveil: Shell, recipe: str, change: list[str], says: str) -> None:
    done = fedveil("plan", recipe, *change)
    assert done.refused
    assert says in done.err


@pytest.mark.parametrize("line", [[], ["--proxy", "digits"], ["nothing.toml"]])
def test_without_a_recipe_it_is_said_what_to_type(fedveil: Shell, line: list[str]) -> None:
    assert fedveil("plan", *line).refused
