"""A site's own coin and its own budget: the hub sees neither, and the site's ledger is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.world import POLICY, World, facts_of, recipe_of, rows, world

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Unit
from fedveil.data.federation import Federation
from fedveil.planning.assemble import plan_of
from fedveil.planning.participations import participations
from fedveil.planning.plan import Plan
from fedveil.privacy.sampling import SecretPoisson
from fedveil.run.run import Run
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.deploy.work import Training

SEED = 11
COINS = {"training__sampling": "secret-poisson", "training__rate": 0.5, "training__rounds": 2}


@contextmanager
def coins(says: dict[int, bool]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecretPoisson, "coin", lambda self, _, number, client: says[client])
        yield


def finished(made: World, folder: Path, **changed: Any) -> Run:
    try:
        run = made.hub().start(recipe_of(**changed), facts_of(made.data), folder / "run")
        run.finish()
        return run
    finally:
        made.close()


def seen_by_hub(folder: Path, says: dict[int, bool], fails: bool = False) -> tuple[list[Any], Run]:
    """What each site answers, as the hub's network sees it: whose, which header, sizes of parts."""
    folder.mkdir()
    made, answers = world(folder, seed=SEED), list[Any]()
    for site, guard in made.guards.items():

        def noted(guard: Any = guard, site: str = site) -> None:
            real = guard._answered

            def answered(request: Any, frame: bytes) -> Any:
                reply = real(request, frame)
                if reply.header["status"] != "working":  # as fast as this machine happens to be
                    asked = site, request.text("kind"), request.header.get("round")
                    said = {k: v for k, v in reply.header.items() if k != "trusts"}
                    answers.append((*asked, said, [len(part) for part in reply.parts]))
                return reply

            guard._answered = answered

        noted()
    with coins(says), pytest.MonkeyPatch.context() as patch:
        if fails:
            real = Training._engine.func

            class Broken:
                def __init__(self, engine: Any) -> None:
                    self.engine = engine

                def updates(self, request: Any) -> Any:
                    raise MemoryError

                def close(self) -> None:
                    self.engine.close()

            fake = property(lambda self: Broken(real(self)) if self._number == 1 else real(self))
            patch.setattr(Training, "_engine", fake)
        run = finished(made, folder, **COINS)
    return sorted(answers, key=repr), run


def test_the_hub_sees_the_same_whatever_a_sites_coin_says_and_whether_training_fails(
    tmp_path: Path,
) -> None:
    yes = {0: True, 1: True, 2: False}
    loud, one = seen_by_hub(tmp_path / "yes", yes)
    quiet, two = seen_by_hub(tmp_path / "no", yes | {1: False})
    failed, three = seen_by_hub(tmp_path / "failed", yes, fails=True)
    assert loud == quiet == failed
    assert len(loud) > 2 * 3 * 3
    assert not torch.equal(one.state.weights, two.state.weights)
    assert torch.equal(two.state.weights, three.state.weights)  # zero, and the same share


def test_a_site_tosses_one_coin_a_round_for_all_that_the_round_asks(tmp_path: Path) -> None:
    made = world(tmp_path, seed=None)
    tossed: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:

        def coin(self: Any, randomness: Randomness, number: int, client: int) -> bool:
            assert randomness.seed is None  # from the operating system
            tossed.append((number, client))
            return client == 0

        patch.setattr(SecretPoisson, "coin", coin)
        finished(made, tmp_path, **COINS)
    assert sorted(tossed) == [(number, client) for number in range(2) for client in range(3)]


SMALL = {**POLICY, "budget": {"epsilon": 9.0, "delta": 1e-5}}
SCALED = {**POLICY, "budget": {"epsilon": 9.0, "delta": 1e-5, "scale": True}}


@pytest.mark.parametrize("ways", [{}, COINS], ids=["everyone", "secret coins"])
def test_a_site_with_a_smaller_budget_clips_to_less_and_pays_its_own(
    tmp_path: Path, ways: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {**ways, "training__method": "dp-fedavg", "privacy__trust": "distributed"}
    made = world(tmp_path, seed=SEED)
    made.policy = Policy.of(SCALED)
    made.guard("site-1")
    run = finished(made, tmp_path, **ways)
    spent = [guard.store.ledger.spent() for guard in made.guards.values()]
    assert spent[1] <= 9 < spent[0] == spent[2]
    assert spent[1] > 8  # at the delta of its lifetime, which is larger than the plan's
    assert run.guarantee is not None
    assert run.guarantee.epsilon == pytest.approx(50, rel=1e-2)

    # The same weights as in one process, in which that client has a budget of its own.
    monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(SEED)))
    plan = plan_of(recipe_of(**ways, privacy__budgets={"1": 9.0}), made.data)
    alone = Run(plan)
    alone.finish()
    assert torch.equal(run.state.weights, alone.state.weights)
    assert participations(plan).epsilons[1] <= 9


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.PERSON])
def test_a_site_with_a_smaller_budget_draws_its_batches_by_rarer_coins(
    tmp_path: Path, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secret batches: the hub sees the same, and the site's ledger holds its own rate."""
    ways = {
        "training__method": "dp-sgd",
        "training__batches": "poisson",
        "privacy__unit": unit.value,
    }
    ways |= {"training__batch_size": 5, "training__local_epochs": None, "training__rounds": 3}
    ways |= {"privacy__epsilon": 8.0}
    allow = {"units": ["client", unit.value]}
    policy = {
        **SCALED,
        "budget": {**SCALED["budget"], "epsilon": 60.0},
        "allow": POLICY["allow"] | allow,
    }
    data = rows()
    if unit is Unit.PERSON:
        persons = np.arange(len(data.train)) // 2
        data = Federation.from_arrays(
            data.train.inputs, data.train.targets, np.repeat(np.arange(3), data.sizes),
            persons=persons + 100 * np.repeat(np.arange(3), data.sizes), classes=2, test=data.test,
            name=data.name,
        )  # fmt: skip
    made = world(
        tmp_path, unit=unit, seed=SEED, policy=policy, adjacency=Adjacency.ZERO_OUT, data=data
    )
    small = {**policy, "budget": {**SCALED["budget"], "epsilon": 5.0}}
    made.policy = Policy.of(small)
    made.guard("site-1")
    try:
        run = made.hub().start(recipe_of(**ways), facts_of(data, unit), tmp_path / "run")
        run.finish()
    finally:
        made.close()
    spent = [guard.store.ledger.spent() for guard in made.guards.values()]
    assert spent[1] <= 5 < spent[0] == spent[2]
    monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(SEED)))
    plan = plan_of(recipe_of(**ways, privacy__budgets={"1": 5.0}), data)
    alone = Run(plan)
    alone.finish()
    assert torch.equal(run.state.weights, alone.state.weights)
    assert participations(plan).epsilons[1] <= 5
    whole = Run(plan_of(recipe_of(**ways), data))
    whole.finish()
    assert not torch.equal(run.state.weights, whole.state.weights)


def test_without_the_key_a_run_that_costs_too_much_is_refused(tmp_path: Path) -> None:
    made = world(tmp_path)
    made.policy = Policy.of(SMALL)
    made.guard("site-1")
    with pytest.raises(PrivacyRefusal, match="site-1"):
        finished(made, tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {**COINS, "privacy__clip_quantile": 0.5, "privacy__clip_noise": 0.5},
        {"privacy__budgets": {"1": 9.0}},
    ],
    ids=["a tracked clip under secret coins", "budgets that the hub sets"],
)
def test_what_sites_cannot_account_for_is_not_planned(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        finished(world(tmp_path), tmp_path, **changed)
