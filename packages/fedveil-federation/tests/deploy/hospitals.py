"""Three hospitals with CSV files, policies and homes, as the commands make them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.deploy_engines import MemoryCourier
from fedveil.core.randomness import Randomness
from fedveil.planning import recipe as recipes
from fedveil.planning.recipe import Recipe
from fedveil.run.run import Run
from fedveil_federation.deploy.courier import Courier
from fedveil_federation.deploy.hub_service import HubJob, HubService
from fedveil_federation.deploy.site_service import SiteService
from fedveil_federation.deploy.state_dirs import Bundle, HubHome, SiteHome
from fedveil_federation.secagg.server import Deadlines

SITES = ("north", "south", "east")
COLUMNS: dict[str, Any] = {
    "age": {"type": "number", "min": 0, "max": 100},
    "pressure": {"type": "number", "mean": 120.0, "std": 20.0, "missing": True},
    "ward": {"type": "category", "categories": ["a", "b"]},
    "ill": {"type": "boolean"},
}
SEVERAL = "ill, pained"  # labels
POLICY = """
[budget]
epsilon = 20.0
delta = 1e-4

[lifetime]
epsilon = 50.0
delta = 1e-4

[allow]
methods = ["dp-sgd", "ddgauss"]
models = ["logistic"]
units = ["record", "client"]

[show]
budget = true
"""
RECIPE: dict[str, Any] = {
    "model": {"name": "logistic", "input_norm": 2.0},
    "training": {
        "method": "dp-sgd",
        "rounds": 3,
        "sampling": "everyone",
        "batch_size": 20,
        "learning_rate": 1.0,
    },
    "privacy": {"epsilon": 15.0, "delta": 1e-5, "clip_norm": 1.0},
    "aggregation": {"secure": "masked"},
    "evaluation": {"every": 1},
}


def table(rows: int, seed: int) -> str:
    """Made-up patients: who is old with high pressure is ill."""
    draw = np.random.default_rng(seed)
    age, pressure = draw.integers(18, 90, rows), draw.normal(120, 20, rows).round(1)
    ill = age / 50 + pressure / 120 + draw.normal(0, 0.2, rows) > 2.1
    wards = draw.choice(["a", "b", "c"], rows)
    lines = [
        f"{a},{p},{w},{str(bool(i)).lower()},{n}"
        for a, p, w, i, n in zip(age, pressure, wards, ill, range(rows), strict=True)
    ]
    return "\n".join(["age,pressure,ward,ill,patient", *lines]) + "\n"


@dataclass
class Hospitals:
    """Hub and sites in one process, over a courier in memory."""

    folder: Path
    hub: HubHome
    homes: dict[str, SiteHome]
    courier: Courier = field(default_factory=MemoryCourier)
    sites: dict[str, SiteService] = field(default_factory=dict)
    finished: list[tuple[Run, Recipe]] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=lambda: RECIPE)
    seconds: float = 600.0  # as long as a very busy machine may take

    def start(self, site: str, randomness: Randomness | None = None) -> SiteService:
        """Start, or start again, a site's process."""
        self.end(site)
        self.sites[site] = SiteService(SiteHome(self.homes[site].path), randomness)
        self.courier.attach(site, self.sites[site].answer)
        return self.sites[site]

    def end(self, site: str) -> None:
        if site in self.sites:
            self.courier.detach(site)
            self.sites.pop(site).close()

    def service(self, finish: Callable[[Run, Recipe], None] | None = None) -> HubService:
        def keep(run: Run, recipe: Recipe) -> None:
            self.finished.append((run, recipe))

        waits = Deadlines(*(self.seconds,) * 4)
        return HubService(HubHome(self.hub.path), self.courier, finish or keep, waits)

    def meet(self) -> None:
        """All sites come, and their owners confirm the list."""
        for site in SITES:
            self.start(site)
        self.service().step()
        members = self.hub.members
        assert members is not None
        for home in self.homes.values():
            home.trust(members.fingerprint)

    def queue(self, name: str = "first", test: bool = True, **changed: Any) -> None:
        given = {key.replace("__", "."): value for key, value in changed.items()}
        recipe = recipes.to_table(recipes.parse(self.recipe, (), given))
        rows = str(self.folder / "test.csv") if test else None
        self.service().queue.put(HubJob(name, recipe, rows))

    def close(self) -> None:
        for site in tuple(self.sites):
            self.end(site)


def forget_rows() -> None:
    """Let the rows of one test be charged in another, which has them too."""
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]) / "fedveil" / "rows", ignore_errors=True)


@cache
def _founded(holdout: float, label: str) -> TemporaryDirectory[str]:
    """Keys take a second to make: once for all tests."""
    made = TemporaryDirectory()
    columns = dict(COLUMNS)
    if label == "pressure":
        columns[label] = {key: COLUMNS[label][key] for key in ("type", "mean", "std")}
    if label == SEVERAL:
        columns["pained"] = {"type": "boolean"}
    schema = {"label": label, "columns": columns, "holdout": holdout}
    hub = Path(made.name) / "hub"
    HubHome.create(hub, "hospitals", "localhost:8002", SITES, **schema)
    return made


def hospitals(
    folder: Path,
    policy: str = POLICY,
    holdout: float = 0.0,
    rows: int = 80,
    label: str = "ill",
    table: Callable[[int, int], str] = table,
    address: str = "",
    person_column: str | None = None,
) -> Hospitals:
    """A federation that was founded and joined; nobody is there yet."""
    forget_rows()
    if address:
        schema = {"label": label, "columns": COLUMNS, "holdout": holdout}
        hub = HubHome.create(folder / "hub", "hospitals", address, SITES, **schema)
    else:
        shutil.copytree(_founded(holdout, label).name, folder, dirs_exist_ok=True)
        hub = HubHome(folder / "hub")
    (folder / "policy.toml").write_text(policy)
    (folder / "test.csv").write_text(table(60, 99))
    homes = {}
    for number, site in enumerate(SITES):
        data = folder / f"{site}.csv"
        data.write_text(table(rows + 10 * number, number))
        bundle = Bundle.read(hub.path / "bundles" / f"{site}.bundle")
        homes[site] = SiteHome.create(
            folder / site, bundle, data, folder / "policy.toml", person_column=person_column
        )
    return Hospitals(folder, hub, homes)
