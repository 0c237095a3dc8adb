"""The page on adding an engine, run from outside the package; and engines that are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.engines import choose as choosing
from fedveil.engines.batched import RowEngine
from fedveil.engines.choose import ENGINES, build_engine
from fedveil.engines.contract import Engine, Job, RoundSum
from fedveil.engines.contract_suite import ContractBroken, check_engine
from fedveil.engines.registry import OUTSIDE, engine

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "engine.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def outside(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_runs_from_outside_the_package(tmp_path: Path) -> None:
    file, check, use = blocks("python")
    (tmp_path / "lab_engines.py").write_text(file, encoding="utf-8")
    done = outside(tmp_path, f"{check}\n{use}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["27 jobs", "pieces 2 rounds"]


def test_an_installed_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    file, _, use = blocks("python")
    (tmp_path / "lab_engines.py").write_text(file, encoding="utf-8")
    about = tmp_path / "lab_engines-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-engines\nVersion: 1.0\n")
    section = blocks("toml")[0]
    name, value = re.search(r'(\w+) = "(.*)"', section.splitlines()[1]).groups()
    (about / "entry_points.txt").write_text(f"[fedveil.engines]\n{name} = {value}\n")
    done = outside(tmp_path, use)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "pieces 2 rounds\n"


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("auto", "processes")])
def test_the_packages_own_engines_keep_the_contract(name: str) -> None:
    assert check_engine(name) >= 9


class Wrong(RowEngine):
    """The sequential engine with one thing changed."""

    def round_sum(self, weights, cohort, *args, **kwargs) -> RoundSum:  # type: ignore[no-untyped-def, override]
        found = super().round_sum(weights, cohort, *args, **kwargs)
        return WRONG[self.name](found)


WRONG = {
    "a little more": lambda found: replace(found, total=found.total * 1.01),
    "backwards": lambda found: replace(found, losses=found.losses.flip(0)),
    "floats": lambda found: replace(found, total=found.total.float()),
    "not finite": lambda found: replace(
        found, total=found.total / (0.0 if found.rejected else 1.0)
    ),
    "narrow": lambda found: replace(found, norms=found.norms[:1]),
}


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(OUTSIDE._things)
    yield
    for name in set(OUTSIDE._things) - set(before):
        del OUTSIDE._things[name], OUTSIDE._origins[name]


class Deaf(RowEngine):
    """Shapes updates as the job says, whatever its round says."""

    def round_sum(self, weights, cohort, round_number, pipeline=None, take=None) -> RoundSum:  # type: ignore[no-untyped-def, override]
        return super().round_sum(weights, cohort, round_number, None, take)


@pytest.mark.usefixtures("registered")
def test_the_suite_notices_an_engine_that_ignores_the_clip_of_a_round() -> None:
    @engine("deaf")
    def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
        right = choosing._together(job, "sequential", chunk, device, "")
        assert isinstance(right, RowEngine)
        return Deaf("deaf", job, right.gradients, 1, device, draws=True)

    with pytest.raises(ContractBroken, match=r"'deaf'.*exceeds the round's own clip"):
        check_engine("deaf")


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", WRONG)
def test_the_suite_notices_what_is_wrong(name: str) -> None:
    @engine(name)
    def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
        right = choosing._together(job, "sequential", chunk, device, "")
        assert isinstance(right, RowEngine)
        return Wrong(name, job, right.gradients, 1, device, draws=True)

    with pytest.raises(ContractBroken, match=name):
        check_engine(name)


@pytest.mark.usefixtures("registered")
def test_an_unknown_name_and_an_obstacle_are_said_in_one_line() -> None:
    from .jobs import RULES, SHAPINGS, make_job

    @engine("picky", why_not=lambda job, device: "it likes nothing")
    def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
        raise AssertionError

    job = make_job("mlp", RULES["momentum"], SHAPINGS["clip"])
    with pytest.raises(ConfigError, match="'picky' cannot run this: it likes nothing"):
        build_engine(job, "picky")
    with pytest.raises(ConfigError, match="unknown engine 'sequentiall'; did you mean"):
        build_engine(job, "sequentiall")
    with pytest.raises(ContractBroken, match="supports none"):
        check_engine("picky")
