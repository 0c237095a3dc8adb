"""What readers of a page have before they begin: files in the working directory, names in Python.

Pages about parts of the program show excerpts; these are the few lines around them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from PIL import Image
from tests.docs.blocks import ROOT, blocks_of

import fedveil as fv
from fedveil.cli import main
from fedveil.planning import recipe as recipes

Scope = dict[str, Any]


_CLINICS = ("north", "south"), ("healthy", "ill")


def data() -> Scope:
    """Arrays, a table of forty clients, a run on it, and frames of its columns."""
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(240, 3)).astype(np.float32)
    targets, owners = (inputs[:, 0] > 0).astype(np.int64), np.repeat(np.arange(40), 6)
    lines = [
        f"{row},S{owner},{10 * x + 50:.1f},{('car', 'house')[row % 2]},{'AB'[target]}"
        for row, (owner, (x, _, _), target) in enumerate(zip(owners, inputs, targets, strict=True))
    ]
    text = "\n".join(["id,state,income,purpose,grade", *lines]) + "\n"
    for name in ("loans.csv", "new.csv", "test.csv"):
        Path(name).write_text(text)
    words = ["--data", "loans.csv", "--client-column", "state", "--label", "grade", "--quiet"]
    settings = ["training.rounds=2", "training.local_epochs=1", "training.learning_rate=0.5"]
    settings += ["privacy.clip_norm=1"]
    given = [word for one in settings for word in ("--set", one)]
    assert main(["run", *words, *given, "--output", "RUN"]) == 0
    frame = {"id": ["1", "2"], "income": [80.0, 20.0], "purpose": ["car", "house"]}
    frame["grade"] = ["A", "B"]
    for client, kind in product(*_CLINICS):
        folder = Path("clinics") / client / kind
        folder.mkdir(parents=True)
        picture = Image.fromarray(draw.integers(0, 256, (40, 40), np.uint8))
        picture.save(folder / "1.png")
        (Path("scans") / client).mkdir(parents=True, exist_ok=True)
        picture.save(Path("scans") / client / f"{kind}.png")
    listed = [f"{client}/{kind}.png,{kind}" for client, kind in product(*_CLINICS)]
    Path("labels.csv").write_text("\n".join(["file,label", *listed]) + "\n")
    pairs = [list(zip(inputs[half::2], targets[half::2], strict=True)) for half in (0, 1)]
    parts = [[{"image": image, "label": label} for image, label in one] for one in pairs]
    return {
        **{"one": pairs[0], "other": pairs[1], "parts": parts},
        **{"fv": fv, "inputs": inputs, "targets": targets, "owners": owners, "frame": frame},
        **{"x_test": inputs, "y_test": targets, "X": inputs, "y": inputs[:, 1].astype(float)},
        "read": lambda text: Path("checked.toml").write_text(text),
    }


def deploy() -> Scope:
    """What hub and sites have agreed on, and the policy that stands on the page."""
    from tests.deploy.hospitals import COLUMNS, table

    from fedveil.planning.plan import Plan
    from fedveil_federation.deploy.facts import Facts
    from fedveil_federation.deploy.plan_document import parameters, planned
    from fedveil_federation.deploy.policy import Policy
    from fedveil_federation.deploy.schemas import ArraySchema

    columns = {"income" if name == "ill" else name: column for name, column in COLUMNS.items()}
    Path("schema.toml").write_text(tomli_w.dumps({"columns": columns}))
    (policy,) = (block.text for block in blocks_of("deploy.md") if "[lifetime]" in block.text)
    Path("policy.toml").write_text(policy)
    Path("persons.toml").write_text(policy.replace('units = ["record"]', 'units = ["person"]'))
    for name, seed in (("patients.csv", 1), ("visits.csv", 2)):
        Path(name).write_text(table(50, seed).replace("ill", "income", 1))
    for site in ("north", "south"):  # as if they had been sent
        Path(f"{site}.bundle").symlink_to(f"hospitals/bundles/{site}.bundle")
    draw = np.random.default_rng(2)

    def read(text: str) -> Policy | ArraySchema | Plan:
        given = tomllib.loads(text)
        if "training" not in given:
            return ArraySchema.of(given["arrays"]) if "arrays" in given else Policy.of(given)
        recipe = recipes.with_defaults(recipes.parse(given))
        federation = Facts("hospitals", "classification", 2, (5,), (2000,) * 3).federation()
        plan, allowed = planned(recipe, federation), Policy.of(tomllib.loads(policy))
        allowed.check_recipe(recipe, recipe.model.name, parameters(recipe.model, federation))
        assert plan.guarantee is not None
        assert plan.privacy_model is not None
        allowed.check(plan.guarantee, plan.privacy_model, plan.secure_sums)
        return plan

    images = draw.integers(0, 256, (20, 28, 28), np.uint8)
    return {"read": read, "images": images, "labels": draw.integers(0, 2, 20)}


def planner() -> Scope:
    recipe = recipes.with_defaults(recipes.parse(recipes.read(Path("dp-fedavg"))))
    Path("recipe.toml").write_text(tomli_w.dumps(recipes.to_table(recipe)))
    return {}


def secagg() -> Scope:
    """Imports of the page's section on the library, a hundred devices, and one device's secrets."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedveil.privacy.secure_sums.dropouts import Dropouts
    from fedveil.privacy.secure_sums.params import SecAggParams
    from fedveil_federation.secagg.device_store import DeviceStore, Lock
    from fedveil_federation.secagg.masked import Simulation
    from fedveil_federation.secagg.participant import Participant
    from fedveil_federation.secagg.roster import Roster

    key = Path("device.key")
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    parts = (SecAggParams, Simulation, Lock, DeviceStore, Roster)
    return {
        **{part.__name__: part for part in (*parts, Participant, Path)},
        **{"round_number": 1, "members": range(100), "dimension": 5, "bits": 32},
        **{"dropouts": Dropouts(before_upload=frozenset({3, 4})), "vector": np.arange(5)},
        **{"path": Path("device"), "device": 7, "pinned": {}},
        **{"terms": SecAggParams("clinics", min_honest=80), "server_key": public},
    }


def start() -> Scope:
    Path("examples").symlink_to(ROOT / "examples")
    return {}


def visits() -> Scope:
    """A table of three hospitals, whose patients come several times."""
    draw, lines = np.random.default_rng(1), ["hospital,patient,dose,ill"]
    for patient, count in enumerate(draw.integers(1, 5, 150)):
        for dose in draw.normal(size=count):
            lines.append(f"h{patient % 3},p{patient},{dose:.2f},{('no', 'yes')[int(dose > 0)]}")
    Path("visits.csv").write_text("\n".join(lines) + "\n")
    number, label = '"number"\nmean = 0\nstd = 1', '"category"\ncategories = ["no", "yes"]'
    Path("visits.toml").write_text(
        f"[columns.dose]\ntype = {number}\n[columns.ill]\ntype = {label}\n"
    )
    return {}


PREPARED: dict[str, Callable[[], Scope]] = {
    "choose-privacy.md": visits,
    "data.md": data,
    "deploy.md": deploy,
    "planner.md": planner,
    "secagg.md": secagg,
    "start.md": start,
}


def quoted(excerpt: str, source: str) -> bool:
    """Whether the statements of an excerpt stand in a file."""
    there = re.sub(r"\s+", "", (ROOT / source).read_text())
    lines = (line.partition("#")[0] for line in excerpt.splitlines())
    return all(re.sub(r"\s+", "", line) in there for line in lines)
