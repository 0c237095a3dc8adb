"""Averages of weights: against sums over all rounds, on whole runs, and after a crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run
from fedveil.training.models.flat import flatten

ROUNDS = 7


def recipe(*more: str, seed: int | None = 5) -> Recipe:
    settings = ["data.clients=20", f"training.rounds={ROUNDS}", "server.momentum=0.5", *more]
    return recipes.with_defaults(
        recipes.parse({}, settings, {} if seed is None else {"seed": seed})
    )


def weights_of_rounds(kind: str, setting: float) -> list[float]:
    """How much round t counts, written out."""
    rounds = range(1, ROUNDS + 1)
    if kind == "exponential":
        return [setting ** (ROUNDS - t) for t in rounds]
    if kind == "tail":
        return [float(t > ROUNDS * (1 - setting)) for t in rounds]
    # t^power, with rising factorials for powers: t (t + 1) ... (t + power - 1)
    return [torch.tensor([t + i for i in range(int(setting))]).prod().item() for t in rounds]


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("exponential", 0.6), ("tail", 0.5), ("tail", 1.0), ("polynomial", 0.0), ("polynomial", 3.0)],
)
def test_what_is_released_is_the_weighted_mean_of_all_rounds(kind, setting):
    plain = recipe()
    run = Run(plan_of(plain, federation_of(plain.data)))
    iterates = [run.state.weights.double() for _ in run]
    counts = weights_of_rounds(kind, setting)
    wanted = sum(c * w for c, w in zip(counts, iterates, strict=True)) / sum(counts)

    averaged = recipe(f"server.average={kind}", f"server.average_setting={setting}")
    other = Run(plan_of(averaged, federation_of(averaged.data)))
    metrics = other.finish()
    assert torch.equal(other.state.weights, run.state.weights)  # rounds go on from the last ones
    scale = wanted.abs().max()
    assert (other.weights.double() - wanted).abs().max() < ROUNDS * 2**-22 * scale
    assert torch.equal(flatten(other.model()), other.weights)
    assert metrics != run.evaluate()


def test_an_average_costs_nothing():
    documents = []
    for more in ((), ("server.average=polynomial",)):
        chosen = recipe(*more, seed=None)
        documents.append(plan_of(chosen, federation_of(chosen.data)).guarantee.to_dict())
    assert json.dumps(documents[0]) == json.dumps(documents[1])


def test_a_stopped_run_goes_on_with_its_average(tmp_path: Path):
    chosen = recipe("server.average=exponential", "server.optimizer=adam")
    data = federation_of(chosen.data)
    whole = Run(plan_of(chosen, data))
    whole.finish()
    plan = plan_of(chosen, data)
    directory = RunDirectory.create(tmp_path / "run", plan, recipes.to_table(chosen))
    first = Run(plan).keep_in(directory)
    for _ in range(3):
        next(iter(first))
    first.save()
    directory.close()
    directory = RunDirectory.open(tmp_path / "run", plan)
    second = Run(plan).keep_in(directory)
    second.finish()
    directory.close()
    assert second.model_file() == whole.model_file()


@pytest.mark.parametrize(
    "settings",
    [
        ["server.average=mean"],
        ["server.average_setting=0.5"],
        ["server.average=exponential", "server.average_setting=1.0"],
        ["server.average=tail", "server.average_setting=0"],
        ["server.average=polynomial", "server.average_setting=-1"],
        ["server.average=tail", "training.method=ae-dpfl", "data.public_fraction=0.2"],
    ],
)
def test_what_an_average_cannot_be_is_refused(settings):
    chosen = recipe(*settings)
    data = federation_of(chosen.data)
    with pytest.raises(ConfigError, match=r"server\.average"):
        plan_of(chosen, data)
