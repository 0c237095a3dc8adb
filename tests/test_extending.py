"""docs/extending.md as a newcomer follows it: a package of their own, installed and used."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(orchard/[\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))
(SHELL,) = re.findall(r"```sh\n(pip install \./orchard.*?)```", PAGE, re.S)
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("fedveil ")]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of a Gaussian mechanism with sensitivity / std = mu (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(norm.cdf(mu / 2 - epsilon / mu) - tail - delta)

    return float(brentq(excess, 0, 100, xtol=1e-12))


class Newcomer:
    """Somebody with fedveil and an installed `orchard`, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        (folder / "orchard" / "orchard" / "__init__.py").touch()
        self.site = folder / "site"
        self.python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                    "--no-build-isolation", "--target", str(self.site), "./orchard")  # fmt: skip

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, (str(self.site), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
        )

    def fedveil(self, line: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "fedveil", *shlex.split(line)[1:])


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    return Newcomer(tmp_path_factory.mktemp("newcomer"))


def test_the_page_has_all_its_files() -> None:
    assert set(FILES) == {
        "orchard/pyproject.toml",
        "orchard/orchard/dp_fedprox.py",
        "orchard/orchard/stations.py",
        "orchard/orchard.toml",
    }
    assert len(COMMANDS) == 5


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_work(newcomer: Newcomer, line: str) -> None:
    done = newcomer.fedveil(line)
    assert done.returncode == 0, done.stderr
    if " methods " in line:  # the page of the method, and its own key
        assert "The pull acts before the clip" in done.stdout
        assert "method.pull: a number, 0.1 by default" in done.stdout


def test_the_guarantee_is_the_closed_form(newcomer: Newcomer) -> None:
    done = newcomer.fedveil("fedveil run orchard/orchard.toml --json --output found")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    truth = gaussian_epsilon(math.sqrt(12) / 4.0, 1e-5)
    assert f"a closed form: {truth:.3f}." in PAGE
    # An upper bound, and no looser than its printed digits show.
    assert truth <= result["guarantee"]["epsilon"] <= truth * (1 + 1e-4)
    assert result["method"] == "dp-fedprox"
    assert result["accuracy"] > 0.7  # always rain: 0.5
    assert "pull = 0.2" in (newcomer.folder / "found" / "recipe.toml").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.pul=0.2", "it has pull"),
        ("method.pull=soft", "must be a number"),
        ("method.pull=-1.0", "zero or positive"),
        ("training.sparsity=0.5", "dp-fedprox does not use it"),
        ("training.method=dp-fedprx", "did you mean 'dp-fedprox'?"),
        ("data.source=station", "did you mean 'stations'?"),
    ],
)
def test_mistakes_are_one_line(newcomer: Newcomer, change: str, said: str) -> None:
    done = newcomer.fedveil(f"fedveil run orchard/orchard.toml --set {change}")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert said in done.stderr
