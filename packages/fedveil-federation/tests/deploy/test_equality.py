"""Across machines a recipe trains to the same weights, bit for bit, as in one process.

Both sides are protected runs: the same arithmetic, masks, ledgers and isolation. For the test alone
their noise comes from streams that both can repeat.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.deploy.world import NAME, POLICY, facts_of, recipe_of, visits, world

from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.federation import Examples, Federation
from fedveil.planning.assemble import plan_of
from fedveil.planning.plan import Plan
from fedveil.run.run import Run
from fedveil_federation.deploy.facts import Facts

SEED = 11

SEVERAL = {"by turns": 4, "a graph that an honest hub draws": 36}  # sites; three elsewhere


def image_rows() -> Federation:
    draw = np.random.default_rng(3)
    inputs, targets = draw.integers(0, 256, (40, 8, 8)), draw.integers(0, 2, 40)
    owners, few = np.repeat(np.arange(3), (10, 12, 8)), slice(30, None)
    test = Examples(inputs[few].astype(np.uint8), targets[few])
    return Federation.from_arrays(
        inputs[:30].astype(np.uint8), targets[:30], owners, test=test, classes=2, name=NAME
    )


def text_rows() -> Federation:
    tokens = np.random.default_rng(4).integers(0, 5, (40, 7))
    inputs, targets, few = tokens[:, :6], tokens[:, 1:], slice(30, None)
    owners, test = np.repeat(np.arange(3), (10, 12, 8)), Examples(inputs[few], targets[few])
    given = {"classes": 5, "name": NAME, "task": "sequence"}
    return Federation.from_arrays(inputs[:30], targets[:30], owners, test=test, **given)


def public_weights(folder: Path) -> Path:
    """A file as somebody makes it of public data."""
    torch.manual_seed(8)
    shapes = {"1.weight": (5, 6), "1.bias": (5,)}
    path = folder / "public.safetensors"
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, path)
    return path


def several_labels() -> Federation:
    draw = np.random.default_rng(5)
    inputs = draw.normal(size=(40, 5)).astype(np.float32)
    targets, few = (inputs[:, :3] > 0).astype(np.int64), slice(30, None)
    owners, test = np.repeat(np.arange(3), (10, 12, 8)), Examples(inputs[few], targets[few])
    return Federation.from_arrays(inputs[:30], targets[:30], owners, test=test, name=NAME)


PUBLIC = ("public weights", "records, adapters")
DATA = {
    "features of images": image_rows,
    "features of a public network": image_rows,
    "records as features": image_rows,
    "texts": text_rows,
    "several labels": several_labels,
    "records of several labels": several_labels,
    "persons, one step": visits,
    "persons, secret batches": visits,
    "persons, several steps": visits,
}
CASES: dict[str, dict[str, Any]] = {
    "noise shares, rotated": {},
    "noise shares": {"training__method": "dp-fedavg", "privacy__trust": "distributed"},
    "secret coins": {"training__sampling": "secret-poisson", "training__rate": 0.4},
    "secret coins, BLUR and LUS": {
        "training__method": "bounded-sparse",
        "training__sampling": "secret-poisson",
        "training__rate": 0.7,
        "privacy__trust": "distributed",
    },
    "a hub that does not lie": {"aggregation__sparse": True, "aggregation__honest_server": True},
    "a network": {"model__name": "mlp", "model__hidden": [5]},
    "a tracked clip": {"privacy__clip_quantile": 0.5, "privacy__clip_noise": 0.5},
    "BLUR and LUS": {
        "training__method": "bounded-sparse",
        "training__penalty": 0.4,
        "training__sparsity": 0.7,
        "model__name": "mlp",
        "model__hidden": [5],
    },
    "Laplacian smoothing": {
        "training__method": "laplacian-smoothing",
        "server__smoothing": 1.0,
        "privacy__trust": "distributed",
    },
    "a graph that an honest hub draws": {
        "aggregation__sparse": True,
        "aggregation__honest_server": True,
        "aggregation__max_dropout": 0.1,  # everybody masks with twelve others
    },
    "features of images": {
        "model__features": "scattering",
        "model__scales": 1,
        "model__angles": 2,
        "model__order": 1,
    },
    "features of a public network": {},
    "texts": {"model__name": "lstm", "model__hidden": [4]},
    "public weights": {"model__name": "mlp", "model__hidden": [5], "model__frozen": ["backbone"]},
    "several labels": {},
    "local noise": {
        "training__method": "client-noise",
        "training__batch_size": None,
        "aggregation__secure": None,
    },
    "a trusted hub": {
        "training__method": "dp-fedavg",
        "privacy__trust": "central",
        "aggregation__secure": None,
    },
    "by turns": {"training__sampling": "round-robin", "training__cohort": 3, "training__rounds": 3},
    "records, one step": {
        "training__method": "dp-sgd",
        "training__batches": "shuffled",
        "training__local_epochs": None,
    },
    "records, secret batches": {
        "training__method": "dp-sgd",
        "training__batches": "poisson",
        "training__batch_size": 4,
        "training__local_epochs": None,
        "model__name": "mlp",
        "model__hidden": [5],
    },
    "records, several steps": {
        "training__method": "gradient-noise",
        "training__local_epochs": None,
        "training__local_steps": 2,
        "model__name": "mlp",
        "model__hidden": [5],
    },
    "persons, one step": {
        "training__method": "dp-sgd",
        "training__batches": "shuffled",
        "training__local_epochs": None,
        "privacy__unit": "person",
        "privacy__sites_per_person": 2,
    },
    "persons, secret batches": {
        "training__method": "dp-sgd",
        "training__batches": "poisson",
        "training__batch_size": 4,
        "training__local_epochs": None,
        "privacy__unit": "person",
        "model__name": "mlp",
        "model__hidden": [5],
    },
}


NETWORK = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    made.pixels = 8
    return made
"""
SLOW = ("a graph that an honest hub draws", "texts", "features of images", "persons, one step")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_weights_as_in_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow = {**POLICY["allow"], "honest_hub": True}
    start: dict[str, Any] = {}
    if name in PUBLIC:  # hub and sites have it in places of their own
        given, own = public_weights(tmp_path), tmp_path / "site's own"
        own.write_bytes(given.read_bytes())
        start, allow["starts"] = {"model__start": str(given)}, [str(own)]
    if name == "features of a public network":
        for folder in ("hub", "site"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "net.py").write_text(NETWORK)
        start = {"model__backbone": f"{tmp_path}/hub/net.py:network", "model__backbone_head": "2"}
        allow["backbones"] = [f"{tmp_path}/{path}:network" for path in ("none.py", "site/net.py")]
    recipe = recipe_of(**CASES[name], **start)
    unit = next((one for one in Unit if name.startswith(f"{one}s, ")), Unit.CLIENT)
    unit = Unit.RECORD if name.startswith("records") else unit
    allow |= {"units": ["client", "person"]} if unit is Unit.PERSON else {}
    central = name == "a trusted hub"
    allow |= {"trust": ["central"]} if central else {}
    made = world(
        tmp_path,
        sites=SEVERAL.get(name, 3),
        unit=unit,
        seed=SEED,
        policy={**POLICY, "allow": allow},
        trust=Trust.CENTRAL if central else Trust.DISTRIBUTED,
        adjacency=Adjacency.ZERO_OUT if "secret" in name else None,
        data=DATA[name]() if name in DATA else None,
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
    assert turns == expected_turns.get(name, [2] * len(turns))
