"""docs/extending/local-step.md as its reader follows it: SCAFFOLD and FedDyn from outside."""

from __future__ import annotations

import importlib
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.docs.blocks import blocks_of
from torch import Tensor

import fedveil as fv
from fedveil.cli import main
from fedveil.methods.registry import METHODS

BLOCKS = blocks_of("extending/" + "local-step.md")
NOISE = blocks_of("extending/noise.md")
RATE, STEPS, COHORT, ROUNDS, ALPHA = 0.3, 3, 2, 6, 0.4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of both pages in one folder, as an installed package would have them."""
    folder = tmp_path_factory.mktemp("drift")
    for block in (*BLOCKS, *NOISE):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["fedveil.methods"] | {"block-noise": "block_noise"}
    info = folder / "drift-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: drift\nVersion: 0.1.0\n")
    lines = ["[fedveil.methods]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        for kept in ("_things", "_origins"):  # what the pages register is forgotten afterwards
            patch.setattr(METHODS, kept, dict(getattr(METHODS, kept)))
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        yield folder
    for name in points.values():
        sys.modules.pop(name, None)


def test_the_commands_work_and_the_named_step_is_certified(folder):
    for block in BLOCKS:
        for program, words in block.commands():
            if program == "fedveil":
                assert main(words) == 0, words
    plain, named = (fv.load_run(folder / name).guarantee for name in ("scaffold", "certified"))
    assert not plain.certified
    assert "dp_scaffold:Scaffold" in plain.reason  # what to type
    assert named.certified
    assert any("dp_scaffold:Scaffold" in sentence for sentence in named.rests_on)
    assert named.epsilon == plain.epsilon <= 4
    assert "alpha = 0.2" in (folder / "feddyn" / "recipe.toml").read_text()


def test_a_noise_from_outside_runs_by_name(folder):
    text = (folder / "feddyn.toml").read_text().replace("alpha = 0.5", "factor = 3.0")
    (folder / "noise.toml").write_text(text.replace("dp-feddyn", "block-noise"))
    line = "run noise.toml --output noise --set training.rounds=2"
    trusted = "--set 'privacy.trusted_parts=[\"block_noise:BlockNoise\"]'"
    assert main(shlex.split(f"{line} {trusted}")) == 0
    found = fv.load_run(folder / "noise").guarantee
    assert found.certified


def data() -> fv.Federation:
    """Clients of different sizes that disagree."""
    draw = np.random.default_rng(0)
    owners = np.repeat(np.arange(5), [4, 7, 9, 5, 6])
    inputs = (draw.normal(size=(31, 3)) + 0.5 * owners[:, None]).astype(np.float32)
    labels = (inputs[:, 0] * (owners % 2 - 0.5) > 0.2).astype(int)
    return fv.Federation.from_arrays(inputs, labels, owners=owners, classes=2)


def gradient(weights: Tensor, client: int, federation: fv.Federation) -> Tensor:
    rows = slice(*federation.offsets[client : client + 2])
    inputs = torch.from_numpy(federation.train.inputs[rows]).double()
    targets = torch.from_numpy(federation.train.targets[rows])
    weights = weights.clone().requires_grad_()
    outputs = inputs @ weights[:6].reshape(2, 3).T + weights[6:]
    loss = torch.nn.functional.cross_entropy(outputs, targets)
    return torch.autograd.grad(loss, weights)[0]


Paper = Callable[[Tensor, list[list[int]], fv.Federation], Tensor]


def scaffold(weights: Tensor, cohorts: list[list[int]], federation: fv.Federation) -> Tensor:
    """Algorithm 1 of Karimireddy et al., option II, with its second sum."""
    control, own = torch.zeros(8).double(), torch.zeros(5, 8).double()
    for cohort in cohorts:
        moves, changes = [], []
        for client in cohort:
            y = weights
            for _ in range(STEPS):
                y = y - RATE * (gradient(y, client, federation) - own[client] + control)
            after = own[client] - control + (weights - y) / (STEPS * RATE)
            moves.append(y - weights)
            changes.append(after - own[client])
            own[client] = after
        weights = weights + torch.stack(moves).mean(dim=0)
        control = control + torch.stack(changes).mean(dim=0) * len(cohort) / 5
    return weights


def feddyn(weights: Tensor, cohorts: list[list[int]], federation: fv.Federation) -> Tensor:
    """Algorithm 1 of Acar et al., with gradient steps in place of the exact minimum."""
    h, own = torch.zeros(8).double(), torch.zeros(5, 8).double()
    for cohort in cohorts:
        models = []
        for client in cohort:
            y = weights
            for _ in range(STEPS):
                pull = ALPHA * (y - weights)
                y = y - RATE * (gradient(y, client, federation) - own[client] + pull)
            own[client] -= ALPHA * (y - weights)
            models.append(y)
        h = h - ALPHA / 5 * (torch.stack(models) - weights).sum(dim=0)
        weights = torch.stack(models).mean(dim=0) - h / ALPHA
    return weights


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_without_clip_and_noise_it_is_the_papers_algorithm(folder, name):
    """With random cohorts of two of five clients, so that what clients remember differs in age."""
    module: Any = importlib.import_module(f"dp_{name}")
    paper: Paper = {"scaffold": scaffold, "feddyn": feddyn}[name]
    step: fv.LocalStep
    if name == "scaffold":
        step, optimizer = module.Scaffold(RATE * STEPS, COHORT / 5), fv.Sgd()
    else:
        step, optimizer = module.FedDyn(ALPHA), module.Dynamic(COHORT / 5)
    method = fv.Method(
        name,
        rounds=ROUNDS,
        cohort=fv.CohortRule(fv.Scheme.FIXED, size=COHORT),
        local=fv.LocalTraining(fv.LearningRate(RATE), steps=STEPS, step=step),
        optimizer=optimizer,
    )
    federation, model = data(), torch.nn.Linear(3, 2)
    run = fv.Run(fv.plan(method, federation, model, seed=3))
    start, randomness = run.state.weights.double(), run.randomness
    cohorts = [
        run.plan.sampling.draw(number, randomness.stream("cohort", number)).tolist()
        for number in range(ROUNDS)
    ]
    run.finish()
    assert len({client for cohort in cohorts for client in cohort}) > COHORT
    wanted = paper(start, cohorts, federation)
    torch.testing.assert_close(run.state.weights.double(), wanted, rtol=1e-4, atol=1e-5)


class Forgetful(fv.LocalStep):
    """FedProx: remembers nothing."""

    def correction(self, moved: Tensor, state: Tensor, broadcast: Tensor | None) -> Tensor:
        return 0.5 * moved


class Remembers(Forgetful):
    def after(self, moved: Tensor, state: Tensor, broadcast: Tensor | None, path: Tensor) -> Tensor:
        return state + moved


POISSON, FIXED = fv.CohortRule(rate=0.5), fv.CohortRule(fv.Scheme.FIXED, size=2)
CAPPED = fv.CohortRule(fv.Scheme.CAPPED, rate=0.5, cap=3)
TURNS = fv.CohortRule(fv.Scheme.ROUND_ROBIN, size=2)


@pytest.mark.parametrize(
    ("step", "cohort", "placement", "proved"),
    [
        (Remembers(), POISSON, fv.CentralNoise(), True),
        (Remembers(), TURNS, fv.CentralNoise(), True),
        (Remembers(), TURNS, fv.CorrelatedNoise(), True),
        (Remembers(), FIXED, fv.LocalNoise(), True),  # uploads are seen: no credit is claimed
        (Forgetful(), FIXED, fv.CentralNoise(), True),
        (Remembers(), FIXED, fv.CentralNoise(), False),
        (Remembers(), CAPPED, fv.CentralNoise(), False),
        (Remembers(), POISSON, fv.CorrelatedNoise(), False),
        (Forgetful(), POISSON, fv.GradientNoise(), False),
    ],
)
def test_steps_without_a_proof_are_refused(step, cohort, placement, proved):
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=2, step=step)

    def method():
        pipeline = fv.UpdatePipeline(clip=fv.Clip(1.0))
        return fv.Method("m", 3, cohort, local, pipeline, placement)

    if proved:
        assert method().local.step is step
    else:
        with pytest.raises(fv.PrivacyRefusal, match=type(step).__name__):
            method()
