"""What the pages and pictures say of the best recipes is what their runs found."""

from __future__ import annotations

import pytest

from benchmarks.frontier import RESULTS, current, jobs, kept
from benchmarks.frontier_tables import (
    FEDERATIONS,
    PAGE,
    every_run,
    opening_keys,
    page_with_tables,
    shown,
)

FOUND = current()
AGAIN = "python -m benchmarks.frontier --draw"


def test_every_recipe_was_run_as_it_is_now() -> None:
    assert set(kept()) == set(FOUND) == {name for name, _ in jobs("")}
    assert all(FOUND[name]["seeds"] for name in FOUND)


def test_pages_have_what_was_found() -> None:
    assert (RESULTS / "frontier.md").read_text() == every_run(FOUND), AGAIN
    assert PAGE.read_text() == page_with_tables(PAGE.read_text(), FOUND), AGAIN


@pytest.mark.parametrize("key", FEDERATIONS)
def test_a_picture_shows_what_was_found(key: str) -> None:
    picture = (RESULTS / f"frontier-{key}.png").read_bytes()
    assert shown((key,), FOUND).encode() in picture, AGAIN


def test_the_opening_picture_shows_what_was_found() -> None:
    picture = (PAGE.parent / "images" / "frontier.svg").read_text()
    assert shown(opening_keys(FOUND), FOUND) in picture, AGAIN


def test_a_result_that_changes_is_noticed() -> None:
    other = {**FOUND, "best/mnist-epsilon-1": FOUND["best/mnist-epsilon-2"]}
    assert every_run(other) != every_run(FOUND)
    assert page_with_tables(PAGE.read_text(), other) != page_with_tables(PAGE.read_text(), FOUND)
    for keys in (("mnist",), opening_keys(FOUND)):
        assert shown(keys, other) != shown(keys, FOUND)
