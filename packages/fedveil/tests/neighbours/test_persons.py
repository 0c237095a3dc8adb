"""Neighbours in runs that protect persons: all records of one are replaced by more, or by fewer."""

from __future__ import annotations

from collections import Counter

import pytest

from .cases import PERSONS, draw_case
from .search import examine


@pytest.mark.parametrize(
    ("first", "cases"), [(2, 15), pytest.param(2 + 300 * PERSONS, 330, marks=pytest.mark.slow)]
)
def test_no_person_moves_more_than_was_accounted(first: int, cases: int) -> None:
    pairs, tags = 0, Counter[str]()
    for seed in range(first, first + cases * PERSONS, PERSONS):
        if draw_case(seed).persons:
            found = examine(seed, among="cases")
            assert not found.violations, f"\n{found}"
            pairs += found.pairs
            tags.update(found.tags)
    assert pairs > 60
    claims = {tag for tag in tags if tag.startswith("claim ")}
    assert claims >= {"claim person zero-out local", "claim person replace local"}
