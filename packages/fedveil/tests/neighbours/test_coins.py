"""Neighbours in runs whose clients toss secret coins: among the cases, those with noise shares."""

from __future__ import annotations

import pytest

from . import recipes
from .cases import draw_case
from .search import examine


@pytest.mark.parametrize("first", [0, pytest.param(300, marks=pytest.mark.slow)])
def test_no_neighbour_moves_more_than_was_accounted_under_secret_coins(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "_SEEN", ("secret-poisson",))
    pairs = claimed = 0
    for seed in range(first, first + 120 + 6 * first):
        training, privacy = (draw_case(seed).table[name] for name in ("training", "privacy"))
        shares = privacy.get("trust") == "distributed" or training["method"] == "ddgauss"
        if training.get("sampling") == "secret-poisson" and shares:
            found = examine(seed, among="cases")
            assert not found.violations, f"\n{found}"
            pairs += found.pairs
            claimed += "claimed" in found.tags
    assert pairs > 60
    assert claimed > 4
