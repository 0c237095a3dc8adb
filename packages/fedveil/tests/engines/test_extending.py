"""The page on adding an engine, run from outside the package; and engines that are wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.methods.reference import federation
from tests.paths import ROOT

from fedveil.core.errors import ConfigError
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.planning.plan import Budget, Plan, plan
from fedveil.privacy.clipping import Clip
from fedveil.privacy.ledger import read
from fedveil.run.aggregator import OpenAggregator
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run, Speed, job_of
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import Block
from fedveil.training.engines import choose as choosing
from fedveil.training.engines.batched import RowEngine
from fedveil.training.engines.choose import ENGINES, build_engine
from fedveil.training.engines.contract import Engine, Job, RoundRequest, summed
from fedveil.training.engines.contract_suite import ContractBroken, check_engine
from fedveil.training.engines.registry import OUTSIDE, engine
from fedveil.training.models.zoo import build as build_model

PAGE = ROOT / "docs" / "extending" / "engine.md"


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
    assert done.stdout.splitlines() == ["40 jobs", "pieces 2 rounds"]


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("auto", "processes")])
def test_the_packages_own_engines_keep_the_contract(name: str) -> None:
    assert check_engine(name) >= 9


class Wrong(RowEngine):
    """The sequential engine with one thing changed."""

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        yield WRONG[self.name](summed(super(), self.job, request))


WRONG = {
    "a little more": lambda found: replace(found, updates=found.total * 1.01),
    "backwards": lambda found: replace(found, losses=found.losses.flip(0)),
    "floats": lambda found: replace(found, updates=found.total.float()),
    "not finite": lambda found: replace(
        found, updates=found.total / (0.0 if found.rejected else 1.0)
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

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        return super().updates(replace(request, pipeline=None))


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


def certified_plan() -> Plan:
    data = federation(2, (6,) * 4)
    method = dp_fedavg(
        rounds=1,
        cohort=CohortRule(Scheme.EVERYONE),
        local=LocalTraining(LearningRate(0.1), steps=1),
        clip=Clip(1.0),
    )
    made = plan(method, data, build_model("logistic", data), budget=Budget(epsilon=4.0))
    assert made.guarantee is not None
    assert made.guarantee.certified
    return made


class Unclipped:
    """Sends what it likes: a million grid steps in every coordinate."""

    name = "unclipped"

    def __init__(self, job: Job) -> None:
        self._size = job.layout.size

    def updates(self, request: RoundRequest) -> Iterator[Block]:
        none, everybody = torch.zeros(len(request.cohort)), np.arange(len(request.cohort))
        yield Block(everybody, torch.full((self._size,), 10**6), none, none, none)

    def close(self) -> None:
        """Nothing to release."""


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("given", [False, True])
def test_an_engine_from_outside_certifies_nothing(given: bool, tmp_path: Path) -> None:
    """Nothing clips what it sends, and the plan's epsilon rests on the clip."""
    made = certified_plan()

    @engine("unclipped")
    def build(job: Job, chunk: int | None, device: torch.device) -> Engine:
        return Unclipped(job)

    if given:
        run = Run(made, engine=Unclipped(job_of(made, made.randomness)))
    else:
        run = Run(made, speed=Speed(engine="unclipped"))
    with pytest.raises(ConfigError, match="another plan"):
        run.keep_in(RunDirectory.create(tmp_path / "promised", made, {}))
    run.keep_in(RunDirectory.create(tmp_path / "run", run.plan, {}))
    run.finish()
    why = "was made outside the run" if given else "is none of fedveil's own parts"
    for guarantee in (run.guarantee, read(tmp_path / "run" / "ledger.jsonl").guarantee()):
        assert guarantee is not None
        assert not guarantee.certified
        assert f"Engine 'unclipped' {why}" in guarantee.reason


def test_an_aggregator_from_outside_certifies_nothing() -> None:
    class Noiseless(OpenAggregator):
        pass

    for aggregator in (OpenAggregator(None), Noiseless(None)):
        guarantee = Run(certified_plan(), aggregator=aggregator).guarantee
        assert guarantee is not None
        assert not guarantee.certified
