"""Attacks succeed where nothing protects, fail where it does, and stay below epsilon's curve."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.privacy.distinguishing import attack_on
from fedveil.report.gallery import _published, gallery
from fedveil.report.page import attack_tables
from fedveil.run.guarantees import guarantee_of
from fedveil_lab.audit.attack.attack import attack
from fedveil_lab.audit.attack.membership import _curve, _lira, membership

from .faults import of_persons

_BASE: dict[str, Any] = {
    "seed": 0,
    "data": {"source": "digits", "clients": 50},
    "training": {"method": "dp-fedavg", "rounds": 4, "sampling": "everyone", "local_steps": 2},
    "privacy": {"epsilon": 4.0, "clip_norm": 1.0, "delta": 1e-5},
}


def plan_with(**changes: Any) -> Plan:
    """The small plan with entries changed, or left out if they are None."""
    table = json.loads(json.dumps(_BASE))
    if changes.get("training.method") == "fedavg":
        del table["privacy"]
    for name, value in changes.items():
        section, key = name.split(".")
        table.setdefault(section, {})[key] = value
        if value is None:
            del table[section][key]
    recipe = recipes.with_defaults(recipes.parse(table))
    federation = federation_of(recipe.data)
    persons = recipe.privacy.unit == "person"
    return plan_of(recipe, of_persons(federation) if persons else federation)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_one_record_is_read_off_an_upload_exactly_and_noise_hides_it(model: str) -> None:
    found = attack(plan_with(**{"model.name": model}), kinds=("reconstruct",), victims=10)
    assert found.reconstruction is not None
    views = {one.view: one for one in found.reconstruction.likeness}
    for seen in ("open", "clipped"):
        assert views[seen].correlation > 0.999
        assert views[seen].found == 10
    for hidden in ("clipped, noise", "masked"):
        assert views[hidden].correlation < 0.5
        assert views[hidden].found <= 1  # of more than a thousand candidates


def test_a_pair_that_differs_in_its_labels_is_taken_apart() -> None:
    found = attack(plan_with(**{"training.method": "fedavg"}), kinds=("reconstruct",), victims=20)
    assert found.reconstruction is not None
    views = {one.view: one for one in found.reconstruction.likeness}
    assert views["sum of 2"].found >= 15
    assert views["sum of 2"].correlation > views["sum of 50"].correlation
    assert "clipped" not in views  # there is no clip
    assert found.epsilon is None


def test_members_of_a_model_that_remembers_are_found_and_private_ones_are_not() -> None:
    changes = {"training.method": "fedavg", "training.rounds": 20, "training.learning_rate": 4.0}
    known = membership(plan_with(**changes, **{"data.clients": 60}), runs=24, seed=0)
    lira = known.curves[0]
    assert lira.auc > 0.7
    private = membership(plan_with(**{"privacy.epsilon": 1.0}), runs=24, seed=0)
    assert private.without == "it sends nothing"
    for curve in private.curves:
        assert abs(curve.auc - 0.5) < 0.1
        for point in curve.points:
            assert point.allowed is not None
            assert point.at_least <= point.allowed


_RECORDS: dict[str, Any] = {
    "training.method": "dp-sgd",
    "training.sampling": "balanced",
    "training.rate": 1.0,
    "training.local_steps": None,
    "training.batch_size": 16,
    "data.clients": 4,
}


@pytest.mark.parametrize(
    ("batches", "unit"), [("shuffled", "record"), ("poisson", "record"), ("poisson", "person")]
)
def test_records_take_each_others_place_or_are_left_out(batches: str, unit: str) -> None:
    plan = plan_with(**_RECORDS, **{"training.batches": batches, "privacy.unit": unit})
    found = membership(plan, runs=16, seed=1)
    sizes = plan.federation.sizes
    assert found.unit == unit
    if unit == "person":
        assert found.units == sum(-(-size // 3) for size in sizes)
    else:
        replaced = batches == "shuffled"
        assert found.units == (sum(size // 2 * 2 for size in sizes) if replaced else sizes.sum())
    assert found.trials == 16 * found.units
    for curve in found.curves:
        for point in curve.points:
            assert point.allowed is not None
            assert point.at_least <= point.allowed


def test_a_likelihood_ratio_finds_shifted_gaussians_as_well_as_theory() -> None:
    """Scores one deviation apart: the AUC is that of two Gaussians, Phi(1 / sqrt 2)."""
    chance = np.random.default_rng(0)
    there = chance.random((200, 100)) < 0.5
    scores = chance.standard_normal(there.shape) + there + 5 * chance.standard_normal(100)
    curve = _curve("LiRA", _lira(scores, there), there, None)
    assert curve.auc == pytest.approx(0.5 * (1 + math.erf(0.5)), abs=0.01)


def test_what_epsilon_allows_is_a_curve_below_both_lines() -> None:
    plan = plan_with()
    assert plan.guarantee is not None
    most = attack_on(plan.guarantee).true_positives
    epsilon, delta = plan.guarantee.epsilon, plan.guarantee.delta
    rates = [most(x / 100) for x in range(101)]
    assert rates == sorted(rates)
    assert rates[-1] == 1.0
    for x, rate in zip(range(101), rates, strict=True):
        assert rate <= math.exp(epsilon) * x / 100 + delta + 1e-12
    # An unsampled Gaussian is what is accounted: its own curve is attained, so it must fit below.
    mu = math.sqrt(4) / (plan.noise_multiplier or 1.0)
    for false_rate in (0.001, 0.01, 0.1, 0.5):
        attained = norm.sf(norm.isf(false_rate) - mu)
        assert attained <= most(false_rate) + 1e-9
        assert most(false_rate) < attained + 0.15


def test_the_command_writes_pictures_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        '[data]\nsource = "digits"\nclients = 50\n'
        '[training]\nmethod = "dp-fedavg"\nrounds = 2\nsampling = "everyone"\n'
        "[privacy]\nepsilon = 4.0\nclip_norm = 1.0\n"
    )
    out = tmp_path / "out"
    call = ["attack", str(recipe), "--runs", "16", "--victims", "4", "--out", str(out), "--json"]
    assert main([*call, "--only", "reconstruct", "--only", "membership"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {path.name for path in out.iterdir()} == {
        "reconstructions.png", "membership.png", "attack.json",
    }  # fmt: skip
    stored = json.loads((out / "attack.json").read_text())
    assert stored["membership"]["curves"] == document["membership"]["curves"]
    assert main([*call[:-1], "--quiet", "--victims", "0"]) == 2
    capsys.readouterr()


def test_pictures_of_a_protected_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    small = ["--set", "training.rounds=1", "--set", "data.clients=50", "--quiet", "--no-report"]
    assert main(["run", "dp-fedavg", *small, "--output", str(run)]) == 0
    assert main(["attack", str(run), "--only", "membership"]) == 2
    assert "protected run" in capsys.readouterr().err
    assert not (run / "attack").exists()
    (run / "attack").mkdir()
    (run / "attack" / "attack.json").write_text("{}")  # wherever it came from
    assert main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["gallery"] is None


def _changes(value: Any) -> Iterator[Any]:
    """A document with one of its parts gone, or something else instead."""
    if isinstance(value, (dict, list)) and value:
        keys: list[Any] = list(value) if isinstance(value, dict) else [0]
        for key in keys:
            for one in _changes(value[key]):
                changed = value.copy()
                changed[key] = one
                yield changed
            if isinstance(value, dict):
                yield {name: kept for name, kept in value.items() if name != key}
    yield from (None, 0, -1.5, float("inf"), "x", [], ["x"], {}, {"x": 1})


def _damaged(run: Path, document: dict[str, Any]) -> None:
    """Whatever was stored is shown, or refused in one line."""
    file, guarantee = run / "attack" / "attack.json", guarantee_of(run)[0]
    kept, recipe, refused = file.read_bytes(), {"seed": 1, "data": {}}, 0
    texts = [json.dumps(one) for one in _changes(document)]
    for data in (b"", b"\xff", b"[" * 100_000, *(text.encode() for text in texts)):
        file.write_bytes(data)
        try:
            found = gallery(run, recipe, guarantee)
        except ConfigError as error:
            refused += str(file) in str(error)
        else:
            assert found is not None
            attack_tables(found)
    assert refused > len(texts) / 3
    file.write_bytes(kept)


def test_the_report_of_a_simulated_run_has_a_gallery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, call = tmp_path / "run", ["--set", "training.rounds=1", "--set", "data.clients=50"]
    words = ["run", "dp-fedavg", *call, "--seed", "1", "--quiet", "--no-report"]
    assert main([*words, "--output", str(run)]) == 0
    words = ["attack", str(run), "--victims", "4", "--runs", "16", "--quiet"]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["report", str(run), "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["runs"]
    found, page = facts["gallery"], (run / "report.html").read_text()
    document = json.loads((run / "attack" / "attack.json").read_text())
    for curve in document["membership"]["curves"]:  # a report shows their points alone
        curve["curve"] = []
    _damaged(run, document | {"membership": document["membership"] | {"allowed": []}})
    views = {one["view"]: one for one in found["views"]}
    assert views["open"]["found"] == [4, 4]
    assert len(found["membership"]["points"]) == 6
    image = base64.b64encode((run / "attack" / "reconstructions.png").read_bytes()).decode()
    assert found["picture"] == image
    assert "What attackers could learn" in page
    assert f"data:image/png;base64,{image}" in page
    # Pictures of records that are nobody's business stay where they are.
    assert _published({"source": "digits"})
    assert not _published({"source": "digits", "file": "mine.csv"})
    assert not _published({"source": "somebody's"})
    # Attacks that were not made again leave no picture behind, and others' are not shown.
    assert main(["attack", str(run), "--only", "reconstruct", "--victims", "4", "--quiet"]) == 0
    assert {path.name for path in (run / "attack").iterdir()} == {
        "attack.json", "reconstructions.png",
    }  # fmt: skip
    document = json.loads((run / "attack" / "attack.json").read_text())
    (run / "attack" / "attack.json").write_text(json.dumps(document | {"epsilon": 0.1}))
    capsys.readouterr()
    assert main(["report", str(run)]) == 2
    assert "attacks on another guarantee" in capsys.readouterr().err
