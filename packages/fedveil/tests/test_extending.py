"""docs/extending.md as a newcomer follows it: a package of their own, installed and used."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from tests.docs.blocks import blocks_of
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(orchard/[\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))
(SHELL,) = re.findall(r"```sh\n(pip install \./orchard.*?)```", PAGE, re.S)
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("fedveil ")]
RUN = "fedveil run orchard/orchard.toml"
JSON_RUN = f"{RUN} --json --output found"
BLOCKS_RUN = f"{RUN} --json --set training.sampling=blocks --set training.cohort=20"
MISTAKES = {
    "method.pul=0.2": "it has pull",
    "method.pull=soft": "must be a number",
    "method.pull=-1.0": "zero or positive",
    "training.sparsity=0.5": "dp-fedprox does not use it",
    "training.method=dp-fedprx": "did you mean 'dp-fedprox'?",
    "data.source=station": "did you mean 'stations'?",
    "server.optimizer=sign": "did you mean 'signs'?",
    "server.schedule_setting=0": "goes with server.schedule",
    "training.sampling=block": "did you mean 'blocks'?",
    "model.features=square": "did you mean 'squares'?",
}
# One process for all commands: most of the time would go into starting them.
DRIVER = """
import contextlib, io, json, shlex, sys
from fedveil.cli import console, main

done = {}
for line in json.load(sys.stdin):
    console.stdout.cache_clear()
    console.stderr.cache_clear()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(
        io.StringIO()
    ) as err:
        code = main(shlex.split(line)[1:])
    done[line] = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
json.dump(done, sys.stdout)
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's files are, and where its package is installed, `site`."""
    folder = tmp_path_factory.mktemp("newcomer")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "orchard" / "orchard" / "__init__.py").touch()
    install = ["pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    words = [sys.executable, "-m", *install, "--target", "site", "./orchard"]
    subprocess.run(words, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    """What every command said, for somebody who has installed the package."""
    lines = [*COMMANDS, JSON_RUN, BLOCKS_RUN, *(f"{RUN} --set {change}" for change in MISTAKES)]
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
        input=json.dumps(lines),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return {line: Done(**said) for line, said in json.loads(result.stdout).items()}


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of a Gaussian mechanism with sensitivity / std = mu (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - tail - delta)

    return float(brentq(excess, 0, 100, xtol=1e-12))


def test_the_page_has_all_its_files() -> None:
    assert set(FILES) == {
        "orchard/pyproject.toml",
        "orchard/orchard/dp_fedprox.py",
        "orchard/orchard/stations.py",
        "orchard/orchard/tanh_net.py",
        "orchard/orchard/parts.py",
        "orchard/orchard.toml",
    }
    assert len(COMMANDS) == 10


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_work(done: dict[str, Done], line: str) -> None:
    assert done[line].code == 0, done[line].err
    if " methods " in line:  # the page of the method, and its own key
        assert "The pull acts before the clip" in done[line].out
        assert "method.pull: a number, 0.1 by default" in done[line].out


def test_the_guarantee_is_the_closed_form(done: dict[str, Done], folder: Path) -> None:
    result = json.loads(done[JSON_RUN].out)
    truth = gaussian_epsilon(math.sqrt(12) / 4.0, 1e-5)
    assert f"a closed form: {truth:.3f}." in PAGE
    # An upper bound, and no looser than its printed digits show.
    assert truth <= result["guarantee"]["epsilon"] <= truth * (1 + 1e-4)
    assert result["method"] == "dp-fedprox"
    assert result["accuracy"] > 0.7  # always rain: about a half
    assert "pull = 0.2" in (folder / "found" / "recipe.toml").read_text()


def test_a_schedule_from_outside_is_charged_by_its_participations(done: dict[str, Done]) -> None:
    """Six cohorts of 20 out of 60, each for two rounds: four participations of one client."""
    epsilon = json.loads(done[BLOCKS_RUN].out)["guarantee"]["epsilon"]
    truth = gaussian_epsilon(math.sqrt(4) / 4.0, 1e-5)
    assert truth <= epsilon <= truth * (1 + 1e-4)


def test_a_clip_rule_runs_and_is_not_certified_unnamed() -> None:
    (block,) = (one.text for one in blocks_of("extending.md") if "fv.ClipRule" in one.text)
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "extending.md", "exec", dont_inherit=True), scope)
    assert scope["run"].state.rounds == 3
    assert not scope["plan"].guarantee.certified


@pytest.mark.parametrize("change", MISTAKES)
def test_mistakes_are_one_line(done: dict[str, Done], change: str) -> None:
    said = done[f"{RUN} --set {change}"]
    assert said.code == 2
    assert len(said.err.strip().splitlines()) == 1
    assert MISTAKES[change] in said.err
