"""No pair of neighbours is told apart by more than was accounted: a few thousand pairs.

Every case follows from its number, so these are always the same pairs; `make fuzz` takes others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from .cases import METHODS, Case, draw_case
from .planted import MOST, PLANTED, WHERE
from .search import examine
from .worlds import play

_CASES, _PARTS = 720, 24


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_neighbour_moves_more_than_was_accounted(part: int) -> None:
    pairs, tags = 0, Counter()
    for seed in range(part, _CASES, _PARTS):
        found = examine(seed)
        assert not found.violations, f"\n{found}"
        pairs += found.pairs
        tags += found.tags
    assert pairs > 50
    assert tags["claimed"] > tags["not claimed"]


def test_cases_cover_the_program() -> None:
    """What is never drawn is never tested."""
    drawn = [draw_case(seed) for seed in range(_CASES)]
    assert {case.table["training"]["method"] for case in drawn} == set(METHODS)
    assert {case.path for case in drawn} == {"direct", "arrays", "stored", "csv"}
    assert {case.engine for case in drawn} == {"auto", "algebra", "mlp", "generic", "sequential"}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    pairs, seed = 0, 0
    with PLANTED[name]():
        while pairs <= MOST[name]:
            if WHERE[name](draw_case(seed)):
                found = examine(seed)
                pairs += found.pairs
                if found.violations:
                    return
            seed += 1
    pytest.fail(f"not found in {pairs} pairs")


def test_processes_sum_the_same_integers() -> None:
    """Workers are beyond our notes, but the sum that meets the noise is not."""
    case = next(case for case in map(draw_case, range(1000)) if _repeatable(case))
    alone, shared = play(case, case.clients), play(replace(case, processes=2), case.clients)
    assert alone.notes.draws.keys() == shared.notes.draws.keys() != set()
    for key, draw in alone.notes.draws.items():
        assert np.array_equal(draw.entered, shared.notes.draws[key].entered)


def _repeatable(case: Case) -> bool:
    """Whether clients draw nothing: workers draw from the operating system."""
    training = case.table["training"]
    updates = training["method"] == "dp-fedavg" and case.table["privacy"].get("trust") == "central"
    drawing = case.module or "batch_size" in training or case.engine in ("generic", "sequential")
    return bool(updates and not drawing and case.path == "direct" and case.kind.tame)
