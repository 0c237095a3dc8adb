"""What a guarantee rests on and does not cover is the same wherever it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.paths import SOURCES
from tests.settings import TUNED

from fedveil.cli import console, main
from fedveil.core.errors import ConfigError
from fedveil.data.federation import HELD_OUT_NOTE, Federation
from fedveil.data.sources.download import DownloadError
from fedveil.methods.registry import METHODS
from fedveil.planning import assemble
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.privacy.accounting import account
from fedveil.privacy.guarantee import Guarantee
from fedveil.run.directory import RunDirectory
from fedveil.run.run import Run
from fedveil.training.engines.cost import Prediction

RECIPES = SOURCES[0] / "fedveil" / "methods" / "recipes"
PRIVATE = sorted(
    path
    for path in RECIPES.glob("*.toml")
    if METHODS[recipes.read(path)["training"]["method"]].private
)
LISTS = ("rests_on", "not_covered")
PLANTED = "means and deviations of 3 columns were taken from the data [b]"
SMALL = ["--set", "training.rounds=2", "--set", "data.clients=40"]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _fresh_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles keep the stream they were made with, and cut lines by the terminal's width."""
    monkeypatch.setenv("COLUMNS", "1000")
    console.stdout.cache_clear()
    console.stderr.cache_clear()


@pytest.fixture
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data from which something was taken without noise."""
    original = assemble.load

    def load(*args: Any, **settings: Any) -> Federation:
        federation = original(*args, **settings)
        return replace(federation, unprotected=(PLANTED,))

    monkeypatch.setattr(assemble, "load", load)


def lists(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    return document["rests_on"], document["not_covered"]


def asked(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def in_python(recipe: recipes.Recipe) -> Guarantee:
    guarantee = plan_of(recipe, federation_of(recipe.data)).guarantee
    assert guarantee is not None
    return guarantee


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", PRIVATE, ids=lambda path: path.stem)
def test_one_list_everywhere(path: Path, tmp_path: Path, capsys: Capture) -> None:
    """guarantee.json, account RUN, the run's document, the terminal and Python agree."""
    rounds = [] if path.stem in ("ae-dpfl", "moments") else ["--set", "training.rounds=2"]
    recipe = recipes.with_defaults(recipes.parse(recipes.read(path), rounds[1:]))
    try:
        federation = federation_of(recipe.data)
    except (ConfigError, DownloadError) as missing:
        pytest.skip(f"no data here: {missing}")
    guarantee = plan_of(recipe, federation).guarantee
    out = tmp_path / "run"
    assert (
        main(["run", str(path), *rounds, "--quiet", "--json", "--no-report", "--output", str(out)])
        == 0
    )
    printed = capsys.readouterr()
    expected = list(guarantee.rests_on), list(guarantee.not_covered)
    assert all(expected)
    assert lists(json.loads(printed.out)["guarantee"]) == expected
    assert lists(json.loads((out / "guarantee.json").read_text())) == expected
    assert lists(asked(capsys, "account", str(out))) == expected
    assert guarantee.certified is ("Not certified" not in printed.err)  # and quiet is quiet
    assert main(["account", str(out)]) == 0
    shown = capsys.readouterr().out
    for sentence in (*guarantee.rests_on, *guarantee.not_covered):
        assert f"- {sentence}\n" in shown
        assert f"- {sentence}" in guarantee.statement.splitlines()
    assert shown.count("\n- ") == len(expected[0]) + len(expected[1])


@pytest.mark.usefixtures("_planted")
def test_what_was_taken_without_noise_decertifies_everywhere(
    tmp_path: Path, capsys: Capture
) -> None:
    sentence = f"{PLANTED[0].upper()}{PLANTED[1:]}."
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--explain", "--output", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    documents = [
        json.loads(printed.out)["guarantee"],
        json.loads((out / "guarantee.json").read_text()),
        asked(capsys, "account", str(out)),
    ]
    table = recipes.parse(recipes.DEFAULT_JOB, SMALL[1::2])
    documents.append(in_python(recipes.with_defaults(table)).to_dict())
    for document in documents:
        assert document["certified"] is False
        assert sentence.rstrip(".") in document["reason"]
        assert document["not_covered"][0] == sentence
        assert document["statement"].startswith("Not certified: epsilon 4")
    assert f"- {sentence}" in printed.err  # brackets of a name are no markup
    for quiet in ([], ["--quiet"]):
        again = tmp_path / f"again{len(quiet)}"
        assert main(["run", *SMALL, *quiet, "--output", str(again)]) == 0
        printed = capsys.readouterr()
        assert "Certified" not in printed.out + printed.err
        assert sentence in printed.err
        assert re.search(r"certified\W+no: \w+", printed.out)
    assert main(["account", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Certified" not in shown
    assert sentence in shown


@pytest.mark.usefixtures("_planted")
def test_a_file_from_which_the_caveats_were_taken_out_is_not_believed(
    tmp_path: Path, capsys: Capture
) -> None:
    """Not even if what remains is a guarantee in its own right."""
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--output", str(out), "--quiet", "--json"]) == 0
    honest = Guarantee.from_dict(json.loads((out / "guarantee.json").read_text()))
    clean = replace(honest.privacy_model, unprotected=(), not_covered=())
    forged = account(honest.releases, privacy_model=clean, delta=honest.delta)
    assert forged.certified
    (out / "guarantee.json").write_text(json.dumps(forged.to_dict()))
    capsys.readouterr()
    assert main(["account", str(out)]) != 0
    printed = capsys.readouterr()
    assert "Certified" not in printed.out
    assert "do not rely on this run" in printed.err


@pytest.mark.usefixtures("_planted")
def test_a_resumed_run_keeps_its_caveats(tmp_path: Path, capsys: Capture) -> None:
    recipe = recipes.with_defaults(
        recipes.parse(recipes.DEFAULT_JOB, ["training.rounds=4", "data.clients=40"])
    )
    plan = plan_of(recipe, federation_of(recipe.data))
    run = Run(plan)
    directory = RunDirectory.create(tmp_path / "run", plan, recipes.to_table(recipe))
    rounds = iter(run.keep_in(directory))
    next(rounds)
    run.close()
    directory.close()
    assert main(["run", "--resume", str(tmp_path / "run"), "--json", "--quiet"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)["guarantee"]
    assert lists(document) == (list(plan.guarantee.rests_on), list(plan.guarantee.not_covered))
    assert document["certified"] is False
    assert "3 columns" in printed.err
    assert lists(asked(capsys, "account", str(tmp_path / "run"))) == lists(document)


def test_quiet_does_not_hide_that_nothing_will_be_learnt(tmp_path: Path, capsys: Capture) -> None:
    hopeless = [*SMALL, "--set", "privacy.epsilon=0.01", "--output", str(tmp_path / "run")]
    assert main(["run", *hopeless, "--quiet", "--json"]) == 0
    printed = capsys.readouterr()
    assert "warning: cohorts of 20 drown in this noise" in printed.err
    assert "drown in this noise" in json.loads(printed.out)["warnings"][0]
    assert "round 1/" not in printed.err


def test_quiet_does_not_hide_that_nothing_is_guaranteed(tmp_path: Path, capsys: Capture) -> None:
    plain = [*SMALL, "--set", "training.method=fedavg", "--output", str(tmp_path / "run")]
    assert main(["run", *plain, "--quiet"]) == 0
    assert "No guarantee: this method adds no noise." in capsys.readouterr().err


def test_a_protected_run_shows_no_times(tmp_path: Path, capsys: Capture) -> None:
    """They depend on who takes part and on how much data they have; a simulation may."""
    for seed, timed in (([], False), (["--seed", "1"], True)):
        out = tmp_path / str(timed)
        assert main(["run", *SMALL, *seed, "--explain", "--output", str(out), "--json"]) == 0
        printed = capsys.readouterr()
        assert (json.loads(printed.out)["seconds"] is not None) is timed
        assert (" s left" in printed.err) is timed
        assert ("clients/s" in printed.err) is timed
        assert ("seconds" in (out / "metrics.jsonl").read_text()) is timed


def test_secure_sums_in_one_process_are_told(tmp_path: Path) -> None:
    """What ran is the mechanism that was proved, but whoever runs it has seen everything."""
    table = recipes.read(RECIPES / "ddgauss.toml")
    for mode, word in (("ideal", "without masks"), ("masked", "it holds all clients' data")):
        changes = ["training.rounds=2", f"aggregation.secure={mode}"]
        guarantee = in_python(recipes.with_defaults(recipes.parse(table, changes)))
        (said,) = (one for one in guarantee.not_covered if one.startswith("Whoever runs this"))
        assert word in said
        assert guarantee.certified
    central = in_python(recipes.with_defaults(recipes.parse(recipes.DEFAULT_JOB)))
    assert not any(one.startswith("Whoever runs this") for one in central.not_covered)


def test_test_examples_are_told_and_whose_they_are() -> None:
    recipe = recipes.with_defaults(recipes.parse(recipes.DEFAULT_JOB, SMALL[1::2]))
    federation = federation_of(recipe.data)
    own = replace(federation, notes=(*federation.notes, HELD_OUT_NOTE))
    for given, words in ((federation, "Test examples: "), (own, "Test examples, which are the cl")):
        guarantee = plan_of(recipe, given).guarantee
        assert any(one.startswith(words) for one in guarantee.not_covered)
        assert guarantee.certified


SCHEMA = """
[columns.x]
type = "number"
min = 0
max = 10
[columns.y]
type = "category"
categories = ["no", "yes"]
"""


def test_a_public_schema_certifies_what_statistics_of_the_rows_do_not(
    tmp_path: Path, capsys: Capture
) -> None:
    """The same table: with the schema, without it, and without a client column."""
    rows = [f"{i % 30},{i % 7},{'yes' if i % 7 > 3 else 'no'}" for i in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["who,x,y", *rows]))
    (tmp_path / "s.toml").write_text(SCHEMA)
    table = ["--data", str(tmp_path / "t.csv"), "--label", "y", *TUNED]
    schema, by_owner = ["--schema", str(tmp_path / "s.toml")], ["--client-column", "who"]

    def guarantee(name: str, *more: str) -> dict[str, Any]:
        out = str(tmp_path / name)
        assert main(["run", *table, *more, "--quiet", "--json", "--output", out]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)["guarantee"]
        stored = asked(capsys, "account", out)
        assert {name: stored[name] for name in document} == document
        return document

    public = guarantee("public", *by_owner, *schema)
    assert public["certified"]
    assert any("the schema s.toml are public" in one for one in public["rests_on"])
    assert any("which are the clients' own" in one for one in public["not_covered"])
    judged = guarantee("judged", *by_owner)
    assert not judged["certified"]
    assert any("taken from the data" in one for one in judged["not_covered"])
    assert any("Means and deviations of 1 column" in one for one in judged["not_covered"])
    dealt = ["--set", "data.partition=iid", "--set", "data.clients=30"]
    shares = guarantee("shares", *schema, *dealt)
    assert any("artificial clients" in one for one in shares["not_covered"])


def test_votes_on_the_clients_own_inputs_are_not_certified() -> None:
    """They are public only if they were public before."""
    recipe = recipes.with_defaults(recipes.parse(recipes.read(RECIPES / "ae-dpfl.toml")))
    federation = federation_of(recipe.data)
    assert plan_of(recipe, federation).guarantee.certified
    own = replace(federation, notes=(*federation.notes, HELD_OUT_NOTE))
    guarantee = plan_of(recipe, own).guarantee
    assert not guarantee.certified
    assert "vote on" in guarantee.reason
    assert "The 220 inputs that are voted on are public." in guarantee.rests_on


def test_a_protected_run_does_not_say_how_many_processes_it_took(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several if clients have much data."""
    shown = []
    for seconds in (1e-6, 1e6):
        monkeypatch.setattr(
            "fedveil.training.engines.choose.predict",
            lambda *_, s=seconds: Prediction(s, s / 1e9, 100),
        )
        monkeypatch.setattr("fedveil.training.engines.choose.cores", lambda: 2)
        out = tmp_path / str(seconds)
        assert main(["run", *SMALL, "--set", "model.name=mlp", "--output", str(out), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out)["engine"])
    assert shown[0] == shown[1]


def test_figures_on_training_examples_are_not_certified() -> None:
    draw = np.random.default_rng(3)
    inputs, targets = draw.random((60, 3), dtype=np.float32), draw.integers(0, 2, 60)
    owners = np.repeat(np.arange(6), 10)[::-1]
    apart = Federation.from_arrays(
        inputs[:50], targets[:50], owners[:50], classes=2, task="classification",
        test=(inputs[50:], targets[50:]),
    )  # fmt: skip
    again = Federation.from_arrays(
        inputs, targets, owners, classes=2, task="classification", test=(inputs[50:], targets[50:])
    )
    taken = replace(apart, test=apart.train)
    recipe = recipes.with_defaults(recipes.parse({}, ["training.rounds=2", "privacy.delta=1e-3"]))
    for data, certified in ((apart, True), (again, False), (taken, False)):
        made = plan_of(recipe, data).guarantee
        assert made is not None
        assert made.certified is certified
        assert (
            any("training examples are" in one.lower() for one in made.not_covered) is not certified
        )
