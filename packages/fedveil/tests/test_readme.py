"""What the README says, run."""

from __future__ import annotations

import random
import re
import runpy
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model
from tests.docs.blocks import search_less
from tests.paths import ROOT

import fedveil as fv
from fedveil.cli import main
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of

README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


def test_the_python_example_trains(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(block("python"), "README.md", "exec"), scope)
    assert "epsilon 4" in capsys.readouterr().out
    assert scope["run"].evaluate().accuracy > 0.8
    fresh = fv.build("logistic", scope["federation"])
    load_model(fresh, tmp_path / "model.safetensors")
    for loaded, trained in zip(fresh.parameters(), scope["model"].parameters(), strict=True):
        assert torch.equal(loaded, trained)


def test_the_recipe_example_can_be_planned() -> None:
    recipe = recipes.with_defaults(recipes.parse(tomllib.loads(block("toml"))))
    plan = plan_of(recipe, federation_of(recipe.data))
    assert plan.guarantee is not None
    assert 7.9 < plan.guarantee.epsilon <= 8


@pytest.mark.parametrize(
    "line", re.findall(r"^    (fedveil (?:account|calibrate) --.*)$", README, re.MULTILINE)
)
def test_the_commands_answer(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)[1:]) == 0
    assert "epsilon" in capsys.readouterr().out


def test_the_commands_for_your_own_data_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned, described, trained, with the very commands of the section, in its order."""
    monkeypatch.chdir(tmp_path)
    search_less(monkeypatch)
    draw = random.Random(1)
    lines = ["state,income,purpose,grade"]
    for _ in range(900):
        income, purpose = draw.gauss(50, 10), draw.choice(["car", "house"])
        grade = "A" if income + 10 * (purpose == "car") > 55 else "B"
        lines.append(f"S{draw.randrange(40)},{income:.1f},{purpose},{grade}")
    Path("loans.csv").write_text("\n".join(lines) + "\n")
    section = README.split("## Your own data")[1].split("\n## ")[0]
    commands = re.findall(r"^    \.venv/bin/fedveil (.*)$", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["plan", "data", "run"]
    for command in commands:
        assert main(shlex.split(command)) == 0, command
    printed = capsys.readouterr()
    assert "balanced accuracy" in printed.out
    assert printed.err.count("Settings: ") == 2  # of the plan and of the run
    assert "guess = true" in Path("loans.toml").read_text()
    model = fv.load_run("loans")
    frame = {"income": [80.0, 20.0], "purpose": ["car", "house"]}
    assert model.predict(frame).tolist() == ["A", "B"]


def test_every_document_that_is_linked_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_on_recipes_is_up_to_date() -> None:
    """If this fails: python docs/recipes_page.py"""
    scope = runpy.run_path(str(ROOT / "docs" / "recipes_page.py"))
    assert (ROOT / "docs" / "recipes.md").read_text() == scope["page"]()
