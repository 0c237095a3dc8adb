"""Terminal, page and JSON say the same: attacker's rate, score, warnings, way to a certificate."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.settings import TUNED
from tests.shell import Shell

from fedveil.cli import main
from fedveil.report.facts import document_of
from fedveil.report.page import page
from fedveil.report.result import TAKEN_BACK
from fedveil.report.scores import NAMES, useless
from fedveil.tune import defaults

SMALL = ["--set", "training.rounds=2", "--set", "data.clients=20"]


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("truth") / "run"
    assert main(["run", *SMALL, "--quiet", "--output", str(path)]) == 0
    return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options for a table in which yes is rare and x tells it."""
    monkeypatch.chdir(tmp_path)
    rows = [f"c{client},{client % 7 + row},{('no', 'yes')[row == 5]}" for client in range(30)
            for row in range(6)]  # fmt: skip
    (tmp_path / "visits.csv").write_text("\n".join(["who,x,y", *rows]) + "\n")
    return ["--data", "visits.csv", "--client-column", "who", "--label", "y", *TUNED]


@pytest.mark.parametrize("seed", [[], ["--seed", "1"]], ids=["certified", "simulated"])
def test_an_attackers_rate_is_the_same_everywhere(
    fedveil: Shell, tmp_path: Path, seed: list[str]
) -> None:
    done = fedveil("run", *SMALL, *seed, "--output", tmp_path / "run", "--json")
    (said,) = re.findall(r"([\d.]+) % certainty", " ".join(done.err.split()))
    document = document_of(tmp_path / "run")
    assert done.document["attack"] == document["attack"]
    assert 0 <= float(said) - 100 * document["attack"]["right_guesses"] < 0.1
    assert f"{said}%" in page([document])


def test_terminal_and_page_lead_with_the_same_score(fedveil: Shell, table: list[str]) -> None:
    """Which is not accuracy where one class is rare."""
    done = fedveil("run", *table, "--seed", "1", "--quiet", "--output", "run")
    first = next(line for line in done.out.splitlines() if "constant:" in line)
    (tile,) = re.findall(
        r'<dl class="tiles main"><div><dt>(.*?)</dt>', page([document_of(Path("run"))])
    )
    assert tile == NAMES["auc"]
    assert first.lstrip("│ ").startswith(tile)


def test_quiet_is_quiet(fedveil: Shell, tmp_path: Path, table: list[str]) -> None:
    """A certified run says nothing; of one that is not, no search for settings is shown."""
    enough = ["--set", "privacy.epsilon=50", "--quiet"]
    assert fedveil("run", *SMALL, *enough, "--output", tmp_path / "a").err == ""
    found = fedveil("run", *table[:6], *enough, "--seed", "1", "--output", tmp_path / "b")
    assert found.code == 0
    assert found.err.startswith("Not certified: ")
    assert " runs, " not in found.err


def test_an_expectation_that_was_wrong_is_not_kept(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That noise drowns the model is a guess before the training, and the scores know better."""
    monkeypatch.setattr("fedveil.planning.plan.Plan.drowned", ("this drowns",))
    learns = ["--seed", "1", "--set", "training.rounds=10", "--set", "privacy.epsilon=50"]
    assert fedveil("run", *learns, "--output", tmp_path / "a", "--json").document["warnings"] == []
    blind = ["--seed", "1", *SMALL, "--set", "training.learning_rate=1e-9"]
    found = fedveil("run", *blind, "--output", tmp_path / "b", "--json").document
    assert found["warnings"][0] == "this drowns"
    assert document_of(tmp_path / "b")["warnings"] == found["warnings"]


def test_a_simulation_names_the_command_that_would_be_certified(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its seed stands in a recipe."""
    monkeypatch.chdir(tmp_path)
    done = fedveil("run", *SMALL, "--seed", "1", "--output", "run", "--json")
    command = done.document["certify"]
    assert command in " ".join(done.err.split())
    assert document_of(Path("run"))["certify"] == command
    again = fedveil("run", "run/recipe.toml", "--output", "again", "--json").document
    assert not again["guarantee"]["certified"]
    for number, one in enumerate((command, again["certify"])):
        program, *words = shlex.split(one)
        assert program == "fedveil"
        found = fedveil(*words, "--output", f"certified-{number}", "--json")
        assert found.document["guarantee"]["certified"]
        assert found.document["certify"] is None
        assert "To certify" not in found.err


def test_a_table_is_certified_after_its_schema_is_confirmed(
    fedveil: Shell, table: list[str], tmp_path: Path
) -> None:
    result = fedveil("run", *table, "--output", "a", "--json").document
    assert not result["guarantee"]["certified"]
    draft, command = result["certify"].splitlines()
    assert fedveil(*shlex.split(draft, comments=True)[1:]).code == 0
    result = fedveil(*shlex.split(command)[1:], "--output", "guessed", "--json").document
    advice, same = result["certify"].splitlines()
    assert "visits.toml" in advice
    assert advice.startswith("#")
    assert same == command
    schema = tmp_path / "visits.toml"
    lines = [line for line in schema.read_text().splitlines() if not line.startswith("guess")]
    schema.write_text("\n".join(lines) + "\n")
    result = fedveil(*shlex.split(command)[1:], "--output", "b", "--json").document
    assert result["guarantee"]["certified"], result["guarantee"]["reason"]
    again = fedveil("run", *table, "--output", "c", "--json").document["certify"].splitlines()
    assert fedveil(*shlex.split(again[0], comments=True)[1:]).code == 0  # beside the first


def test_a_plan_is_of_the_run_that_follows(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs, settings and guarantee, though a plan pays for no statistics; with what it
    writes after a look at the rows, nothing is certified."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = (f"{number:.3f},{number > draw.normal()}\n" for number in draw.normal(size=2000))
    Path("t.csv").write_text("x,y\n" + "".join(rows))
    asked = ("--data", "t.csv", "--label", "y")
    plan = fedveil("plan", *asked, "--write", "r.toml", "--json").document
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.toml", "t.csv"]
    done = fedveil("run", *asked, "--output", "run", "--json").document
    assert done["guarantee"]["certified"]
    for name in ("certified", "epsilon", "rounds"):
        assert plan["guarantee"][name] == done["guarantee"][name]
    assert plan["certify"] is None
    for planned, used in zip(plan["columns"], done["columns"], strict=True):
        assert (planned["column"], planned["kind"]) == (used["column"], used["kind"])
        # Bins follow from votes with noise, and the run draws its own: the standard deviation of
        # their number is 2 of about 30.
        assert abs(planned["inputs"] - used["inputs"]) <= 16
    assert plan["warnings"] == done["warnings"] == []
    written = fedveil("run", "r.toml", "--output", "written", "--json").document
    assert not written["guarantee"]["certified"]


def test_a_warning_that_did_not_come_true_is_taken_back_everywhere(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the terminal, with --json, in result.json and on the page."""
    table = tmp_path / "t.csv"
    draw = np.random.default_rng(0)
    rows = [f"{number:.3f},{number > 0}\n" for number in draw.normal(size=600)]
    table.write_text("x,y\n" + "".join(rows))
    monkeypatch.setattr(defaults, "_too_few", lambda *facts: "do not expect much")
    asked = ("run", "--data", table, "--label", "y", "--seed", "1", "--output")
    printed = fedveil(*asked, tmp_path / "a")
    assert "do not expect much" in printed.err
    assert " ".join(printed.err.split()).count("it is taken back") == 1
    result = fedveil(*asked, tmp_path / "b", "--json").document
    assert result["warnings"] == []
    assert TAKEN_BACK in result["notes"]
    kept = json.loads((tmp_path / "b" / "result.json").read_text())
    assert kept["warnings"] == result["warnings"]
    assert "do not expect much" not in (tmp_path / "b" / "report.html").read_text()


def test_an_uncertified_epsilon_is_never_just_epsilon(fedveil: Shell, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = fedveil("run", *SMALL, "--seed", "1", "--quiet", "--output", run)
    tables = done.out + fedveil("account", run).out
    named = re.findall(r"│ (epsilon\b[^│]*?) *│", tables)
    assert len(named) > 2
    assert all("if this were" in one for one in named)
    assert "<dt>epsilon</dt>" not in page([document_of(run)])


def test_a_recipe_is_accounted_and_calibrated(fedveil: Shell, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[training]\nrounds = 5\n[privacy]\nnoise_multiplier = 2.0\n")
    assert fedveil("account", recipe, "--json").document["noise_multiplier"] == 2.0
    calibrated = fedveil("calibrate", recipe, "--epsilon", "3", "--json").document
    assert 2.99 < calibrated["epsilon"] <= 3
    assert fedveil("account", tmp_path / "none").refused


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


def test_the_banner_says_private_and_useless(certified: Path) -> None:
    file = certified / "result.json"
    kept = file.read_text()
    scores = {"rmse": 9.4, "constant": {"rmse": 0.5}, "clearly_better_than_constant": False}
    changed = {"scores": scores, "warnings": ["noise drowns this <model>"]}
    try:
        file.write_text(json.dumps(json.loads(kept) | changed))
        text = page([document_of(certified)])
    finally:
        file.write_text(kept)
    badges = re.findall(r'<p class="badge [a-z]+">([^<]*)', text)
    assert badges[0] == "Private, and useless: worse than the mean."
    assert badges[-1] == "Warning: noise drowns this &lt;model&gt;"


def test_the_ledger_of_a_run_proves_what_it_promised(fedveil: Shell, certified: Path) -> None:
    promised = json.loads((certified / "guarantee.json").read_text())
    found = fedveil("account", certified, "--json").document
    begun = {
        "rounds_begun": 2,
        "rounds_planned": 2,
        "not_certified_epsilon_of_rounds_begun": promised["epsilon"],
    }
    assert found == promised | begun


def test_recipes_for_different_data_are_not_compared(
    fedveil: Shell, tmp_path: Path, table: list[str]
) -> None:
    (tmp_path / "a.toml").write_text('[data]\nsource = "digits"\n')
    (tmp_path / "b.toml").write_text(
        '[data]\nfile = "visits.csv"\nclient_column = "who"\nlabel = "y"\n'
    )
    done = fedveil("compare", "a.toml", "b.toml")
    assert done.refused
    assert "digits" in done.err
    assert "visits.csv" in done.err
