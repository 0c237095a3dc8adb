"""Pages of comparisons: what their charts and tables say is what the runs say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Page, needs_axe, needs_browser

from fedveil.cli import main
from fedveil.report.compared import comparison_page, document_of


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
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Page, folder: Path, scheme: str) -> None:
    browser.look(390, prefers_color_scheme=scheme)
    browser.open(folder / "comparison.html")
    assert browser.violations() == []
