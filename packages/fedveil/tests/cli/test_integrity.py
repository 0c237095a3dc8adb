"""A run directory whose files do not tell one story is refused and never certified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.shell import Shell

from fedveil.cli import main
from fedveil.core.errors import ConfigError
from fedveil.data.federation import Examples, Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.plan import Plan
from fedveil.privacy.ledger import MOVED, Ledger, read
from fedveil.run import directory as module
from fedveil.run.directory import RunDirectory, load_checkpoint, save_checkpoint
from fedveil.run.run import Run

RECIPE = ["data.clients=20", "training.rounds=6", "training.rate=0.3", "evaluation.every=1"]
DONE = 3  # of six rounds


def begun(path: Path, *more: str, seed: int | None = None, rounds: int = DONE) -> Path:
    """A run that was stopped after some of its rounds."""
    values = {} if seed is None else {"seed": seed}
    recipe = recipes.with_defaults(recipes.parse({}, [*RECIPE, *more], values))
    plan = plan_of(recipe, federation_of(recipe.data))
    directory = RunDirectory.create(path, plan, recipes.to_table(recipe))
    reports: Iterator[object] = iter(Run(plan, every=1).keep_in(directory))
    for _ in range(rounds):
        next(reports)
    directory.close()
    return path


def opened(path: Path) -> tuple[Plan, RunDirectory]:
    """A run directory, opened to go on by the plan of its own recipe."""
    recipe = recipes.with_defaults(recipes.parse(recipes.read(path / "recipe.toml")))
    plan = plan_of(recipe, federation_of(recipe.data))
    return plan, RunDirectory.open(path, plan)


def one_more(path: Path) -> None:
    """Let a run go on for a round."""
    plan, directory = opened(path)
    next(iter(Run(plan).keep_in(directory)))
    directory.close()


def lines(path: Path) -> list[str]:
    return (path / "ledger.jsonl").read_text().splitlines(keepends=True)


def write(path: Path, text: str) -> None:
    """Into the same file: an editor that keeps the inode."""
    with path.open("r+") as file:
        file.truncate()
        file.write(text)


def chained(documents: list[dict[str, Any]]) -> str:
    """A ledger as somebody would write it who knows how it is made."""
    head, text = "", ""
    for document in documents:
        rest = {name: value for name, value in document.items() if name != "head"}
        head = sha256((head + json.dumps(rest, sort_keys=True)).encode()).hexdigest()
        text += json.dumps({**rest, "head": head}) + "\n"
    return text


def louder(run: Path) -> list[dict[str, Any]]:
    """The lines of a ledger whose header claims a hundred times the noise."""
    documents = [json.loads(line) for line in lines(run)]
    mechanism = documents[0]["plan"]["planned"][0]["mechanism"]
    mechanism["noise_std" if "noise_std" in mechanism else "noise_multiplier"] *= 100
    return documents


def checkpoint_of_more_rounds(run: Path, other: Path) -> None:
    """Whole, and of this run; but the ledger that it has seen had paid for fewer."""
    state, known = run / "checkpoint/state.safetensors", stored_metadata(run)
    found = replace(load_checkpoint(state, known["run"]), rounds=DONE + 1)
    save_checkpoint(state, found, known["run"], read(run / "ledger.jsonl"), durable=False)


def halved(run: Path, other: Path) -> None:
    document = json.loads((run / "guarantee.json").read_text())
    write(run / "guarantee.json", json.dumps(document | {"epsilon": document["epsilon"] / 2}))


def of_ledger(change: Callable[[Path, Path], str]) -> Callable[[Path, Path], None]:
    return lambda run, other: write(run / "ledger.jsonl", change(run, other))


def in_file(name: str, change: Callable[[str], str]) -> Callable[[Path, Path], None]:
    return lambda run, other: write(run / name, change((run / name).read_text()))


STATE = "checkpoint/state.safetensors"
METRICS = '{"round": 4, "loss": 1.0, "accuracy": 0.5, "epsilon_so_far": 0.1}\n'
BOUGHT_DAMAGES: dict[str, Callable[[Path, Path], object]] = {  # of a purchase, too
    "edited noise": of_ledger(lambda run, _: json.dumps(louder(run)[0]) + "\n" + lines(run)[1]),
    "forged noise": of_ledger(lambda run, _: chained(louder(run))),
    "forged tail": of_ledger(lambda run, _: chained([json.loads(n) for n in lines(run)[:-1]])),
    "cut inside a line": of_ledger(lambda run, _: "".join(lines(run))[:-30]),
    "emptied": of_ledger(lambda *_: ""),
    "swapped": of_ledger(lambda _, other: "".join(lines(other))),
    "edited promise": halved,
    "no promise": lambda run, _: (run / "guarantee.json").unlink(),
}
DAMAGES = BOUGHT_DAMAGES | {
    "cut": of_ledger(lambda run, _: "".join(lines(run)[:2])),
    "deleted": lambda run, _: (run / "ledger.jsonl").unlink(),
    "foreign checkpoint": lambda run, other: shutil.copy(other / STATE, run / STATE),
    "no checkpoint": lambda run, _: (run / STATE).unlink(),
    "checkpoint of more rounds": checkpoint_of_more_rounds,
    "other recipe": in_file("recipe.toml", lambda text: text.replace("rounds = 6", "rounds = 5")),
    "more metrics": in_file("metrics.jsonl", lambda text: text + METRICS),
    "broken metrics": in_file("metrics.jsonl", lambda text: "nonsense\n" + text),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("note", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_neither_resumed_nor_certified(
    fedveil: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    note: bool,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, other = begun(tmp_path / "run"), begun(tmp_path / "other")
    if not note:
        shutil.rmtree(tmp_path / "state")
    DAMAGES[damage](run, other)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for command in (["account", run], ["account", run, "--json"], ["run", "--resume", run]):
        assert fedveil(*command).refused
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def bought(folder: Path, epsilon: float) -> Path:
    """A purchase from which no run came: no two classes stand out of the noise."""
    table = folder / "rows.csv"
    rows = [f"c{number % 40},{number % 7},only" for number in range(200)]
    table.write_text("\n".join(["who,x,y", *rows]) + "\n")
    command = ["run", "--data", str(table), "--client-column", "who", "--label", "y", "--quiet"]
    command += ["--label-separator", ";", "--unit", "client", "--output", str(folder / "run")]
    command += ["--set", "data.statistics=bought", "--set", f"privacy.epsilon={epsilon}"]
    assert main(command) == 2
    assert not (folder / "run").exists()
    return folder / "run.bought"


@pytest.mark.parametrize("name", ["run.bought-2", "moved"])
@pytest.mark.parametrize("note", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("damage", BOUGHT_DAMAGES)
def test_a_damaged_purchase_is_not_certified(
    fedveil: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    note: bool,
    name: str,
) -> None:
    """What was bought is examined as a run is, whatever its directory is called."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, other = bought(tmp_path / "a", 0.5), bought(tmp_path / "b", 1.0)
    one = whole.rename(tmp_path / name)
    if not note:
        shutil.rmtree(tmp_path / "state")
    assert fedveil("account", one, "--json").document["certified"]
    BOUGHT_DAMAGES[damage](one, other)
    for command in (["account", one], ["account", one, "--json"], ["report", one]):
        assert fedveil(*command).refused


@pytest.mark.parametrize("note", [True, False], ids=["noted", "not noted"])
def test_no_name_makes_a_run_a_purchase(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: bool
) -> None:
    """Renamed, and with a header that names no recipe any more, it is examined all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = begun(tmp_path / "run").rename(tmp_path / "run.bought")
    assert fedveil("account", run)[0] == 0
    if not note:
        shutil.rmtree(tmp_path / "state")
    (tmp_path / "other").mkdir()
    for forge in ("forged noise", "edited promise"):
        damaged = tmp_path / f"{forge}.bought"
        shutil.copytree(run, damaged)
        DAMAGES[forge](damaged, tmp_path / "other")
        assert fedveil("account", damaged)[0] == 2
    documents = [json.loads(line) for line in lines(run)]
    documents[0]["plan"]["recipe"] = ""
    documents[0]["plan"]["rounds"] = len(documents) - 1
    write(run / "ledger.jsonl", chained(documents))
    code, out, _ = fedveil("account", run)
    assert (code, out) == (2, "")


def test_everything_put_back_to_an_earlier_state_is_noticed(fedveil: Shell, tmp_path: Path) -> None:
    """All files agree and are the same files; only the note outside knows better."""
    run = begun(tmp_path / "run", rounds=2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    one_more(run)
    for path, data in before.items():
        with path.open("r+b") as file:
            file.truncate()
            file.write(data)
    for command in (["account", run], ["run", "--resume", run]):
        code, _, err = fedveil(*command)
        assert code != 0
        assert "older copy" in err


def test_of_a_run_and_its_copy_only_one_goes_on(fedveil: Shell, tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy")
    done = fedveil("run", "--resume", tmp_path / "copy")
    assert done.refused
    assert "--moved" in done.err
    assert fedveil("account", tmp_path / "copy")[0] == 0  # whoever looks changes nothing

    moved = fedveil("run", "--resume", tmp_path / "copy", "--moved", "--json").document
    assert MOVED in moved["guarantee"]["rests_on"]
    found = fedveil("account", tmp_path / "copy", "--json").document
    assert MOVED in found["rests_on"]
    assert MOVED in found["statement"]
    for command in (
        ["run", "--resume", run],
        ["run", "--resume", run, "--moved"],
        ["account", run],
    ):
        assert fedveil(*command).refused


def test_without_a_note_a_copy_is_refused_all_the_same(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    shutil.copytree(run, tmp_path / "copy")
    assert fedveil("run", "--resume", tmp_path / "copy")[0] == 2
    run.rename(tmp_path / "elsewhere")
    code, out, err = fedveil("run", "--resume", tmp_path / "elsewhere", "--json")
    assert code == 0, err
    assert MOVED not in out


def test_a_lost_round_is_told_of_and_cannot_be_cut_off_any_more(
    fedveil: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round after the third was reserved and broke off; nothing outside knows of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = begun(tmp_path / "run")
    Ledger.open(run / "ledger.jsonl").reserve(DONE)
    shutil.rmtree(tmp_path / "state")
    plan, directory = opened(run)
    assert Run(plan).keep_in(directory).next_round == DONE + 1
    directory.close()
    whole = "".join(lines(run))
    write(run / "ledger.jsonl", "".join(lines(run)[:-1]))
    assert fedveil("run", "--resume", run)[0] == 2
    write(run / "ledger.jsonl", whole)
    code, out, err = fedveil("run", "--resume", run, "--json")
    assert code == 0
    assert "rounds that were cut off: 1" in err
    assert json.loads(out)["rounds"] == 6
    shown = [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert shown == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    "more",
    [(), ("privacy.trust=local",), ("training.sampling=balanced",)],
    ids=["amplified", "random cohorts that are seen", "schedule"],
)
def test_a_stopped_run_is_worth_its_whole_plan(
    fedveil: Shell, tmp_path: Path, more: tuple[str, ...]
) -> None:
    run = begun(tmp_path / "run", *more)
    promised = json.loads((run / "guarantee.json").read_text())
    found = fedveil("account", run, "--json").document
    assert (found["epsilon"], found["rounds"]) == (promised["epsilon"], 6)
    assert (found["rounds_begun"], found["rounds_planned"]) == (3, 6)
    assert 0 < found["not_certified_epsilon_of_rounds_begun"] < promised["epsilon"]
    assert "not certified" in " ".join(fedveil("account", run).out.split())


def test_a_run_of_another_plan_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    plan, directory = opened(run)
    quieter = replace(plan, noise_multiplier=0.1)
    with pytest.raises(ConfigError):
        Run(quieter).keep_in(directory)
    Run(plan).keep_in(directory)
    directory.close()
    with pytest.raises(ConfigError, match="promises something else"):
        RunDirectory.open(run, quieter)


def neighbour(federation: Federation) -> Federation:
    """Another label and other inputs of one record; the sizes stay."""
    targets, inputs = federation.train.targets.copy(), federation.train.inputs.copy()
    targets[0] = (targets[0] + 1) % federation.classes
    inputs[0] = 0
    return replace(federation, train=Examples(inputs, targets))


def stored_metadata(path: Path) -> dict[str, str]:
    with safe_open(path / "checkpoint/state.safetensors", framework="np") as file:
        found = dict(file.metadata())
        found["tensors"] = sha256(
            b"".join(
                np.ascontiguousarray(file.get_tensor(n)).tobytes() for n in sorted(file.keys())
            )
        ).hexdigest()
    return found


@pytest.mark.parametrize("seed", [None, 3], ids=["protected", "simulated"])
def test_nothing_that_is_written_before_the_first_round_depends_on_private_data(
    tmp_path: Path, seed: int | None
) -> None:
    """A hash of labels is a release. Only a simulation keeps one, to notice other data."""
    values = {} if seed is None else {"seed": seed}
    recipe = recipes.with_defaults(recipes.parse({}, RECIPE, values))
    data = federation_of(recipe.data)
    found = []
    for name, federation in (("a", data), ("b", neighbour(data))):
        plan = plan_of(recipe, federation)
        RunDirectory.create(tmp_path / name, plan, recipes.to_table(recipe)).close()
        random = ("ledger_run", "ledger_head", "digest")  # of the run, not of its data
        known = stored_metadata(tmp_path / name)
        header = json.loads(lines(tmp_path / name)[0])
        files = {
            file: (tmp_path / name / file).read_text() for file in ("guarantee.json", "recipe.toml")
        }
        found.append(
            ({key: known[key] for key in known if key not in random}, header["plan"], files)
        )
    assert (found[0] == found[1]) == (seed is None)
    plan = plan_of(recipe, neighbour(data))
    directory = RunDirectory.open(tmp_path / "a", plan)
    if seed is None:
        directory.load()
    else:
        with pytest.raises(ConfigError, match="other data"):
            directory.load()
    directory.close()


def test_a_run_may_be_looked_at_while_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two files that are read, a whole round may pass."""
    recipe = recipes.with_defaults(recipes.parse({}, RECIPE))
    plan = plan_of(recipe, federation_of(recipe.data))
    directory = RunDirectory.create(tmp_path / "run", plan, recipes.to_table(recipe))
    reports = iter(Run(plan, every=1).keep_in(directory))
    next(reports)
    for name in ("metrics", "_metadata", "read"):
        original = getattr(module, name)

        def slowly(path: Path, original: Callable[[Path], object] = original) -> object:
            found = original(path)
            next(reports)
            return found

        monkeypatch.setattr(module, name, slowly)
    assert module.examined(tmp_path / "run").reserved == 4  # the ledger is read twice
    directory.close()


SCHEMA = """
[columns.x]
type = "number"
min = 0
max = 1

[columns.y]
type = "category"
categories = ["0", "1"]
"""


def owned(path: Path, owners: list[str]) -> None:
    rows = [f"{owner},0.{number},{number % 2}" for owner in owners for number in range(6)]
    path.write_text("\n".join(["who,x,y", *rows]) + "\n")


def test_a_schedule_does_not_go_on_with_other_clients(tmp_path: Path, fedveil: Shell) -> None:
    """Turns count places: who moves down a place may have two of them, and pays for one."""
    table, names = tmp_path / "rows.csv", [f"owner {number}" for number in range(10)]
    owned(table, names)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    values = [
        f"data.file={table}",
        "data.client_column=who",
        "data.label=y",
        f"data.schema={tmp_path / 'schema.toml'}",
        "training.sampling=round-robin",
        "training.cohort=5",
        "training.rounds=2",
    ]
    recipe = recipes.with_defaults(recipes.parse({}, values, {}))
    plan = plan_of(recipe, federation_of(recipe.data))
    assert plan.guarantee is not None
    assert plan.guarantee.participations == 1
    directory = RunDirectory.create(tmp_path / "run", plan, recipes.to_table(recipe))
    next(iter(Run(plan).keep_in(directory)))
    directory.close()

    owned(table, ["a new one", *names[:-1]])  # in order of names: everybody moves down a place
    code, out, err = fedveil("run", "--resume", tmp_path / "run", "--quiet")
    assert code == 2
    assert "something else" in err
    assert out == ""
    owned(table, names)
    assert fedveil("run", "--resume", tmp_path / "run", "--quiet")[0] == 0
