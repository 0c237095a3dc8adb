"""A small federation in one process: a hub, guards with real stores, and a courier."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.deploy_engines import MemoryCourier
from fedveil.core.randomness import Randomness
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.data.federation import Examples, Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.recipe import Recipe
from fedveil.training.engines.isolated import isolated_federation
from fedveil_federation.deploy.agreement import Members
from fedveil_federation.deploy.courier import Courier
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.guard import Guard
from fedveil_federation.deploy.hub import Hub
from fedveil_federation.deploy.policy import Policy
from fedveil_federation.secagg.device_store import DeviceStore, Lock
from fedveil_federation.secagg.server import Deadlines

LOCK = Lock(bytes(32))
NAME = "hospitals"
POLICY: dict[str, Any] = {
    "budget": {"epsilon": 60.0, "delta": 1e-5},
    "allow": {
        "methods": [
            "dp-fedavg",
            "ddgauss",
            "client-noise",
            "gradient-noise",
            "dp-sgd",
            "bounded-sparse",
            "laplacian-smoothing",
        ],
        "models": ["logistic", "mlp", "lstm"],
        "units": ["client", "record"],
        "parameters": 5_000,
        "rounds": 10,
    },
}
SHARES = {
    "training.method": "ddgauss",
    "training.sampling": "everyone",
    "training.rounds": 2,
    "training.local_epochs": 1,
    "training.batch_size": 8,
    "privacy.epsilon": 50.0,
    "privacy.delta": 1e-6,
    "aggregation.secure": "masked",
}


def recipe_of(**changed: Any) -> Recipe:
    """Keys with double underscores for dots."""
    values = {**SHARES, **{name.replace("__", "."): value for name, value in changed.items()}}
    kept = {name: value for name, value in values.items() if value is not None}
    return recipes.with_defaults(recipes.parse({}, (), kept))


def rows(sites: int = 3, seed: int = 1, features: int = 6) -> Federation:
    """Made-up patients of some hospitals, of different numbers, with public test rows."""
    draw = np.random.default_rng(seed)
    counts = [20 + 7 * site for site in range(sites)]
    total = sum(counts) + 30
    inputs = draw.normal(size=(total, features)).astype(np.float32)
    targets = (inputs[:, 0] + 0.5 * inputs[:, 1] > 0).astype(np.int64)
    held = total - 30
    return Federation.from_arrays(
        inputs[:held].copy(),
        targets[:held].copy(),
        np.repeat(np.arange(sites), counts),
        test=Examples(inputs[held:].copy(), targets[held:].copy()),
        classes=2,
        name=NAME,
    )


def visits() -> Federation:
    """The same rows as visits of nine patients of each of three hospitals."""
    plain = rows()
    owners = np.repeat(np.arange(3), plain.sizes)
    patients = np.random.default_rng(6).integers(0, 9, len(owners))
    return Federation.from_arrays(
        plain.train.inputs,
        plain.train.targets,
        owners,
        persons=9 * owners + patients,  # nobody is at two hospitals
        test=plain.test,
        classes=2,
        name=NAME,
    )


def facts_of(federation: Federation, unit: str = "client") -> Facts:
    sizes = federation.sizes if unit == "record" else np.ones(federation.clients, np.int64)
    if unit == "person":
        sizes = federation.persons.sizes
    return Facts(
        NAME,
        str(federation.task),
        federation.classes,
        federation.input_shape,
        tuple(int(size) for size in sizes),
    )


@dataclass
class World:
    """Hub, guards and what they are made from."""

    folder: Path
    data: Federation
    members: Members
    key: Ed25519PrivateKey
    policy: Policy
    seed: int | None = None
    courier: Courier = field(default_factory=MemoryCourier)
    guards: dict[str, Guard] = field(default_factory=dict)

    def guard(self, site: str) -> Guard:
        """Start, or start again, the guard of a site."""
        if site in self.guards:
            self.courier.detach(site)
            self.guards[site].close()
        number = self.members.number(site)
        self.guards[site] = Guard(
            site,
            self.members,
            DeviceStore(self.folder / f"{site}.db", LOCK),
            self.policy,
            isolated_federation(self.data, number),
            randomness=None if self.seed is None else Randomness(self.seed),
        )
        self.courier.attach(site, self.guards[site].answer)
        return self.guards[site]

    def hub(self, seconds: float = 600.0) -> Hub:
        waits = Deadlines(seconds, seconds, seconds, seconds)
        return Hub(self.members, self.key, self.courier, self.folder / "hub", waits)

    def close(self) -> None:
        self.courier.close()
        for guard in self.guards.values():
            guard.close()


def world(
    folder: Path,
    *,
    sites: int = 3,
    unit: Unit = Unit.CLIENT,
    lifetime: float = 1e3,
    policy: dict[str, Any] | None = None,
    seed: int | None = None,
    courier: Courier | None = None,
    trust: Trust = Trust.DISTRIBUTED,
    adjacency: Adjacency | None = None,
    data: Federation | None = None,
) -> World:
    """A federation whose guards are running."""
    key = Ed25519PrivateKey.generate()
    identities = {}
    for number in range(sites):
        usual = Adjacency.ZERO_OUT if unit is Unit.CLIENT else Adjacency.REPLACE
        store = DeviceStore.create(
            folder / f"site-{number}.db",
            LOCK,
            budget_epsilon=lifetime,
            delta=1e-5,
            unit=unit,
            adjacency=adjacency or usual,
            trust=trust,
        )
        keys = store.enrol(f"fedveil/{NAME}", number)
        identities[f"site-{number}"] = keys.identity.public_key().public_bytes_raw()
    members = Members(NAME, key.public_key().public_bytes_raw(), identities)
    rules = Policy.of(policy or POLICY)
    made = World(folder, data or rows(sites), members, key, rules, seed, courier or MemoryCourier())
    for site in members.names:
        made.guard(site)
    return made
