"""The page in a browser: it works without a network, for every eye, screen and keyboard."""

from __future__ import annotations

import itertools
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


def test_an_error_and_a_request_would_be_noticed(page: Page) -> None:
    """Else the test before this one could not fail."""
    page.run("addEventListener('x', () => nobody()); dispatchEvent(new Event('x'))")
    page.run("new Image().src = 'http://127.0.0.1:9/x'")
    for _ in range(5000):  # both are reported in their own time
        if len(page.problems) > 1:
            break
        page.run("0")
    assert "nobody" in " ".join(page.problems)
    assert "Content Security Policy" in " ".join(page.problems)


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


def test_the_pointer_finds_the_nearest_value(page: Page) -> None:
    series, constant = document(page)[1]["charts"]["learning"]["series"]
    at = dict(constant["points"])
    for x, y in series["points"]:
        read = page.run(
            "(() => { const svg = document.querySelector("
            "'svg[data-chart=\"runs/1/charts/learning\"]');"
            "svg.scrollIntoView(); const box = svg.getBoundingClientRect();"
            "const [low, high] = svg.dataset.box.split(',').map(Number);"
            "const [left, right] = svg.dataset.margins.split(',').map(Number);"
            f"const at = left + ({x} + 0.3 - low) / (high - low) * (400 - left - right);"
            "svg.dispatchEvent(new PointerEvent('pointermove',"
            " {clientX: box.left + at / 400 * box.width}));"
            "return svg.closest('figure').querySelector('.read').textContent; })()"
        )
        known = f"; best constant answer: {at[x]!r}" if x in at else ""
        assert read == f"round {x}; accuracy: {y!r}{known}"


@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_no_screen_scrolls_sideways(page: Page, width: int) -> None:
    page.look(width)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    # What may be wider scrolls in a box of its own.
    assert page.run("document.querySelector('.wide').getBoundingClientRect().right") <= width


# Relative luminance and contrast as WCAG 2.2 defines them, over every element that has text.
CONTRASTS = """
(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*:not(script)")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own) continue;
    const style = getComputedStyle(element);
    const ink = parts(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.tagName + ": " + element.textContent]);
  }
  return found;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page: Page, scheme: str) -> None:
    page.look(prefers_color_scheme=scheme)
    dark = page.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    found = page.run(CONTRASTS)
    assert len(found) > 100
    assert [text for contrast, text in found if contrast < 4.5] == []


def test_landmarks_headings_and_names_are_there(page: Page) -> None:
    """What a screen reader is told, from the browser's own accessibility tree."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored") and "role" in node:
            role, name = node["role"]["value"], node.get("name", {}).get("value", "")
            named.setdefault(role, []).append(name)
    assert {"main", "banner", "contentinfo"} <= set(named)
    assert len(named["main"]) == 1
    images = named.get("image", []) + named.get("img", [])
    assert len(images) == 7  # charts, who sees what, and reconstructed records
    for role in ("image", "img", "link", "region", "article", "heading"):
        assert all(named.get(role, ["-"]))
    levels = page.run("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert page.run("document.documentElement.lang") == "en"
    ids = page.run("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    focus = "[...document.querySelectorAll('svg[data-chart], pre, .wide')].map(e => e.tabIndex)"
    assert set(page.run(focus)) == {0}


def test_print_is_light_and_shows_what_is_folded(page: Page) -> None:
    page.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("[...document.querySelectorAll('details')].every(d => d.open)")


@needs_axe
def test_axe_finds_nothing(page: Page) -> None:
    for width, scheme in ((390, "light"), (1200, "dark")):
        page.look(width, prefers_color_scheme=scheme)
        assert page.violations() == []
    # It does look: a picture without a name is found.
    page.run("document.querySelector('main').append(document.createElement('img'))")
    assert "image-alt" in [rule for rule, _ in page.violations()]


FOCUS = """
(() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  return [[...document.querySelectorAll('*')].indexOf(at), at.tagName, seen];
})()
"""


def test_a_keyboard_is_enough(page: Page) -> None:
    """Tab reaches all that can be used, in order and visibly; its keys do what a pointer does."""
    usable = page.run(
        "[...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility()).length"
    )
    places = []
    for _ in range(usable):
        page.press("Tab")
        place, tag, seen = page.run(FOCUS)
        assert seen, tag
        places.append(place)
    assert len(set(places)) == usable
    assert places == sorted(places)
    for selector, key, done in (
        ("summary", "Enter", "document.querySelector('details').open"),
        ("th button", "Space", "document.querySelector('[aria-sort=ascending]') !== null"),
        ("svg[data-chart]", "ArrowRight", "document.querySelector('.read').textContent !== ''"),
    ):
        assert not page.run(done)
        page.run(f"document.querySelector('{selector}').focus()")
        page.press(key)
        assert page.run(done), selector
