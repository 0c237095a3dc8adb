"""Falling rates of the server: against recursions written out, on whole runs, and refusals."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.run.run import Run
from fedveil.training.server.optimizers import Adam, Sgd
from fedveil.training.server.schedules import RateSchedule, Scheduled

ROUNDS = 5
SHARES = {  # of the rate in each of five rounds, written out
    ("linear", 0.0): [1.0, 0.8, 0.6, 0.4, 0.2],
    ("linear", 0.5): [1.0, 0.9, 0.8, 0.7, 0.6],
    ("cosine", 0.0): [(1 + math.cos(math.pi * t / 5)) / 2 for t in range(5)],
    ("cosine", 0.2): [0.2 + 0.8 * (1 + math.cos(math.pi * t / 5)) / 2 for t in range(5)],
    ("inverse-sqrt", 3.0): [math.sqrt(3 / (3 + t)) for t in range(5)],
}


@pytest.mark.parametrize(("kind", "setting"), SHARES)
def test_steps_are_those_of_the_optimizer_times_the_schedule(kind: str, setting: float) -> None:
    """v = 0.5 v + u;  w += 0.7 share v: the schedule shortens steps, and leaves momentum alone."""
    draw = torch.Generator().manual_seed(1)
    updates = torch.randn(ROUNDS, 6, generator=draw)
    falling = Scheduled(Sgd(0.7, 0.5), RateSchedule(kind), setting, ROUNDS)
    weights = torch.zeros(6)
    state = falling.start(weights)
    wanted, velocity = torch.zeros(6).double(), torch.zeros(6).double()
    for number, share in enumerate(SHARES[kind, setting]):
        weights, state = falling.step(weights, updates[number], state, number)
        velocity = 0.5 * velocity + updates[number].double()
        wanted += 0.7 * share * velocity
        torch.testing.assert_close(weights.double(), wanted, rtol=1e-6, atol=1e-6)


def test_a_rate_that_stays_is_the_optimizer_itself() -> None:
    update, weights = torch.randn(4), torch.randn(4)
    steady = Scheduled(Adam(), RateSchedule.LINEAR, 1.0, 3)
    for number in range(3):
        here = steady.step(weights, update, steady.start(weights), number)[0]
        there = Adam().step(weights, update, Adam().start(weights), number)[0]
        assert torch.equal(here, there)


def recipe(*more: str, seed: int | None = 5) -> Recipe:
    settings = ["data.clients=20", f"training.rounds={ROUNDS}", "privacy.clip_norm=1", *more]
    return recipes.with_defaults(
        recipes.parse({}, settings, {} if seed is None else {"seed": seed})
    )


def test_a_recipe_names_it_and_its_first_round_is_as_ever() -> None:
    runs = []
    for more in ((), ("server.schedule=cosine",)):
        chosen = recipe(*more)
        run = Run(plan_of(chosen, federation_of(chosen.data)))
        runs.append([run.state.weights for _ in run])
        run.close()
    steady, falling = runs
    assert torch.equal(steady[0], falling[0])
    # The noise of a round is that of its seed: the second moves by less.
    share = (1 + math.cos(math.pi / ROUNDS)) / 2
    near = steady[0] + share * (steady[1] - steady[0])
    torch.testing.assert_close(falling[1], near, rtol=0, atol=1e-5)


def test_a_schedule_costs_nothing() -> None:
    documents = []
    for more in ((), ("server.schedule=linear",)):
        chosen = recipe(*more, seed=None)
        documents.append(plan_of(chosen, federation_of(chosen.data)).guarantee.to_dict())
    assert json.dumps(documents[0]) == json.dumps(documents[1])


@pytest.mark.parametrize(
    "settings",
    [
        ["server.schedule=square"],
        ["server.schedule_setting=0.5"],
        ["server.schedule=linear", "server.schedule_setting=1.5"],
        ["server.schedule=cosine", "server.schedule_setting=-0.1"],
        ["server.schedule=inverse-sqrt", "server.schedule_setting=0"],
        ["server.schedule=inverse-sqrt", "server.schedule_setting=nan"],
        ["server.schedule=linear", "training.method=ae-dpfl", "data.public_fraction=0.2"],
    ],
)
def test_what_a_schedule_cannot_be_is_refused(settings: list[str]) -> None:
    chosen = recipe(*settings)
    data = federation_of(chosen.data)
    with pytest.raises(ConfigError, match=r"server\.schedule"):
        plan_of(chosen, data)
