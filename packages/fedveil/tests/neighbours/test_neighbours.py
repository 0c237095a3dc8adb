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
from tests.paths import ROOT

from .__main__ import main
from .cases import METHODS, Case, draw_case
from .doors.names import publication_rate
from .doors.rows import draw_sheet
from .doors.sources import DOORS
from .doors.types import examine_types
from .planted import AMONG, MOST, NEAR, PLANTED, WHERE
from .search import COMMAND, examine
from .values import Kind, client
from .whole import COMMANDS, draw_job
from .worlds import play

_CASES, _PARTS = 120, 12


@pytest.mark.sampled(2)
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


def test_every_door_is_read_and_every_command_carried_out() -> None:
    """Where something is claimed: a door at which nothing is certified tests nothing."""
    claimed, commands = Counter(), Counter()
    for seed in range(_CASES):
        sheet = draw_sheet(seed, tuple(DOORS))[0]
        claimed[sheet.door] += sheet.claimable
        commands[draw_job(seed)[0].command] += 1
    assert set(claimed) == set(DOORS)
    assert min(claimed.values()) > 2
    assert set(commands) == set(COMMANDS)


def test_cases_cover_the_program() -> None:
    """What is never drawn is never tested."""
    drawn = [draw_case(seed) for seed in range(_CASES)]
    assert {case.table["training"]["method"] for case in drawn} == set(METHODS)
    assert {case.path for case in drawn} == {"direct", "arrays", "stored", "csv"}
    assert {case.engine for case in drawn} == {"auto", "algebra", "mlp", "generic", "sequential"}


_DRAWN = {
    "cases": draw_case,
    "sheets": lambda seed: draw_sheet(seed, tuple(DOORS))[0],
    "jobs": lambda seed: draw_job(seed)[0],
}


def found_from(first: int, name: str) -> None:
    among, pairs, seed = AMONG[name], 0, first
    step = COMMAND if among == "jobs" else 1
    seed += (COMMAND // 2 - seed) % COMMAND if among == "jobs" else 0
    with PLANTED[name]():
        while pairs <= MOST[name]:
            if WHERE[name](_DRAWN[among](seed)):
                found = examine(seed, among=among)
                pairs += found.pairs
                if any(law.law != "!" for _, law in found.violations):  # a crash is no find
                    return
            seed += step
    pytest.fail(f"not found in {pairs} pairs")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    found_from(NEAR[name], name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, near in NEAR.items() if near])
def test_a_rare_bug_is_found_by_a_search_from_the_first_case_on(name: str) -> None:
    found_from(0, name)


# Lists of inputs have no type that is public, so nothing is certified for them.
_CLAIMED = (("datasets", "inputs"), ("datasets", "targets"), ("lists", "targets"))


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_type_of_one_client_shows_in_another(every: int) -> None:
    """Every seventh ordered pair of types, at each door, and all of them among the slow tests."""
    claimed = Counter()
    for mixture, claims, laws in examine_types(every):
        assert not laws, f"{mixture}: {laws}"
        claimed[mixture.door, mixture.what] += claims
    assert all(claimed[door] > 100 for door in _CLAIMED), claimed


@pytest.mark.parametrize("values", [20, 120])
def test_names_of_one_unit_are_published_as_rarely_as_accounted(values: int) -> None:
    """With the program's own noise. A correct program fails once in a million."""
    least, accounted = publication_rate(values)
    assert least <= accounted


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
    """Together the sittings are one search."""
    state, few = tmp_path / "state.json", (2, 1, 1)  # values at each place
    command = ["--state", str(state), "--values", *map(str, few)]
    assert main([*command, "--first", "1", "--pairs", "1"]) == 0
    kept = json.loads(state.read_text())
    assert kept["first"] == 1 < kept["next"]
    assert main([*command, "--pairs", str(kept["pairs"] + 1)]) == 0
    assert f"cases from {kept['next']} on" in capsys.readouterr().out
    both = json.loads(state.read_text())
    found = [examine(seed, few) for seed in range(1, both["next"])]
    assert both["pairs"] == sum(one.pairs for one in found) > kept["pairs"] > 0
    assert both["wrong"] == 0


@pytest.mark.slow
def test_workers_of_a_long_search_find_the_same(tmp_path: Path) -> None:
    """As `make fuzz` has them."""
    kept = []
    for processes in ("1", "2"):
        state = tmp_path / processes
        command = [sys.executable, "-m", "tests.neighbours", "--state", str(state), "--first", "1"]
        command += ["--values", "2", "1", "1", "--pairs", "20", "--processes", processes]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
        kept.append({**json.loads(state.read_text()), "seconds": 0})
    assert kept[0] == kept[1]
