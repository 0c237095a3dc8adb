"""Neighbours in runs whose guarantee is about more than records or clients of a usual run: persons,
clients with secret coins, and records towards the readers of a trusted server's models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from unittest.mock import patch

import pytest

from fedveil.methods.parts.gradient_noise import TrustedNoise

from . import cases, recipes
from .cases import PERSONS, Case, draw_case
from .search import Found, examine


def search(seeds: Iterable[int], wanted: Callable[[Case], bool]) -> tuple[list[Found], Counter]:
    """Examine the wanted ones among these cases."""
    found = [examine(seed, among="cases") for seed in seeds if wanted(draw_case(seed))]
    return found, Counter(tag for one in found for tag in one.tags)


@pytest.mark.parametrize(
    ("first", "count"), [(2, 15), pytest.param(2 + 300 * PERSONS, 330, marks=pytest.mark.slow)]
)
def test_no_person_moves_more_than_was_accounted(first: int, count: int) -> None:
    """All records of one are replaced by more, or by fewer."""
    seeds = range(first, first + count * PERSONS, PERSONS)
    found, tags = search(seeds, lambda case: case.persons)
    assert not any(one.violations for one in found), "\n".join(map(str, found))
    assert sum(one.pairs for one in found) > 60
    assert {"claim person zero-out local", "claim person replace local"} <= set(tags)


def _tosses(case: Case) -> bool:
    training, privacy = (case.table[name] for name in ("training", "privacy"))
    shares = privacy.get("trust") == "distributed" or training["method"] == "ddgauss"
    return training.get("sampling") == "secret-poisson" and shares


@pytest.mark.parametrize("first", [0, pytest.param(300, marks=pytest.mark.slow)])
def test_no_neighbour_moves_more_than_was_accounted_under_secret_coins(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "_SEEN", ("secret-poisson",))
    found, tags = search(range(first, first + 120 + 6 * first), _tosses)
    assert not any(one.violations for one in found), "\n".join(map(str, found))
    assert sum(one.pairs for one in found) > 60
    assert tags["claimed"] > 4


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case is of DP-SGD with a server that adds the noise."""
    monkeypatch.setattr(cases, "METHODS", {"dp-sgd": 1})
    monkeypatch.setattr(recipes, "_trust", lambda draw, method: "central")


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), pytest.param(40, 800, marks=pytest.mark.slow)]
)
def test_no_record_moves_a_trusted_servers_sum_by_more_than_was_accounted(
    first: int, count: int
) -> None:
    found, tags = search(range(first, first + count), lambda case: not case.slow)
    assert not any(one.violations for one in found), "\n".join(map(str, found))
    assert sum(one.pairs for one in found) > 60
    assert {"mechanism PoissonSampled", "mechanism Gaussian"} <= set(tags)


@pytest.mark.usefixtures("trusted")
def test_a_trusted_server_that_forgets_the_grid_is_found() -> None:
    """Noise beside the clip, where a record moves a sum by its clip and by its rounding."""
    real = TrustedNoise._scale

    def scale(self: TrustedNoise, round_number: int) -> float:
        return real(self, round_number) / (1 + 1e-3)

    with patch.object(TrustedNoise, "_scale", scale):
        found, _ = search(range(60), lambda case: not case.slow)
    assert any(law.law == "b" for one in found for _, law in one.violations)
