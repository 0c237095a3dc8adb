"""Pages of comparisons: what their charts and tables say is what the runs say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Page, needs_axe, needs_browser

from fedveil.cli import main
from fedveil.report.charts import _ticks, same_axes
from fedveil.report.compared import comparison_page, document_of
from fedveil.report.spread import spread_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    words = ["compare", "dp-fedavg", "fedavg", "--epsilon", "2,8", "--seeds", "2", "--quiet"]
    small = ["--set", "training.rounds=2", "--set", "data.clients=30"]
    assert main([*words, *small, "--output", str(folder)]) == 0
    return folder


def embedded(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'id="document">(.*?)</script>', page, re.DOTALL)
    document: dict[str, Any] = json.loads(found)
    return document


def test_the_page_says_what_the_runs_say(folder: Path) -> None:
    document = embedded((folder / "comparison.html").read_text())
    outcomes = [json.loads(file.read_text()) for file in (folder / "runs").glob("*.json")]
    assert len(outcomes) == 6
    columns, rows = document["table"]["columns"], document["table"]["rows"]
    found = {(row[0], row[2]): row[columns.index("accuracy")] for row in rows}
    assert set(found) == {("dp-fedavg", 2.0), ("dp-fedavg", 8.0), ("fedavg", None)}
    for (_, epsilon), (mean, deviation) in found.items():
        of = [
            one["accuracy"]
            for one in outcomes
            if (one.get("guarantee") or {"epsilon": None})["epsilon"] is epsilon is None
            or (
                epsilon
                and one.get("guarantee")
                and abs(one["guarantee"]["epsilon"] - epsilon) < 0.1
            )
        ]
        assert mean == pytest.approx(sum(of) / 2)
        assert deviation == pytest.approx(abs(of[0] - of[1]) / 2**0.5)
    (chart,) = document["charts"].values()
    assert chart["bars"] == "standard deviation of single runs"
    private, plain = chart["series"]
    assert [point[0] for point in private["points"]] == [2.0, 8.0]
    assert plain["name"] == "fedavg, no budget set"
    assert "none of them is certified" in (folder / "comparison.html").read_text()


def test_names_are_text_and_numbers_that_are_none_are_said() -> None:
    rows = [["<b>&", None, [None, None], [1.5, None], [1.5, 0.25]]]
    page = comparison_page(document_of("<i>", {"A": ["<u>"]}, [], list("abcde"), rows))
    body = page.partition('id="document"')[0]
    assert not re.findall(r"<[biu]>", body)
    assert re.findall(r">([^<]+)</td>", body) == ["–", "–", "1.5", "1.5 ± 0.25"]


def test_one_run_has_no_bar() -> None:
    from fedveil.report.compared import point

    assert point(1.0, spread_of([3.0])) == [1.0, 3.0]
    assert point(1.0, spread_of([3.0, 5.0])) == [1.0, 4.0, pytest.approx(2**0.5, rel=1e-3)]


def test_charts_of_the_same_quantities_have_the_same_axes() -> None:
    """Else the eye compares heights that mean different things."""
    places = {"a": [[1, 2.0], [4, 8.0]], "b": [[2, -1.0], [8, 3.0]]}
    one, other = (
        {"title": name, "x": "T", "y": "loss", "series": [{"name": "m", "points": points}]}
        for name, points in places.items()
    )
    boxes = same_axes({"a": one, "b": other, "c": other | {"y": "gain"}})
    assert boxes["a"] == boxes["b"] != boxes["c"]
    for points in places.values():
        for x, y in points:
            assert boxes["a"].x_low <= x <= boxes["a"].x_high
            assert boxes["a"].y_low <= y <= boxes["a"].y_high
    drawn = comparison_page(document_of("t", {"A": ["s"]}, [one, other], ["r"], [["m"]]))
    assert len(set(re.findall(r'data-box="([^"]+)"', drawn))) == 1


@pytest.mark.parametrize("wide", [0.1, 0.99, 1.0, 2.3, 5.5, 9.9, 24.0, 55.0])
def test_an_axis_has_a_few_round_numbers(wide: float) -> None:
    for low in (0.0, 0.37, -1.21):
        marks = _ticks(low, low + wide)
        assert 2 <= len(marks) <= 6
        assert low - 1e-9 <= marks[0]
        assert marks[-1] <= low + wide + 1e-9


@needs_browser
def test_a_click_sorts_and_another_turns_it_round(browser: Page, folder: Path) -> None:
    browser.problems.clear()
    browser.look()
    browser.open(folder / "comparison.html")
    columns = browser.run("[...document.querySelectorAll('th button')].map(b => b.textContent)")
    at = columns.index("epsilon")
    press = f"document.querySelectorAll('th button')[{at}].click()"
    read = f"[...document.querySelectorAll('.sorts tbody tr')].map(r => r.cells[{at}].textContent)"
    browser.run(press)
    assert browser.run(read) == ["2", "8", "–"]
    heads = "[...document.querySelectorAll('[aria-sort]')].map(h => h.getAttribute('aria-sort'))"
    assert browser.run(heads) == ["ascending"]
    browser.run(press)
    assert browser.run(read) == ["–", "8", "2"]
    assert browser.run(heads) == ["descending"]
    browser.run("document.querySelectorAll('th button')[0].click()")
    names = "[...document.querySelectorAll('.sorts tbody tr')].map(r => r.cells[0].textContent)"
    assert browser.run(names) == ["dp-fedavg", "dp-fedavg", "fedavg"]
    assert browser.problems == []


@needs_browser
def test_bars_are_as_long_as_they_say(browser: Page, folder: Path) -> None:
    browser.look()
    browser.open(folder / "comparison.html")
    (chart,) = embedded((folder / "comparison.html").read_text())["charts"].values()
    svg = "document.querySelector('svg[data-chart]')"
    _, _, low, high = map(float, browser.run(f"{svg}.dataset.box").split(","))
    _, _, top, bottom = map(float, browser.run(f"{svg}.dataset.margins").split(","))
    height = browser.run(f"{svg}.viewBox.baseVal.height") - top - bottom
    drawn = browser.run(f"[...{svg}.querySelectorAll('.bar')].map(b => b.getBBox().height)")
    halves = [point[2] for series in chart["series"] for point in series["points"] if point[2]]
    assert len(drawn) == len(halves)
    for length, half in zip(drawn, halves, strict=True):
        assert length / height * (high - low) == pytest.approx(2 * half, abs=1e-3 * (high - low))
    browser.run(f"{svg}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Home'}}))")
    read = browser.run("document.querySelector('.read').textContent")
    first = chart["series"][0]["points"][0]
    assert f"dp-fedavg: {first[1]!r} ± {first[2]!r}" in read


@needs_browser
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Page, folder: Path, scheme: str) -> None:
    browser.look(390, prefers_color_scheme=scheme)
    browser.open(folder / "comparison.html")
    assert browser.violations() == []
