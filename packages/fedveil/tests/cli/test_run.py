"""`fedveil run` as a user meets it; in a process of its own where it is to be killed."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.processes import Command
from tests.settings import TUNED
from tests.shell import Shell

from fedveil.cli import main
from fedveil.report.facts import document_of

SMALL = ["--set", "training.rounds=6", "--set", "training.rate=0.3", "--set", "data.clients=40"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def weights(directory: Path) -> bytes:
    tensors = load_file(directory / "model.safetensors")
    return b"".join(tensors[name].tobytes() for name in sorted(tensors))


def test_a_protected_run_keeps_nothing_that_noise_does_not_cover(
    fedveil: Shell, tmp_path: Path
) -> None:
    assert fedveil("run", *SMALL, "--output", "out").code == 0
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".jsonl", ".json", ".toml"):
            text = path.read_text()
            assert "unprotected_stats" not in text
            assert 'norm"' not in text.replace('clip_norm"', "")
    lines = (tmp_path / "out/metrics.jsonl").read_text().splitlines()
    allowed = {"round", "loss", "accuracy", "epsilon_so_far"}
    assert all(set(json.loads(line)) <= allowed for line in lines)


def test_a_seed_repeats_a_run_and_is_not_certified(fedveil: Shell, tmp_path: Path) -> None:
    for name in ("a", "b"):
        done = fedveil("run", *SMALL, "--seed", "7", "--output", name, "--json")
        assert json.loads(done.out)["guarantee"]["certified"] is False
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    fedveil("run", *SMALL, "--seed", "8", "--output", "c")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


BAD = {
    "unknown key": (["--set", "training.roundz=3"], "training.rounds"),
    "epsilon": (["--set", "privacy.epsilon=0"], "privacy.epsilon"),
    "negative epsilon": (["--set", "privacy.epsilon=-1"], "privacy.epsilon"),
    "delta zero": (["--set", "privacy.delta=0"], "privacy.delta"),
    "delta above 1/clients": (["--set", "privacy.delta=0.5"], "privacy.delta"),
    "cohort": (["--set", "training.cohort=1000"], "1000"),
    "rounds": (["--set", "training.rounds=0"], "rounds"),
    "method": (["--set", "training.method=magic"], "magic"),
    "model": (["--set", "model.name=magic"], "magic"),
    "engine": (["--set", "engine.name=magic"], "magic"),
    "recipe": (["nothing.toml"], "nothing.toml"),
    "data file": (["--data", "nothing.csv", "--client-column", "a", "--label", "b"], "nothing.csv"),
    "option": (["--frobnicate"], "--frobnicate"),
    "resume": (["--resume", "nothing"], "nothing"),
    "seed": (["--seed", "x"], "--seed"),
    "word for a number": (["--epsilon", "abc"], "--epsilon: need a number, got 'abc'"),
    "unit": (["--unit", "user"], "--unit: need one of record, person, client"),
}


@pytest.mark.parametrize(("arguments", "named"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_exit_code_2(
    fedveil: Shell, arguments: list[str], named: str, tmp_path: Path
) -> None:
    done = fedveil("run", *arguments)
    assert done.refused, done.err
    assert named in done.err
    assert list(tmp_path.iterdir()) == []  # nothing half-written


@pytest.mark.parametrize(
    "wrong", [["--classes", "A"], ["--classes", "A,B", "--class-weights", "Q=2"]]
)
def test_wrong_classes_are_refused_before_statistics_are_bought(
    fedveil: Shell, wrong: list[str], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("x,grade\n" + "1,A\n2,B\n" * 200)
    done = fedveil("run", "--data", "t.csv", "--label", "grade", "--quiet", *wrong)
    assert done.refused, done.err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_what_a_finished_run_cannot_be_asked(fedveil: Shell, tmp_path: Path) -> None:
    assert fedveil("run", *SMALL, "--output", "out", "--quiet", "--no-report").code == 0
    for line in (
        ["calibrate", "out", "--epsilon", "2"],
        ["account", "out", "--rounds", "3"],
        ["report", "out", "--output", "."],
        ["report", "out", "--output", "nowhere/x.html"],
    ):
        assert fedveil(*line).refused, line


@pytest.mark.parametrize(
    "words", [["list", "digits"], ["show", "digits", "--epsilon", "1"], ["list", "--label", "a"]]
)
def test_data_refuses_what_its_action_does_not_use(fedveil: Shell, words: list[str]) -> None:
    assert fedveil("data", *words).refused


def test_a_run_that_nothing_can_be_tested_on_says_so(fedveil: Shell, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,grade\n" + "1,A\n2,B\n" * 200)
    options = ["--data", "t.csv", "--label", "grade", "--classes", "C,D", "--quiet", "--json"]
    document = fedveil("run", *options).document
    assert document["accuracy"] is None
    assert any("--classes" in warning for warning in document["warnings"])


LONG = ["--set", "training.rounds=30", "--set", "training.local_epochs=2"]
LONG += ["--set", "evaluation.every=2", "--set", "engine.chunk=1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights at the end of the long run with seed 3, when nothing happens to it."""
    output = tmp_path_factory.mktemp("long") / "whole"
    assert main(["run", *LONG, "--seed", "3", "--quiet", "--output", str(output)]) == 0
    return weights(output)


def held(folder: Path, output: str) -> Command:
    """The long run, after its second round."""
    running = Command(folder, "run", *LONG, "--seed", "3", "--output", output, hold=True)
    running.wait_for("holding")
    return running


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on_and_does(
    fedveil: Shell, tmp_path: Path, whole: bytes, number: int
) -> None:
    running = held(tmp_path, "cut")
    assert running.end(number) == 130
    assert "after round 2 of 30" in running.errors
    assert "--resume cut" in running.errors
    assert fedveil("run", "--resume", "cut").code == 0
    assert weights(tmp_path / "cut") == whole


def killed_and_resumed(
    fedveil: Shell, tmp_path: Path, seed: int | None, kills: int, *, anywhere: bool = False
) -> Path:
    """A run killed `kills` times at random moments and always resumed: after its first new round,
    or `anywhere` in the life of a process."""
    draw = random.Random(1)
    options = [] if seed is None else ["--seed", str(seed)]
    first = ["run", *LONG, *options, "--output", "cut"]
    for _ in range(kills):
        exists = (tmp_path / "cut").exists()
        running = Command(tmp_path, *(["run", "--resume", "cut"] if exists else first))
        if not (anywhere and exists):
            running.wait_for("round ", or_end=True)  # a fast machine may leave nothing to resume
        time.sleep(draw.uniform(0.0, 2.0 if anywhere else 0.05))
        running.end()
    last = fedveil("run", "--resume", "cut", "--json")
    assert last.code == 0, last.err
    return tmp_path / "cut"


@pytest.mark.slow
def test_twenty_kills_leave_the_same_weights(fedveil: Shell, tmp_path: Path, whole: bytes) -> None:
    cut = killed_and_resumed(fedveil, tmp_path, 3, 20, anywhere=True)
    assert weights(cut) == whole
    assert len((cut / "ledger.jsonl").read_text().splitlines()) == 1 + 30


def test_a_kill_leaves_the_same_weights(fedveil: Shell, tmp_path: Path, whole: bytes) -> None:
    assert weights(killed_and_resumed(fedveil, tmp_path, 3, 2)) == whole


def test_a_protected_run_killed_mid_round_never_releases_more_than_planned(
    fedveil: Shell, tmp_path: Path
) -> None:
    cut = killed_and_resumed(fedveil, tmp_path, None, 3)
    entries = (cut / "ledger.jsonl").read_text().splitlines()[1:]
    rounds = [json.loads(line)["round"] for line in entries]
    assert rounds == list(range(30))  # each once: what was cut off is not drawn again
    shown = [json.loads(line)["round"] for line in (cut / "metrics.jsonl").read_text().splitlines()]
    assert shown == sorted(set(shown))
    assert len(shown) >= 27  # a kill loses the round that it hits, and no other


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "empty"])
def test_a_damaged_or_foreign_checkpoint_is_refused(
    fedveil: Shell, tmp_path: Path, damage: str
) -> None:
    fedveil("run", *SMALL, "--seed", "1", "--output", "a")
    state = tmp_path / "a/checkpoint/state.safetensors"
    data = bytearray(state.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "empty":
        data = bytearray()
    else:
        fedveil("run", *SMALL, "--seed", "2", "--output", "b")
        data = bytearray((tmp_path / "b/checkpoint/state.safetensors").read_bytes())
    state.write_bytes(data)
    done = fedveil("run", "--resume", "a")
    assert done.refused, done.err
    assert "checkpoint" in done.err


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    fedveil: Shell, tmp_path: Path
) -> None:
    """A limit on file sizes stands in for the full disk: writes fail the same way."""
    limited = (
        "import resource, runpy, sys;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "sys.argv = ['fedveil', *sys.argv[1:]];"
        "from fedveil.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", limited, "run", *SMALL, "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("fedveil:")]) == 1
    assert list(tmp_path.iterdir()) == []


TABLE = ["--data", "t.csv", "--client-column", "who", "--label", "label", *TUNED]


@pytest.fixture
def _table(tmp_path: Path) -> None:
    rows = [f"c{i % 20},{i % 7},{'ab'[(i % 7) > 3]},{'xyz'[i % 3]}" for i in range(400)]
    (tmp_path / "t.csv").write_text("who,number,label,kind\n" + "\n".join(rows) + "\n")


@pytest.mark.usefixtures("_table")
def test_the_guarantee_comes_first_and_nothing_is_said_twice(fedveil: Shell) -> None:
    done = fedveil("run", *TABLE, "--set", "data.statistics=data")
    assert done.code == 0, done.err
    assert "\x1b[" not in done.err + done.out  # plain lines when nobody watches
    said = " ".join(done.err.split())
    assert said.startswith("Guarantee: Not certified: epsilon ")
    assert "more reasons. Nobody who sees " in said
    everything = f"{done.out} {said}"
    assert everything.count("Not certified") == 1
    assert everything.count("was decided from the data") == 1
    sentences = re.split(r"(?:note|warning): ", said.split(" In full: ")[1].split(" round 1/")[0])
    assert len(sentences) == 5
    assert len(set(sentences)) == len(sentences)


@pytest.mark.usefixtures("_table")
def test_without_a_client_column_all_rows_are_one_owners(fedveil: Shell) -> None:
    """And a row of it is protected; a column that is named wrongly is still a mistake."""
    one = ["--data", "t.csv", "--label", "label", *TUNED[2:], "--seed", "1", "--output", "one"]
    document = fedveil("run", *one, "--set", "data.statistics=data", "--json").document
    assert document["guarantee"]["unit"] == "record"
    assert document["clients"] == 1
    assert "kind" in {row["column"] for row in document["columns"] if row["inputs"]}
    assert document_of(Path("one"))["title"].endswith("on t.csv")
    assert fedveil("run", *one[:4], "--client-column", "wo").refused
