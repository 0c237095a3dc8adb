"""The page in a browser: it works without a network, for every eye, screen and keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.browser import Page, needs_axe, needs_browser

from fedveil.cli import main

pytestmark = needs_browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one page: a private one and one without noise, which was attacked."""
    folder = tmp_path_factory.mktemp("page")
    small = ["--quiet", "--no-report", "--set", "training.rounds=4"]
    assert main(["run", *small, "--output", str(folder / "private")]) == 0
    assert main(["run", "fedavg", *small, "--seed", "1", "--output", str(folder / "plain")]) == 0
    attack_on(folder / "plain")
    file = folder / "report.html"
    runs = [str(folder / "private"), str(folder / "plain")]
    assert main(["report", *runs, "--output", str(file)]) == 0
    return file


def attack_on(run: Path) -> None:
    """What `fedveil attack RUN` leaves in a run, without the minutes: made-up figures."""
    views = ("open", "masked", "sum of 50, noise")
    right = [{"view": view, "right": 3, "victims": 4, "by_chance": 0.1} for view in views]
    made = [{"view": view, "correlation": 0.5, "found": 2, "victims": 4} for view in views]
    point = {"false_rate": 0.01, "true_rate": 0.2, "allowed": None}
    curve = {"attack": "loss of the model", "auc": 0.7, "points": [point]}
    members = {"unit": "client", "without": "a client of nobody", "runs": 64, "trials": 640}
    found = {
        **{"epsilon": None, "labels": right, "property": right, "not_tried": ["a lying server"]},
        "reconstruction": {"views": made},
        "membership": members | {"accuracy": 0.9, "curves": [curve]},
    }
    (run / "attack").mkdir()
    (run / "attack" / "attack.json").write_text(json.dumps(found))
    Image.new("L", (900, 300)).save(run / "attack" / "reconstructions.png")


@pytest.fixture
def page(browser: Page, page_file: Path) -> Page:
    browser.problems.clear()
    browser.look()
    browser.open(page_file)
    return browser


def document(page: Page) -> list[dict[str, Any]]:
    text = page.run("document.getElementById('document').textContent")
    runs: list[dict[str, Any]] = json.loads(text)["runs"]
    return runs


def test_it_is_drawn_without_an_error_or_a_request(page: Page) -> None:
    drawn = page.run("[...document.querySelectorAll('svg')].map(s => s.getBBox().width > 100)")
    # Both together; learning, attack, trust, epsilon; learning of the other run.
    assert drawn == [True] * 6
    assert page.problems == []


def test_lines_values_and_hover_say_what_the_document_says(page: Page) -> None:
    runs = document(page)
    for run, name in [(0, "learning"), (0, "epsilon"), (0, "attack"), (1, "learning")]:
        chart, key = runs[run]["charts"][name], f"runs/{run}/charts/{name}"
        here = f"document.querySelector('svg[data-chart=\"{key}\"]')"
        low, high, bottom, top = map(float, page.run(f"{here}.dataset.box").split(","))
        left, right, above, below = map(float, page.run(f"{here}.dataset.margins").split(","))
        width, height = page.run(f"[{here}.viewBox.baseVal.width, {here}.viewBox.baseVal.height]")
        lines = page.run(
            f"[...{here}.querySelectorAll('polyline')].map(l => [...l.points].map(p => [p.x, p.y]))"
        )
        for series, line in zip(chart["series"], lines, strict=True):
            for (x, y), (across, down) in zip(series["points"], line, strict=True):
                # Places are written to 1/100 of a unit.
                share = (across - left) / (width - left - right)
                up = (height - below - down) / (height - above - below)
                assert low + share * (high - low) == pytest.approx(x, abs=1e-4 * (high - low))
                assert bottom + up * (top - bottom) == pytest.approx(y, abs=1e-4 * (top - bottom))
        xs = sorted({x for series in chart["series"] for x, _ in series["points"]})
        press = f"{here}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowRight'}}))"
        for x in xs:
            page.run(press)
            read = page.run(f"{here}.closest('figure').querySelector('.read').textContent")
            head, *rest = read.split("; ")
            assert float(head.removeprefix(chart["x"])) == x
            said = dict(part.rsplit(": ", 1) for part in rest)
            assert {name: float(value) for name, value in said.items()} == {
                series["name"]: y
                for series in chart["series"]
                for at, y in series["points"]
                if at == x
            }
        rows = page.run(
            f"[...{here}.closest('figure').querySelectorAll('tbody tr')]"
            ".map(r => [...r.cells].map(c => c.textContent))"
        )
        table = [
            [next((y for at, y in s["points"] if at == x), None) for s in chart["series"]]
            for x in xs
        ]
        assert [[float(c) if c else None for c in row[1:]] for row in rows] == table


@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_no_screen_scrolls_sideways(page: Page, width: int) -> None:
    page.look(width)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    # What may be wider scrolls in a box of its own.
    assert page.run("document.querySelector('.wide').getBoundingClientRect().right") <= width


@needs_axe
def test_axe_finds_nothing(page: Page) -> None:
    for width, scheme in ((390, "light"), (1200, "dark")):
        page.look(width, prefers_color_scheme=scheme)
        assert page.violations() == []
    # It does look: a picture without a name is found.
    page.run("document.querySelector('main').append(document.createElement('img'))")
    assert "image-alt" in [rule for rule, _ in page.violations()]
