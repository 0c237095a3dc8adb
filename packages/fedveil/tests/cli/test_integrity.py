"""A run directory whose files do not tell one story is refused and never certified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

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
from fedveil.privacy.ledger import MOVED, Ledger
from fedveil.run.checkpoint import load_checkpoint, save_checkpoint
from fedveil.run.directory import RunDirectory
from fedveil.run.evidence import Seen
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


def chained(documents: list[dict[str, object]]) -> str:
    """A ledger as somebody would write it who knows how it is made."""
    head, text = "", ""
    for document in documents:
        rest = {name: value for name, value in document.items() if name != "head"}
        head = sha256((head + json.dumps(rest, sort_keys=True)).encode()).hexdigest()
        text += json.dumps({**rest, "head": head}) + "\n"
    return text


def louder(document: dict[str, object]) -> None:
    """Let the plan of a ledger's header claim a hundred times its noise."""
    mechanism = document["plan"]["planned"][0]["mechanism"]  # type: ignore[index]
    mechanism["noise_std" if "noise_std" in mechanism else "noise_multiplier"] *= 100


def edited_noise(run: Path, other: Path) -> None:
    first, *rest = lines(run)
    document = json.loads(first)
    louder(document)
    write(run / "ledger.jsonl", "".join([json.dumps(document) + "\n", *rest]))


def forged_noise(run: Path, other: Path) -> None:
    documents = [json.loads(line) for line in lines(run)]
    louder(documents[0])
    write(run / "ledger.jsonl", chained(documents))


def forged_tail(run: Path, other: Path) -> None:
    """The last reservation is gone, and the file still hangs together."""
    write(run / "ledger.jsonl", chained([json.loads(line) for line in lines(run)[:-1]]))


def cut(run: Path, other: Path) -> None:
    write(run / "ledger.jsonl", "".join(lines(run)[:2]))


def cut_inside_a_line(run: Path, other: Path) -> None:
    write(run / "ledger.jsonl", "".join(lines(run))[:-30])


def deleted(run: Path, other: Path) -> None:
    (run / "ledger.jsonl").unlink()


def emptied(run: Path, other: Path) -> None:
    write(run / "ledger.jsonl", "")


def swapped(run: Path, other: Path) -> None:
    write(run / "ledger.jsonl", "".join(lines(other)))


def foreign_checkpoint(run: Path, other: Path) -> None:
    shutil.copy(other / "checkpoint/state.safetensors", run / "checkpoint/state.safetensors")


def no_checkpoint(run: Path, other: Path) -> None:
    (run / "checkpoint/state.safetensors").unlink()


def checkpoint_of_more_rounds(run: Path, other: Path) -> None:
    """Whole, and of this run; but the ledger that it has seen had paid for fewer."""
    state = run / "checkpoint/state.safetensors"
    known = stored_metadata(run)
    found = replace(load_checkpoint(state, known["run"]), rounds=DONE + 1)
    save_checkpoint(state, found, known["run"], Seen.from_metadata(known), durable=False)


def other_recipe(run: Path, other: Path) -> None:
    text = (run / "recipe.toml").read_text()
    write(run / "recipe.toml", text.replace("rounds = 6", "rounds = 5"))


def more_metrics(run: Path, other: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "loss": 1.0, "accuracy": 0.5, "epsilon_so_far": 0.1}\n')


def broken_metrics(run: Path, other: Path) -> None:
    write(run / "metrics.jsonl", "nonsense\n" + (run / "metrics.jsonl").read_text())


def edited_promise(run: Path, other: Path) -> None:
    document = json.loads((run / "guarantee.json").read_text())
    document["epsilon"] /= 2
    write(run / "guarantee.json", json.dumps(document))


def no_promise(run: Path, other: Path) -> None:
    (run / "guarantee.json").unlink()


DAMAGES = [
    edited_noise,
    forged_noise,
    forged_tail,
    cut,
    cut_inside_a_line,
    deleted,
    emptied,
    swapped,
    foreign_checkpoint,
    no_checkpoint,
    checkpoint_of_more_rounds,
    other_recipe,
    more_metrics,
    broken_metrics,
    edited_promise,
    no_promise,
]


@pytest.mark.parametrize("note", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_run_is_neither_resumed_nor_certified(
    fedveil: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path, Path], None],
    note: bool,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, other = begun(tmp_path / "run"), begun(tmp_path / "other")
    if not note:
        shutil.rmtree(tmp_path / "state")
    damage(run, other)
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


BOUGHT_DAMAGES = [
    edited_noise,
    forged_noise,
    forged_tail,
    cut_inside_a_line,
    emptied,
    swapped,
    edited_promise,
    no_promise,
]


@pytest.mark.parametrize("name", ["run.bought-2", "moved"])
@pytest.mark.parametrize("note", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("damage", BOUGHT_DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_purchase_is_not_certified(
    fedveil: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path, Path], None],
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
    damage(one, other)
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
    for forge in (forged_noise, edited_promise):
        damaged = tmp_path / f"{forge.__name__}.bought"
        shutil.copytree(run, damaged)
        forge(damaged, tmp_path / "other")
        assert fedveil("account", damaged)[0] == 2
    documents = [json.loads(line) for line in lines(run)]
    documents[0]["plan"]["recipe"] = ""
    documents[0]["plan"]["rounds"] = len(documents) - 1
    write(run / "ledger.jsonl", chained(documents))
    code, out, _ = fedveil("account", run)
    assert (code, out) == (2, "")


@pytest.mark.parametrize("seed", [None, 3], ids=["protected", "simulated"])
def test_without_ledger_and_guarantee_a_private_run_does_not_go_on(
    fedveil: Shell, tmp_path: Path, seed: int | None
) -> None:
    run = begun(tmp_path / "run", seed=seed)
    (run / "ledger.jsonl").unlink()
    (run / "guarantee.json").unlink()
    code, _, err = fedveil("run", "--resume", run)
    assert code == 2
    assert "ledger" in err
    assert fedveil("account", run)[0] == 2


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


def test_an_older_checkpoint_put_back_does_not_fit_the_metrics(
    fedveil: Shell, tmp_path: Path
) -> None:
    run = begun(tmp_path / "run", rounds=2)
    state = run / "checkpoint/state.safetensors"
    before = state.read_bytes()
    one_more(run)
    state.write_bytes(before)
    for command in (["account", run], ["run", "--resume", run]):
        code, _, err = fedveil(*command)
        assert code == 2
        assert "shows round 3" in err


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


def test_moved_goes_with_resume(fedveil: Shell) -> None:
    assert fedveil("run", "--moved")[0] == 2


def test_a_simulation_may_be_copied_and_goes_on(fedveil: Shell, tmp_path: Path) -> None:
    run = begun(tmp_path / "run", seed=3)
    shutil.copytree(run, tmp_path / "copy")
    models = []
    for path in (run, tmp_path / "copy"):
        assert fedveil("run", "--resume", path)[0] == 0
        models.append((path / "model.safetensors").read_bytes())
    assert models[0] == models[1]


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
    from fedveil.run import evidence

    recipe = recipes.with_defaults(recipes.parse({}, RECIPE))
    plan = plan_of(recipe, federation_of(recipe.data))
    directory = RunDirectory.create(tmp_path / "run", plan, recipes.to_table(recipe))
    reports = iter(Run(plan, every=1).keep_in(directory))
    next(reports)
    for name in ("metrics", "_metadata", "read"):
        original = getattr(evidence, name)

        def slowly(path: Path, original: Callable[[Path], object] = original) -> object:
            found = original(path)
            next(reports)
            return found

        monkeypatch.setattr(evidence, name, slowly)
    assert evidence.examined(tmp_path / "run").reserved == 4  # the ledger is read twice
    directory.close()


def test_a_file_put_in_the_ledgers_place_is_another_one(tmp_path: Path) -> None:
    """File systems give a freed inode to the next file; what they number, the ledger looks at."""
    from fedveil.privacy.ledger import file_of

    found = set()
    for _ in range(20):
        with (tmp_path / "f").open("wb") as file:
            found.add(file_of(file.fileno()))
        with (tmp_path / "f").open("rb") as file:
            assert file_of(file.fileno()) in found
        (tmp_path / "f").unlink()
    assert all(len(one) == 3 for one in found)


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


def test_metrics_that_are_no_text_are_one_clear_error(tmp_path: Path, fedveil: Shell) -> None:
    path = begun(tmp_path / "run")
    (path / "metrics.jsonl").write_bytes(bytes(range(256)))
    for arguments in (("account", path), ("run", "--resume", path)):
        assert fedveil(*arguments).refused
