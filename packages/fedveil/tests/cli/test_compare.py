"""`fedveil compare` and `fedveil methods` as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.paths import SOURCES
from tests.shell import Done, Shell

RECIPES = SOURCES[0] / "fedveil" / "methods" / "recipes"
SMALL = ["--set", "training.rounds=2", "--set", "data.clients=20"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compare(fedveil: Shell, *more: str) -> Done:
    names = [RECIPES / f"{name}.toml" for name in ("dp-fedavg", "dp-sgd", "fedavg")]
    return fedveil("compare", *names, *SMALL, *more)


def test_contenders_meet_at_equal_epsilon_and_delta(fedveil: Shell, tmp_path: Path) -> None:
    document = compare(fedveil, "--seeds", "2", "--epsilon", "2,8", "--json").document
    rows = {(row["recipe"], row["epsilon"]): row for row in document["rows"]}
    assert set(rows) == {
        *((name, epsilon) for name in ("dp-fedavg", "dp-sgd") for epsilon in (2.0, 8.0)),
        ("fedavg", None),
    }
    for (name, epsilon), row in rows.items():
        assert row["runs"] == 2
        assert 0 <= row["mean"] <= 1
        if name == "fedavg":
            assert row["guarantee"] is None
            continue
        assert 0.99 * epsilon < row["guarantee"]["epsilon"] <= epsilon
        assert row["guarantee"]["delta"] == document["delta"]
    assert any("record" in line for line in document["promises_differ"])
    assert (tmp_path / document["page"]).is_file()


def test_finished_runs_are_not_run_again(fedveil: Shell, tmp_path: Path) -> None:
    def stored() -> dict[str, int]:
        files = (tmp_path / "comparison" / "runs").iterdir()
        return {path.name: path.stat().st_mtime_ns for path in files}

    first = compare(fedveil, "--seeds", "1", "--epsilon", "8")
    one = stored()
    assert len(one) == 3
    assert compare(fedveil, "--seeds", "1", "--epsilon", "8").out == first.out
    assert stored() == one
    compare(fedveil, "--seeds", "2", "--epsilon", "8")
    assert len(stored()) == 6
    assert one.items() <= stored().items()
    compare(fedveil, "--seeds", "1", "--epsilon", "8", "--set", "training.rounds=3")
    assert len(stored()) == 9


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--epsilon", "1,x"], "1,x"),
        (["--epsilon", "0"], "--epsilon 0"),
        (["--seeds", "0"], "--seeds"),
        (["--set", "training.roundz=1"], "training.rounds"),
        (["missing.toml"], "missing.toml"),
        ([str(RECIPES / "fedavg.toml")], "recipes"),
    ],
)
def test_bad_input_is_one_line(fedveil: Shell, options: list[str], named: str) -> None:
    done = fedveil("compare", RECIPES / "fedavg.toml", *options)
    assert done.refused
    assert named in done.err
