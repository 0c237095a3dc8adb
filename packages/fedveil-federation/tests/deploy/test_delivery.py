"""A finished run reaches every site, where its model is used and its guarantee computed again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.deploy.hospitals import Hospitals, hospitals

from fedveil.cli import main
from fedveil.data.schema import Column, Kind
from fedveil.run.bundle import bundle_file, read_bundle
from fedveil.training.models import backbone
from fedveil.training.models.backbone import BackboneFeatures
from fedveil.training.models.features import Featurizer
from fedveil_federation import client_events
from fedveil_federation.cli.hub import finish
from fedveil_federation.deploy import delivery, hub_service
from fedveil_federation.deploy.envelope import Message, claimed, seal
from fedveil_federation.deploy.facts import plan_digest
from fedveil_federation.deploy.hub import DOCUMENT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    """A run that has ended, and was delivered to nobody yet."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hub_service, "_HELLO", 600.0)
        found = hospitals(tmp_path_factory.mktemp("delivery"))
        found.meet()
        found.queue()
        found.service(finish).step()
    yield found
    found.close()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def folder_at(made: Hospitals, capsys: Any, site: str) -> Path | None:
    """Where a site has the run's model, as its owner sees it."""
    (run,) = told(capsys, "site", "ledger", "--home", str(made.homes[site].path))["runs"]
    return None if run["delivered"] is None else Path(run["delivered"])


def test_a_site_that_asks_for_the_same_piece_for_ever_is_left(made: Hospitals) -> None:
    again = Message({"status": "done", "file": "recipe.toml", "offset": 0})
    for reply in (again, Message({"status": "done", "file": "../hub.key", "offset": 0}), None):
        assert not delivery.send(made.hub.runs / "first", "0" * 64, lambda _, said=reply: said)


DIGEST = hashlib.sha256(b"x").hexdigest()
FILES = {"recipe.toml": [1, DIGEST], "model.safetensors": [1, DIGEST]}
LIES: tuple[dict[str, Any], ...] = (
    {"run": "0" * 64},
    {"run": "../first"},
    {"run": 7},
    {"file": "../../policy.toml"},
    {"file": "/etc/passwd"},
    {"files": {**FILES, "../policy.toml": [1, DIGEST]}},
    {"files": {**FILES, "report.html": [1, DIGEST]}},
    {"files": None},
    {"files": {**FILES, "recipe.toml": [-1, DIGEST]}},
    {"files": {**FILES, "recipe.toml": [1 << 40, DIGEST]}},
    {"files": {**FILES, "recipe.toml": [1, "../x"]}},
    {"files": {**FILES, "recipe.toml": [1, "0" * 64]}},  # not the content's
    {"part": bytes((1 << 20) + 1)},
)


def test_a_hub_that_lies_leaves_nothing_in_a_site(made: Hospitals) -> None:
    site, home = made.sites["north"], made.homes["north"]
    run = plan_digest((made.hub.runs / "first" / DOCUMENT).read_bytes())
    honest = {"kind": "deliver", "run": run, "files": FILES, "offset": 0}

    def answered(lie: dict[str, Any], key: Ed25519PrivateKey) -> Any:
        part = lie.get("part", b"x")
        for name in FILES:
            header = {**honest, "file": name, **lie}
            header.pop("part", None)
            reply = site.answer(seal(Message(header, (part,)), key))
        return claimed(reply).header["status"]

    for lie in LIES:
        assert answered(lie, made.hub.key) == "refused", lie
    stranger = made.homes["south"]
    assert answered({}, stranger.keys(stranger.store()).identity) == "refused"
    assert not list((home.path / "models").glob("[!.]*"))
    shutil.rmtree(home.path / "models", ignore_errors=True)  # of the test before, if it ran


def test_a_hub_that_announces_something_else_half_way_starts_anew(made: Hospitals) -> None:
    """Or each file could be as large as all may be together, and some be in no ledger."""
    site, home = made.sites["north"], made.homes["north"]
    run = plan_digest((made.hub.runs / "first" / DOCUMENT).read_bytes())

    def told(name: str, content: bytes, **files: int) -> Any:
        dotted = {one.replace("_", "."): size for one, size in files.items()}
        announced = {one: [size, hashlib.sha256(bytes(size)).hexdigest()] for one, size in
                     {"recipe.toml": 1, "model.safetensors": 1, **dotted}.items()}  # fmt: skip
        header = {"kind": "deliver", "run": run, "files": announced, "file": name, "offset": 0}
        reply = site.answer(seal(Message(header, (content,)), made.hub.key))
        assert claimed(reply).header["status"] == "done"

    told("metrics.jsonl", bytes(500), metrics_jsonl=500)
    told("result.json", bytes(500), result_json=500)
    told("recipe.toml", b"x", recipe_toml=500)
    told("recipe.toml", bytes(1))
    kept = [path for path in (home.path / "models").rglob("*") if path.is_file()]
    assert {path.name: path.stat().st_size for path in kept} == {"recipe.toml": 1}
    shutil.rmtree(home.path / "models", ignore_errors=True)  # of the test before, if it ran


def test_every_site_uses_the_model_and_one_that_was_away_gets_it_later(
    made: Hospitals, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replies to north are lost on the way: the same pieces come twice, and are written once."""
    monkeypatch.setattr(delivery, "_PIECE", 3000)
    made.end("east")
    service, asked = made.service(), list[tuple[str, int]]()
    tell = service._tell

    def lossy(site: str, message: Message) -> Message | None:
        reply = tell(site, message)
        if message.header["kind"] != "deliver" or site != "north":
            return reply
        asked.append((message.text("file"), message.number("offset")))
        return None if len(asked) % 3 == 0 else reply

    monkeypatch.setattr(service, "_tell", lossy)
    while folder_at(made, capsys, "north") is None:
        service._meet()
    assert len(set(asked)) < len(asked)
    hub = told(capsys, "account", str(made.hub.runs / "first"))
    rows = str(made.folder / "test.csv")
    at_hub = told(capsys, "evaluate", str(made.hub.runs / "first"), rows)
    assert folder_at(made, capsys, "east") is None
    made.start("east")
    made.service().step()
    for site in made.homes:
        folder = folder_at(made, capsys, site)
        assert folder is not None
        assert folder.name.startswith("first-")
        assert told(capsys, "account", str(folder))["epsilon"] == hub["epsilon"]
        assert told(capsys, "evaluate", str(folder), rows)["accuracy"] == at_hub["accuracy"]
        assert main(["predict", str(folder), rows, "--output", str(made.folder / site) + "p"]) == 0
        assert main(["report", str(folder)]) == 0
        with client_events.transaction(made.homes[site].path / "store.db") as events:
            found = [json.loads(body) for (body,) in events.database.execute(
                "SELECT body FROM events WHERE body LIKE '%delivered%'")]  # fmt: skip
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        assert [one["files"]["model.safetensors"] for one in found] == [digest]
    (folder / "model.safetensors").write_bytes(b"another one")
    assert folder_at(made, capsys, "east") is None  # not what the ledger says


NETWORK = """
from pathlib import Path
from torch import nn
Path(__file__).with_suffix(".called").touch()
def network():
    return nn.Sequential(nn.AvgPool2d(3), nn.BatchNorm2d(3))
"""


def test_a_delivered_model_names_no_code_of_the_hubs_choice(
    made: Hospitals, tmp_path: Path
) -> None:
    """Whoever reads a model calls the network that it names."""
    run = plan_digest((made.hub.runs / "first" / DOCUMENT).read_bytes())
    nets = {one: tmp_path / f"{one}.py" for one in ("hub", "site")}
    for file in nets.values():
        file.write_text(NETWORK)
    bundle, tensors = read_bundle(made.hub.runs / "first")
    features = BackboneFeatures(f"{nets['hub']}:network")
    sent = replace(bundle, featurizer=Featurizer(features, None, (8, 8)))
    folder = shutil.copytree(made.hub.runs / "first", tmp_path / "run")
    (folder / "model.safetensors").write_bytes(bundle_file(tensors, sent))
    nets["hub"].with_suffix(".called").unlink()
    backbone._load.cache_clear()

    def ask(message: Message) -> Message | None:
        reply = claimed(made.sites["north"].answer(seal(message, made.hub.key)))
        return reply if reply.header["status"] == "done" else None

    home = made.homes["north"]
    shutil.rmtree(home.path / "models", ignore_errors=True)  # of the test before, if it ran
    assert not delivery.send(folder, run, ask)
    assert not list((home.path / "models").glob("[!.]*"))
    assert bundle.encoder is not None
    notes = Column(Kind.TEXT, encoder=f"{nets['hub']}:network", length=3)
    read_by_hub = replace(bundle.encoder, columns={**bundle.encoder.columns, "notes": notes})
    texts = shutil.copytree(folder, tmp_path / "texts")
    (texts / "model.safetensors").write_bytes(
        bundle_file(tensors, replace(bundle, encoder=read_by_hub))
    )
    assert not delivery.send(texts, run, ask)
    assert not list((home.path / "models").glob("[!.]*"))
    before = (home.path / "policy.toml").read_text()
    named = f'[allow]\nbackbones = ["{nets["site"]}:network"]'
    (home.path / "policy.toml").write_text(before.replace("[allow]", named))
    assert delivery.send(folder, run, ask)
    assert not nets["hub"].with_suffix(".called").exists()
    (found,) = (home.path / "models").glob("[!.]*")
    assert delivery.delivered(home) == {run: found}
    read, same = read_bundle(found)
    assert read.featurizer is not None
    assert read.featurizer.features == replace(features, backbone=f"{nets['site']}:network")
    assert all(torch.equal(same[name], tensors[name]) for name in tensors)
    assert not nets["hub"].with_suffix(".called").exists()
