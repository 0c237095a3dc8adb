"""No pair of neighbours is told apart by more than was accounted: a few thousand pairs.

Every case follows from its number, so these are always the same pairs; `make fuzz` takes others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from .__main__ import main
from .cases import METHODS, Case, draw_case
from .planted import MOST, NEAR, PLANTED, WHERE
from .search import examine
from .values import Kind, client
from .worlds import play

_CASES, _PARTS = 200, 20


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_neighbour_moves_more_than_was_accounted(part: int) -> None:
    pairs, tags = 0, Counter()
    for seed in range(part, _CASES, _PARTS):
        found = examine(seed)
        assert not found.violations, f"\n{found}"
        pairs += found.pairs
        tags.update(found.tags)
    assert pairs > 30
    assert tags["claimed"] > tags["not claimed"]


def test_cases_cover_the_program() -> None:
    """What is never drawn is never tested."""
    drawn = [draw_case(seed) for seed in range(_CASES)]
    assert {case.table["training"]["method"] for case in drawn} == set(METHODS)
    assert {case.path for case in drawn} == {"direct", "arrays", "stored", "csv"}
    assert {case.engine for case in drawn} == {"auto", "algebra", "mlp", "generic", "sequential"}


def found_from(first: int, name: str) -> None:
    pairs, seed = 0, first
    with PLANTED[name]():
        while pairs <= MOST[name]:
            if WHERE[name](draw_case(seed)):
                found = examine(seed)
                pairs += found.pairs
                if any(law.law != "!" for _, law in found.violations):  # a crash is no find
                    return
            seed += 1
    pytest.fail(f"not found in {pairs} pairs")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    found_from(NEAR[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, near in NEAR.items() if near])
def test_a_rare_bug_is_found_by_a_search_from_the_first_case_on(name: str) -> None:
    found_from(0, name)


def test_processes_sum_the_same_integers() -> None:
    """Workers are beyond our notes, but the sum that meets the noise is not. They draw from the
    operating system, so nothing is drawn here: all records in every step."""
    draw, kind = np.random.default_rng(8), Kind("classification", (3,), 2, finite=False, tame=True)
    clients = tuple(client(draw, kind, f"c{number}") for number in range(5))
    training = {"sampling": "everyone", "rounds": 2, "local_steps": 3, "learning_rate": 3.0}
    table = {
        "training": training,
        "privacy": {"noise_multiplier": 1.0, "clip_norm": 0.1},
        "model": {"name": "mlp", "hidden": [3]},
    }
    case = Case(8, table, kind, "direct", {}, clients)
    alone, shared = play(case, clients), play(replace(case, processes=2), clients)
    assert alone.notes.draws.keys() == shared.notes.draws.keys() != set()
    for key, met in alone.notes.draws.items():
        assert np.array_equal(met.entered, shared.notes.draws[key].entered)


def test_a_long_search_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With workers of its own, as `make fuzz` has them; together the sittings are one search."""
    state = tmp_path / "state.json"
    few = (2, 1, 1)  # values at each place
    command = [sys.executable, "-m", "tests.neighbours", "--state", str(state)]
    command += ["--values", *map(str, few)]
    root = Path(__file__).parents[2]
    options = {"cwd": root, "check": True, "capture_output": True, "timeout": 600}
    subprocess.run([*command, "--first", "1", "--pairs", "1", "--processes", "2"], **options)
    kept = json.loads(state.read_text())
    assert kept["first"] == 1 < kept["next"]
    assert main([*command[3:], "--pairs", str(kept["pairs"] + 1)]) == 0
    assert f"cases from {kept['next']} on" in capsys.readouterr().out
    both = json.loads(state.read_text())
    found = [examine(seed, few) for seed in range(1, both["next"])]
    assert both["pairs"] == sum(one.pairs for one in found) > kept["pairs"] > 0
    assert both["wrong"] == 0
