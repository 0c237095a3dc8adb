"""Across machines a recipe trains to the same weights, bit for bit, as in one process.

Both sides are protected runs: the same arithmetic, masks, ledgers and isolation. For the test alone
their noise comes from streams that both can repeat.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedveil.config.assemble import plan_of
from fedveil.core.randomness import Randomness
from fedveil.core.units import Trust, Unit
from fedveil.data.federation import Federation
from fedveil.deploy.facts import Facts
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from tests.deploy.world import POLICY, facts_of, recipe_of, world

SEED = 11

CASES: dict[str, dict[str, Any]] = {
    "noise shares, rotated": {},
    "noise shares": {"training__method": "dp-fedavg", "privacy__trust": "distributed"},
    "a hub that does not lie": {"aggregation__sparse": True, "aggregation__honest_server": True},
    "a network": {"model__name": "mlp", "model__hidden": [5]},
    "a tracked clip": {"privacy__clip_quantile": 0.5, "privacy__clip_noise": 0.5},
    "local noise": {"training__method": "client-noise", "aggregation__secure": None},
    "a trusted hub": {
        "training__method": "dp-fedavg",
        "privacy__trust": "central",
        "aggregation__secure": None,
    },
    "by turns": {
        "training__sampling": "round-robin",
        "training__cohort": 3,
        "training__rounds": 3,
    },
    "records, one step": {"training__method": "dp-sgd", "training__local_epochs": None},
    "records, several steps": {
        "training__method": "gradient-noise",
        "training__local_epochs": None,
        "training__local_steps": 2,
        "model__name": "mlp",
        "model__hidden": [5],
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_weights_as_in_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(**CASES[name])
    unit = Unit.RECORD if name.startswith("records") else Unit.CLIENT
    central = name == "a trusted hub"
    allow = {**POLICY["allow"], "honest_hub": True}
    allow |= {"trust": ["central"]} if central else {}
    made = world(
        tmp_path,
        sites=4 if name == "by turns" else 3,
        unit=unit,
        seed=SEED,
        policy={**POLICY, "allow": allow},
        trust=Trust.CENTRAL if central else Trust.DISTRIBUTED,
    )

    def known(facts: Facts) -> Federation:
        return facts.federation(made.data.test)

    if central:  # the hub draws the noise
        monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(SEED)))
    try:
        run = made.hub().start(recipe, facts_of(made.data, unit), tmp_path / "run", known)
        metrics = run.finish()
        assert run.guarantee is not None
        assert run.guarantee.certified
    finally:
        made.close()

    monkeypatch.setattr(Plan, "randomness", property(lambda self: Randomness(SEED)))
    alone = Run(plan_of(recipe, made.data))
    expected = alone.finish()
    assert run.state.rounds == alone.state.rounds == recipe.training.rounds
    assert not torch.equal(run.state.weights, run.plan.start)
    assert torch.equal(run.state.weights, alone.state.weights)
    assert metrics == expected
    turns = [sum(guard.store.ledger.runs().values()) for guard in made.guards.values()]
    expected_turns = {"by turns": [3, 2, 2, 2], "a tracked clip": [4, 4, 4]}  # two sums a round
    assert turns == expected_turns.get(name, [2, 2, 2])
